import json

import pytest
from logview_fixtures import write_run
from record_fixtures import episode, group_of, two_turns

from ajet.core.errors import DataError
from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import Group
from ajet.core.trajectory.turn import Turn
from ajet.read.logview.run_page import RunPage, compared_configs, to_json


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        yield folder


@pytest.fixture
def page(folder):
    page = RunPage(folder)
    yield page
    page.close()


def held_out(step, *successes):
    """Groups of held-out tasks 0, 1, …: each has two episodes, so many of which succeed."""
    return [
        group_of(
            *(
                episode(step=step, mode="eval", group=task, member=m, reward=float(m < num))
                for m in range(2)
            )
        )
        for task, num in enumerate(successes)
    ]


def test_the_changes_are_task_by_task_between_the_first_and_the_last_evaluation(folder, page):
    with EpisodeStore(folder.episodes_db) as store:
        store.write(0, held_out(0, 0, 2, 1, 1))
        store.write(5, held_out(5, 2, 2, 2, 2))  # not an end
        store.write(10, held_out(10, 2, 1, 2, 1))
    changes = page.changes()
    assert changes["steps"] == [0, 5, 10]
    assert (changes["before"]["value"], changes["before"]["step"]) == (0.5, 0)
    assert (changes["after"]["value"], changes["after"]["num_tasks"]) == (0.75, 4)
    assert changes["difference"]["value"] == 0.25
    rose = [(each["task_id"], each["before"], each["after"]) for each in changes["rose"]]
    assert rose == [("task-0", [0, 2], [2, 2]), ("task-2", [1, 2], [2, 2])]
    assert [each["task_id"] for each in changes["fell"]] == ["task-1"]
    assert (changes["num_rose"], changes["num_fell"], changes["num_same"]) == (2, 1, 1)


def test_a_run_that_was_evaluated_once_has_no_change(folder, page):
    assert page.changes()["before"] is None
    with EpisodeStore(folder.episodes_db) as store:
        store.write(0, held_out(0, 1))
    changes = page.changes()
    assert (changes["before"]["value"], changes["after"], changes["difference"]) == (
        0.5,
        None,
        None,
    )


def test_metrics_of_one_step_are_put_together_and_lines_that_cannot_be_read_left_out(folder, page):
    rows = [
        '{"step": 2, "time": 1.0, "reward/mean": 0.123456789}',
        '{"step": 1, "time": 1.0, "reward/mean": 0.5, "update/kl": null}',
        '{"step": 1, "held_out/success": 1}',
        '{"step": "3", "reward/mean": 1}', "[1]", "null", '{"step": 4, "rew', "\udcff",
    ]  # fmt: skip
    folder.metrics_jsonl.write_bytes("\n".join(rows).encode("utf-8", "surrogateescape"))
    names = "reward/mean,held_out/success,update/kl,absent"
    data = page.metrics({"names": names})
    assert data["steps"] == [1, 2]
    assert data["series"] == {"reward/mean": [0.5, 0.123457], "held_out/success": [1.0, None]}
    with folder.metrics_jsonl.open("a") as file:
        file.write('\n{"step": 5, "reward/mean": 1.0}\n')
    assert page.metrics({"names": "reward/mean"})["steps"] == [1, 2, 5]


def test_a_step_has_its_groups_with_their_rewards_and_tells_the_dead_ones(tmp_path):
    page = RunPage(write_run(tmp_path / "math"))
    step = page.step({"step": "1"})
    (group,) = step["groups"]
    assert (group["reward"], group["variance"], group["has_signal"]) == (0.5, 0.25, True)
    assert [member["reward"] for member in group["strip"]] == [1.0, 0.0]
    assert (step["previous"], step["following"], step["modes"]) == (None, 2, ["eval", "train"])
    (untrained,) = page.step({"step": "1", "mode": "eval"})["groups"]
    assert untrained["has_signal"] is None
    page.close()


def one_call(*tokens, prompt=(100, 101)):
    completion = Completion(prompt, tokens, (-0.5,) * len(tokens), "stop", 0)
    user = {"role": "user", "content": "?"}
    return (Turn(completion, [user], None, {"role": "assistant", "content": "!"}),)


def parting(folder, page, *turns, rewards=(1.0, 0.0, 0.5)):
    members = [
        episode(member=number, turns=each, reward=reward)
        for number, (each, reward) in enumerate(zip(turns, rewards, strict=False))
    ]
    with EpisodeStore(folder.episodes_db) as store:
        store.write(1, [group_of(*members)])
    return page.group({"step": "1", "group_id": "000001-train-0000"})["parting"]


def test_members_part_at_the_first_token_that_they_do_not_share(folder, page):
    found = parting(folder, page, one_call(1, 2, 3), one_call(1, 2, 4), one_call(1, 2, 3, 5))
    assert found == {
        "turn": 0,
        "token": 2,
        "of": "reply",
        "shared": ["<1>", "<2>"],
        "ways": [
            {"text": "<3>", "members": [0, 2], "reward": 0.75, "advantage": None},
            {"text": "<4>", "members": [1], "reward": 0.0, "advantage": None},
        ],
    }


def test_a_member_whose_reply_ends_earlier_parts_at_its_end(folder, page):
    found = parting(folder, page, one_call(1, 2), one_call(1))
    assert [(way["text"], way["members"]) for way in found["ways"]] == [("<2>", [0]), (None, [1])]
    assert found["token"] == 1


def test_members_may_part_in_a_later_call_or_because_their_prompts_differ(folder, page):
    found = parting(folder, page, two_turns(), two_turns()[:1])
    assert (found["turn"], found["of"], found["token"]) == (1, "prompt", 0)


def test_members_that_are_alike_to_the_end_do_not_part(folder, page):
    assert parting(folder, page, two_turns(), two_turns()) is None


def test_the_reply_that_a_framework_gives_back_is_not_shown_twice(tmp_path):
    page = RunPage(write_run(tmp_path / "math"))
    first, second = page.episode("000001-train-0000-00")["turns"]
    assert [message["role"] for message in first["new_messages"]] == ["system", "user"]
    assert [message["role"] for message in second["new_messages"]] == ["tool"]
    page.close()


def test_an_episode_has_its_expected_and_its_final_answer_by_their_names(folder, page):
    right = episode(metadata={"final_answer": "42"})
    right.workflow_task.task.metadata["answer"] = "#### 42"
    with EpisodeStore(folder.episodes_db) as store:
        store.write(1, [Group(right.group_id, (right,), task=right.workflow_task.task)])
        store.write(1, [group_of(episode(group=1, metadata={"other": 1}))])
    shown = page.episode("000001-train-0000-00")
    assert shown["expected"] == {"name": "answer", "value": "#### 42"}
    assert shown["final_answer"] == {"name": "final_answer", "value": "42"}
    other = page.episode("000001-train-0001-00")
    assert other["final_answer"] == {"name": "last reply", "value": "42"}
    assert other["expected"] is None


def test_runs_are_compared_by_the_keys_whose_values_differ(tmp_path):
    pages = {}
    for name, rate in {"a": 0.1, "b": 0.2}.items():
        with RunFolder.open(tmp_path / name) as folder:
            text = json.dumps(
                {"ajet": {"lr": rate, "seed": 0, **({"x": 1} if name == "b" else {})}}
            )
            folder.config_yaml.write_text(text)
            pages[name] = RunPage(folder)
    assert compared_configs(pages) == [
        {"key": "ajet.lr", "values": {"a": "0.1", "b": "0.2"}},
        {"key": "ajet.x", "values": {"a": None, "b": "1"}},
    ]


def test_a_token_has_its_numbers_and_its_kl_is_from_the_policy_in_the_update(folder, page):
    tokens = TrainedTokens()
    tokens.row("000001-train-0000-00", 0, "policy_logprobs", 3)[:2] = (
        -0.75,
        -0.5,
    )  # the third was not computed
    tokens.row("000001-train-0000-00", 0, "ratios", 3)[:2] = 0.5, 2.0
    tokens.row("000001-train-0000-00", 0, "reference_logprobs", 3)[:] = -1.0, -1.0, -1.0
    tokens.cut("000001-train-0000-00", 0, "low", [0])
    with EpisodeStore(folder.episodes_db) as store:
        store.write(1, [group_of(episode())], tokens=tokens)
    first, second = page.episode("000001-train-0000-00")["turns"]
    assert first["sampled"]["ratios"][:2] == [0.5, 2.0]
    assert first["sampled"]["cuts"] == {"low": [0]}
    assert first["sampled"]["kl"] == [0.25, 0.5, -1.0]  # the sampler's -2 in the third
    assert first["sampled"]["entropies"] is None and second["sampled"]["ratios"] is None
    assert b"NaN" not in to_json(first) and b'"ratios": [0.5, 2.0, null]' in to_json(first)


def test_tasks_are_sorted_by_what_changed_and_tell_those_never_solved(folder, page):
    def played(step, *successes):
        return [
            group_of(*(
                episode(step=step, group=task, member=m, reward=float(m < num)) for m in range(2)
            ))
            for task, num in enumerate(successes)
        ]  # fmt: skip

    with EpisodeStore(folder.episodes_db) as store:
        for step, successes in {1: (2, 0, 0), 2: (1, 1, 0), 3: (0, 2, 0)}.items():
            store.write(step, played(step, *successes))
    data = page.tasks({})
    assert (data["mode"], data["num"], data["num_never"]) == ("train", 3, 1)
    shown = [
        (each["task_id"], each["first"], each["last"], each["change"]) for each in data["tasks"]
    ]
    assert shown == [("task-0", 1, 0, -1), ("task-2", 0, 0, 0), ("task-1", 0, 1, 1)]
    assert {(each["num"], each["num_steps"]) for each in data["tasks"]} == {(6, 3)}
    assert page.tasks({"sort": "-last"})["tasks"][0]["task_id"] == "task-1"
    assert [each["task_id"] for each in page.tasks({"solved": "never"})["tasks"]] == ["task-2"]
    pages = [page.tasks({"limit": "2", "after": after}) for after in ("0", "2")]
    assert [(len(each["tasks"]), each["next"]) for each in pages] == [(2, 2), (1, None)]


def test_two_episodes_of_a_task_are_those_of_the_first_and_the_last_evaluation(folder, page):
    with EpisodeStore(folder.episodes_db) as store:
        for step in (0, 5, 10):
            store.write(step, [group_of(episode(step=step, mode="eval", turns=one_call(1, step)))])
            store.write(step, [group_of(episode(step=step, turns=one_call(7)))])
    data = page.compare({"task_id": "task-0"})
    assert (data["left"], data["right"]) == ("000000-eval-0000-00", "000010-eval-0000-00")
    assert (data["parting"]["turn"], data["parting"]["token"]) == (0, 1)
    assert [way["members"] for way in data["parting"]["ways"]] == [[0], [1]]
    assert [side["asked"] for side in data["sides"]] == [[{"role": "user", "text": "?"}]] * 2
    other = page.compare({"task_id": "task-0", "left": "000005-train-0000-00"})
    assert (other["left"], other["right"]) == ("000005-train-0000-00", "000010-eval-0000-00")
    with pytest.raises(DataError):
        page.compare({"task_id": "task-0", "right": "no episode of it"})


GIF = b"GIF89a" + bytes(8)


def test_an_episode_of_a_validation_has_the_picture_that_lies_in_the_run_folder(folder, page):
    with EpisodeStore(folder.episodes_db) as store:
        store.write(3, held_out(3, 1))
    first, second = (row["episode_id"] for row in page.episodes({"sort": "step"})["episodes"])
    file = folder.path / "frames" / "step_000003" / "task-0.gif"
    file.parent.mkdir(parents=True)
    file.write_bytes(GIF)
    assert page.episode(first)["picture"] is None, "the config draws none"
    folder.config_yaml.write_text("ajet: {environment: {render_save_dir: frames}}")
    assert page.episode(first)["picture"] == "data:image/gif;base64,R0lGODlhAAAAAAAAAAA="
    assert page.episode(second)["picture"] is None, "only a group's first member is drawn"
    file.write_bytes(b"<svg onload=alert(1)>")
    assert page.episode(first)["picture"] is None


def test_an_episode_is_shown_where_the_stored_config_is_damaged(folder, page):
    with EpisodeStore(folder.episodes_db) as store:
        store.write(3, held_out(3, 1))
    [first, _] = (row["episode_id"] for row in page.episodes({"sort": "step"})["episodes"])
    folder.config_yaml.write_text("ajet: {")
    assert page.episode(first)["picture"] is None


def test_a_picture_outside_the_run_folder_is_not_read(folder, page, tmp_path):
    with EpisodeStore(folder.episodes_db) as store:
        store.write(3, held_out(3, 1))
    [first, _] = (row["episode_id"] for row in page.episodes({"sort": "step"})["episodes"])
    file = tmp_path / "frames" / "step_000003" / "task-0.gif"
    file.parent.mkdir(parents=True)
    file.write_bytes(GIF)
    for outside in (file.parents[1], "../frames"):
        folder.config_yaml.write_text(f"ajet: {{environment: {{render_save_dir: {outside}}}}}")
        assert page.episode(first)["picture"] is None
    (folder.path / "linked").symlink_to(file.parents[1])
    folder.config_yaml.write_text("ajet: {environment: {render_save_dir: linked}}")
    assert page.episode(first)["picture"] is None


def test_an_episode_lists_its_own_forks_by_turn_and_leaves_out_what_is_not_whole(folder, page):
    with EpisodeStore(folder.episodes_db) as store:
        store.write(3, held_out(3, 1))
    [first, _] = (row["episode_id"] for row in page.episodes({"sort": "step"})["episodes"])
    interval = {"value": 0.5, "low": 0.1, "high": 0.9}
    table = {"episode": first, "model": "m", "success": interval, "reward": interval}
    for name, content in {
        f"{first}-turn-10": json.dumps({**table, "turn": 10, "forks": [1]}),
        f"{first}-turn-2": json.dumps({**table, "turn": 2, "forks": [1, 2, 3]}),
        f"{first}-turn-3": json.dumps({**table, "episode": "another", "turn": 3, "forks": []}),
        f"{first}-turn-4": "{",
        f"{first}-turn-5": "[]",
    }.items():
        (folder.forks / name).mkdir(parents=True)
        (folder.forks / name / "fork.json").write_text(content)
    (folder.forks / f"{first}-turn-6").mkdir()
    forks = page.episode(first)["forks"]
    assert [(each["turn"], each["num_forks"]) for each in forks] == [(2, 3), (10, 1)]
    assert forks[0]["folder"] == f"{first}-turn-2" and forks[0]["success"] == interval
