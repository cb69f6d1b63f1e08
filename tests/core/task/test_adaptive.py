"""The adaptive order finds the tasks with signal, asks the others again, and resumes exactly."""

import json
import random
from collections import Counter, defaultdict

import pytest

from ajet.core.config import load_config
from ajet.core.errors import CheckpointError, ConfigError, DataError
from ajet.core.run.run_tasks import make_cursor
from ajet.core.task.results import GroupResult, TaskResults
from ajet.core.task.task import Task

NUM_TASKS, BATCH, GROUP = 60, 8, 8
LEARNABLE = range(8)  # won half the time; 8 to 23 always, 24 to 59 never


@pytest.fixture
def made(tmp_path):
    """Makes a cursor over `NUM_TASKS` tasks (or those given) by a config with these settings."""

    def make(*overrides, tasks=None, sampler="adaptive"):
        (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}")
        given = [
            f"ajet.data.sampler={sampler}",
            f"ajet.data.train_batch_size={BATCH}",
            f"ajet.rollout.num_repeat={GROUP}",
        ]
        config = load_config(tmp_path / "run.yaml", [*given, *overrides])
        return make_cursor(config, tasks or [Task(f"t{n}", "q") for n in range(NUM_TASKS)])

    return make


def chance(task, batch):
    return 0.5 if task in LEARNABLE else float(task < 24)


def play(cursor, num_batches, chance=chance, seed=0, first=0):
    """Batches, each with its tasks' results as a fake policy earns them."""
    batches = []
    for number in range(first, first + num_batches):
        tasks = cursor.next_batch()
        results = []
        for order, task in enumerate(tasks):
            draw = random.Random(f"{seed} {number} {order}")
            wins = sum(draw.random() < chance(task, number) for _ in range(GROUP))
            results.append(GroupResult(task, GROUP, wins, 0 < wins < GROUP))
        cursor.observe(results)
        batches.append(results)
    return batches


def signal_share(batches):
    results = [result for batch in batches for result in batch]
    return sum(result.has_signal for result in results) / len(results)


@pytest.mark.parametrize("seed", range(3))
def test_the_adaptive_sampler_finds_the_tasks_with_signal(made, seed):
    given = (f"ajet.seed={seed}", "ajet.data.curriculum.rest=4")
    adaptive = play(made(*given), 40, seed=seed)
    uniform = play(made(f"ajet.seed={seed}", sampler="uniform"), 40, seed=seed)
    assert signal_share(uniform) < 0.2  # 8 of 60 tasks have signal
    assert signal_share(adaptive[14:]) > 0.7  # three places in four, once all tasks were seen
    seen = {result.task for batch in adaptive[:14] for result in batch}
    assert seen == set(range(NUM_TASKS))


def test_a_task_without_signal_rests_longer_each_time_and_is_asked_again(made):
    batches = play(made("ajet.data.curriculum.rest=2"), 120)
    taken = defaultdict(list)
    for number, batch in enumerate(batches):
        for result in batch:
            taken[result.task].append(number)
    for task in range(24, NUM_TASKS):
        gaps = [b - a for a, b in zip(taken[task], taken[task][1:], strict=False)]
        assert len(gaps) >= 3, taken[task]
        assert all(gap >= 2 * min(2**n, 16) for n, gap in enumerate(gaps)), gaps


def test_a_task_that_the_policy_has_learnt_to_win_comes_back(made):
    def learns(task, batch):
        return 0.5 if batch >= 20 and task == 50 else chance(task, batch)

    batches = play(made("ajet.data.curriculum.rest=2"), 80, learns)
    late = Counter(result.task for batch in batches[50:] for result in batch)
    assert late[50] > 10 > max(late[task] for task in range(24, 50))


def test_one_place_in_four_is_for_tasks_whose_rest_is_over(made):
    batches = play(made("ajet.data.curriculum.rest=1"), 60)
    # Now and then a learnable task is won or lost by all, rests, and leaves its place to another.
    assert 0.7 < signal_share(batches[20:]) <= 0.75


@pytest.mark.parametrize("after", [0, 1, 7, 25])
def test_a_resumed_cursor_takes_the_same_tasks(made, after):
    whole, resumed = made(), made()
    play(whole, after)
    waiting = whole.next_batch()  # a step whose groups have not ended
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    for cursor in (whole, resumed):
        cursor.observe(
            GroupResult(task, GROUP, task % 9, task % 9 not in (0, 8)) for task in waiting
        )
    assert play(resumed, 10, first=after) == play(whole, 10, first=after)
    assert resumed.state_dict() == whole.state_dict()


def test_the_seed_decides_the_draws(made):
    assert made().next_batch() == made().next_batch() != made("ajet.seed=1").next_batch()


def test_a_batch_larger_than_the_tasks_takes_them_again(made):
    batch = made(tasks=[Task("a", "q"), Task("b", "q")]).next_batch(5)
    assert Counter(batch[:4]) == {0: 2, 1: 2} and len(batch) == 5


def test_quotas_hold_over_the_run_whatever_the_results_are(made):
    levels = ("easy", "hard", "other")
    tasks = [Task(f"t{n}", "q", metadata={"level": levels[n % 3]}) for n in range(NUM_TASKS)]
    key = "ajet.data.curriculum"
    cursor = made(f"{key}.quotas={{easy:0.25,hard:0.75}}", f"{key}.tag_field=level", tasks=tasks)
    taken = Counter(levels[result.task % 3] for batch in play(cursor, 20) for result in batch)
    assert taken == {"easy": 40, "hard": 120}  # other has no quota
    for batch in play(cursor, 5, first=20):
        assert Counter(levels[r.task % 3] for r in batch) == {"easy": 2, "hard": 6}


def test_a_quota_of_no_task_is_one_line(made):
    with pytest.raises(ConfigError, match="no training task has the tag 'hard'; there are None"):
        made("ajet.data.curriculum.quotas={hard:1.0}")


@pytest.mark.parametrize("quotas", ["{a:0.5}", "{a:1.5,b:-0.5}"])
def test_quotas_add_up_to_one(made, quotas):
    with pytest.raises(ConfigError, match="shares above 0 are expected, which add up to 1"):
        made(f"ajet.data.curriculum.quotas={quotas}")


# --- results from before the run, and of groups -------------------------------------------------


def evaluation(folder, tasks):
    """A file of `ajet eval --out`, with these wins of each task."""
    plain = {
        name: {
            "success": wins,
            "reward": [float(won) for won in wins],
            "status": ["ok"] * len(wins),
        }
        for name, wins in tasks.items()
    }
    (folder / "start.json").write_text(json.dumps({"tasks": plain}))
    return f"ajet.data.curriculum.results_path={folder / 'start.json'}"


def test_an_evaluation_of_the_training_tasks_is_where_it_starts_from(made, tmp_path):
    wins = {f"t{n}": [n in LEARNABLE and k < 3 for k in range(GROUP)] for n in range(NUM_TASKS)}
    cursor = made(evaluation(tmp_path, wins), "ajet.data.curriculum.rest=100")
    for _ in range(4):
        tasks = cursor.next_batch(4)
        assert set(tasks) <= set(LEARNABLE)
        cursor.observe(GroupResult(task, GROUP, 3, True) for task in tasks)


def test_an_evaluation_may_have_a_part_of_the_tasks(made, tmp_path):
    start = evaluation(tmp_path, {"t0": [True, False], "t1": [False] * 4, "other": [True]})
    log = made(start)._log
    assert log.of_task[0] == TaskResults(groups=1, blank=0, episodes=2.0, wins=1.0)
    assert log.of_task[1] == TaskResults(groups=1, blank=1, episodes=4.0, wins=0.0)
    assert log.of_task[2] == TaskResults()


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{}", "not a result of"), ('{"tasks": {}}', "has no training task of this run")],
)
def test_a_file_that_is_none_is_one_line(made, tmp_path, text, problem):
    (tmp_path / "start.json").write_text(text)
    with pytest.raises(DataError, match=problem):
        made(f"ajet.data.curriculum.results_path={tmp_path / 'start.json'}")


def test_environments_that_are_new_at_each_step_have_no_results(made):
    with pytest.raises(ConfigError, match="results say nothing about the next one; use uniform"):
        made("ajet.task_reader.type=environment")


def test_older_episodes_count_half_of_those_of_the_next_group():
    known = TaskResults().after(GroupResult(0, 8, 8, False)).after(GroupResult(0, 8, 2, True))
    assert (known.groups, known.blank, known.episodes, known.wins) == (2, 0, 12.0, 6.0)
    assert known.share == 0.5  # (6 + 1/2) / (12 + 1)
    assert known.signal_chance(2) == 0.5
    failed = known.after(GroupResult(0, 0, 0, False))
    assert failed == known


def test_the_adaptive_sampler_counts_solved_unsolved_and_unseen_tasks(made):
    cursor = made()
    assert cursor.metrics() == {}
    tasks = cursor.next_batch()
    results = [(GROUP, False), (0, False), (3, True)]
    cursor.observe(
        GroupResult(task, GROUP, wins, signal)
        for task, (wins, signal) in zip(tasks, results, strict=False)
    )
    assert cursor.metrics() == {
        "curriculum/unknown": NUM_TASKS - 3,
        "curriculum/with_signal": 1,
        "curriculum/solved": 1,
        "curriculum/hopeless": 1,
    }


def test_a_checkpoint_of_a_uniform_run_is_refused(made):
    with pytest.raises(CheckpointError, match="has no results of tasks"):
        made().load_state_dict(made(sampler="uniform").state_dict())
    with pytest.raises(CheckpointError, match="shuffle=None"):
        made(sampler="uniform").load_state_dict(made().state_dict())


@pytest.mark.parametrize("tasks", [{"99": [1]}, {"0": [1, 2, 3, 4, 5, 6, 7, 8]}, None])
def test_a_damaged_state_is_one_line(made, tasks):
    state = made().state_dict() | {"results": {"taken": 1, "tasks": tasks}}
    with pytest.raises(CheckpointError, match="pass --no-resume"):
        made().load_state_dict(state)
