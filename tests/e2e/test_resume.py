"""Killed at any moment and resumed by the same command, a run ends with the same bits.

Each arm is a kind of run, with all that has state: programs in the sandbox as tools; a critic, an
adaptive KL, dynamic sampling and groups that stop early; several adapters, with checkpoints that
are written while the next step runs; pictures; tasks that are chosen by their results. It is killed
in chosen parts of a step, and its undisturbed twin runs at the same time. More runs and more kinds
of harm: test_chaos.py. Not covered: another number of threads after a resume, which is not
bit-identical.
"""

import json
import random
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from safetensors.torch import load

from tests.e2e.kills import kill_and_resume
from tests.e2e.toy_run import (
    EPISODES,
    SEES,
    STEPS,
    TWO_SIDES,
    UNEVEN_PPO,
    ToyRun,
    episodes,
    metrics,
)

# Every third task of Uneven earns all members the same: those rest for two batches, then four.
CURRICULUM = (
    "ajet.rollout.user_workflow=workflow.py->Uneven",
    "ajet.data.sampler=adaptive",
    "ajet.data.curriculum.rest=2",
    "ajet.trainer_common.use_kl_loss=false",
)
IN_BACKGROUND = "ajet.trainer_common.save_in_background=true"
SANDBOXED = ("ajet.rollout.user_workflow=workflow.py->Sandboxed",)
ARMS = {
    "sandboxed": (SANDBOXED, ("rollout", "update", "checkpoint", "random")),
    "uneven ppo": (UNEVEN_PPO, ("rollout", "update", "random")),
    "adapters": ((*TWO_SIDES, IN_BACKGROUND), ("update", "rollout", "checkpoint")),
    "images": (SEES, ("rollout", "checkpoint", "random")),
    "curriculum": (CURRICULUM, ("rollout", "random")),
}
"""The settings of an arm, and where its run is killed."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Makes the runs of an arm, once: undisturbed, killed; and the parts that the kills hit."""
    folder, known = tmp_path_factory.mktemp("resume"), {}

    def whole(arm: str) -> ToyRun:
        run = ToyRun(folder / f"whole {arm}", *ARMS[arm][0])
        assert run.finish() == 0, run.stderr()
        return run

    def killed(arm: str) -> tuple[ToyRun, list[str]]:
        settings, kills = ARMS[arm]
        run = ToyRun(folder / f"killed {arm}", *settings)
        return run, kill_and_resume(run, kills, random.Random(arm))

    def pair(arm: str) -> tuple[ToyRun, ToyRun, list[str]]:
        if arm not in known:
            with ThreadPoolExecutor(2) as pool:
                futures = pool.submit(whole, arm), pool.submit(killed, arm)
            known[arm] = (futures[0].result(), *futures[1].result())
        return known[arm]

    return pair


@pytest.mark.parametrize("arm", ARMS)
def test_the_final_weights_and_optimizer_are_bit_identical(arm, pairs):
    whole, killed, phases = pairs(arm)
    # Where the others hit is for chance. In the background a checkpoint is written in the rollout.
    assert len(phases) >= 2 and ("rollout" in phases or IN_BACKGROUND in ARMS[arm][0])
    assert killed.final_tensors() == whole.final_tensors()


@pytest.mark.parametrize("arm", ARMS)
def test_episodes_and_metrics_are_recorded_as_by_an_undisturbed_run(arm, pairs):
    whole, killed, _ = pairs(arm)
    assert episodes(killed) == episodes(whole)
    assert metrics(killed) == metrics(whole)
    assert [line["step"] for line in metrics(whole)] == list(range(1, STEPS + 1))


def test_every_task_is_taken_once_an_epoch_across_the_kills(pairs):
    _, killed, _ = pairs("sandboxed")
    groups = dict((group, query) for group, query, *_ in episodes(killed))
    order = [query for _, query in sorted(groups.items())]
    assert len(order) == 24  # 13 tasks, then 11 of the second epoch
    assert len(set(order[:13])) == 13
    assert len(set(order[13:])) == 11
    assert order[13:] != order[:11]


def test_a_resumed_run_sums_up_all_its_steps(pairs):
    for run in pairs("sandboxed")[:2]:
        summary = json.loads((run.path / "summary.json").read_text())
        assert (summary["steps"], summary["episodes"]) == (STEPS, STEPS * EPISODES)
        assert len(episodes(run)) == STEPS * EPISODES
        assert all(line["update/grad_norm"] > 0 for line in metrics(run))


def test_episodes_that_were_stopped_or_set_aside_are_recorded_with_their_reason(pairs):
    whole, *_ = pairs("uneven ppo")
    with sqlite3.connect(whole.path / "episodes.sqlite") as connection:
        query = "SELECT error, count(*) FROM episodes WHERE status = 'aborted' GROUP BY error"
        reasons = dict(connection.execute(query).fetchall())
    assert reasons.pop("the group had enough members (ajet.rollout.group_size_redundancy)")
    assert all("dynamic_sampling" in reason for reason in reasons) and reasons


def test_the_coefficient_moves_the_critic_learns_alone_at_first_and_batches_are_filled(pairs):
    lines = metrics(pairs("uneven ppo")[0])
    coefficients = [line["kl_in_reward/coef"] for line in lines]
    assert len(set(coefficients)) == STEPS
    assert "update/loss" not in lines[0] and "update/loss" in lines[1]
    assert all(line["critic/grad_norm"] > 0 for line in lines)
    assert all(line["groups/with_signal"] == 4 for line in lines)
    assert any(line["groups/total"] > 4 for line in lines)
    stopped = [(line["selection/redundancy/left_out"], line["groups/total"]) for line in lines]
    assert all(left_out == 2 * groups for left_out, groups in stopped)


def test_both_adapters_learn_and_become_different(pairs):
    whole, *_ = pairs("adapters")
    weights = load(whole.final_tensors()["model.safetensors"])
    began_as_zero = {name: t for name, t in weights.items() if "lora_B" in name}
    pro = {name.removeprefix("pro"): t for name, t in began_as_zero.items() if name[:3] == "pro"}
    con = {name.removeprefix("con"): t for name, t in began_as_zero.items() if name[:3] == "con"}
    assert pro.keys() == con.keys() and len(pro) + len(con) == len(began_as_zero) > 0
    for name, tensor in pro.items():
        assert tensor.any() and con[name].any() and not tensor.equal(con[name])
    for line in metrics(whole):
        assert line["update/grad_norm/pro"] > 0 and line["update/grad_norm/con"] > 0


def test_tasks_without_signal_rest(pairs):
    whole, killed, _ = pairs("curriculum")
    lines = metrics(whole)
    assert lines[-1]["curriculum/with_signal"] > 0
    assert lines[-1]["curriculum/solved"] + lines[-1]["curriculum/hopeless"] > 0
    query = (
        "SELECT task_id, step, count(DISTINCT reward) > 1 FROM episodes WHERE mode = 'train' "
        "GROUP BY task_id, step ORDER BY task_id, step"
    )
    groups, of_killed = (
        sqlite3.connect(run.path / "episodes.sqlite").execute(query).fetchall()
        for run in (whole, killed)
    )
    assert of_killed == groups
    steps_until_again: dict[bool, list[int]] = {True: [], False: []}
    for (task, step, has_signal), (next_task, next_step, _) in pairwise(groups):
        if task == next_task:
            steps_until_again[bool(has_signal)].append(next_step - step)
    assert min(steps_until_again[False]) == 2 and min(steps_until_again[True]) == 1
