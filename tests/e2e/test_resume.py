"""Killed at any moment and resumed by the same command, a run ends with the same bits.

One run is killed in a rollout, in an update, in a checkpoint and at a random moment; another, with
programs in the sandbox as its tools, in a rollout and at a random moment. Beside them run their
undisturbed twins. More runs and more kinds of harm: test_chaos.py. Not covered: another number of
threads after a resume, which is not bit-identical.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.kills import kill_and_resume
from tests.e2e.toy_run import EPISODES, STEPS, ToyRun, episodes, metrics

KILLS = {"Plain": ("rollout", "update", "checkpoint", "random"), "Sandboxed": ("rollout", "random")}


@pytest.fixture(scope="module")
def lanes(tmp_path_factory):
    """All runs of this file, two at a time, ended: name -> (run, where it was killed)."""
    folder = tmp_path_factory.mktemp("resume")

    def made(name: str, workflow: str) -> ToyRun:
        return ToyRun(folder / name, f"ajet.rollout.user_workflow=workflow.py->{workflow}")

    def killed(workflow: str) -> tuple[ToyRun, list[str]]:
        run = made(f"killed {workflow}", workflow)
        return run, kill_and_resume(run, KILLS[workflow], random.Random(workflow))

    def whole(name: str, workflow: str) -> tuple[ToyRun, list[str]]:
        run = made(name, workflow)
        assert run.finish() == 0, run.stderr()
        return run, []

    with ThreadPoolExecutor(2) as pool:
        started = {f"killed {name}": pool.submit(killed, name) for name in KILLS}
        started |= {f"whole {name}": pool.submit(whole, f"whole {name}", name) for name in KILLS}
    return {name: future.result() for name, future in started.items()}


@pytest.fixture(scope="module", params=list(KILLS))
def runs(request, lanes):
    """(undisturbed, killed, where it was killed)."""
    return (lanes[f"whole {request.param}"][0], *lanes[f"killed {request.param}"])


def test_the_final_weights_and_optimizer_are_bit_identical(runs):
    whole, killed, phases = runs
    assert len(phases) >= 2 and phases[0] == "rollout"  # where the others hit is for chance
    assert killed.final_tensors() == whole.final_tensors()


def test_episodes_and_metrics_are_recorded_as_by_an_undisturbed_run(runs):
    whole, killed, _ = runs
    assert episodes(killed) == episodes(whole)
    assert len(episodes(whole)) == STEPS * EPISODES
    assert metrics(killed) == metrics(whole)
    assert [line["step"] for line in metrics(whole)] == [1, 2, 3, 4, 5, 6]
    assert all(line["update/grad_norm"] > 0 for line in metrics(whole))
    summaries = [json.loads((run.path / "summary.json").read_text()) for run in (whole, killed)]
    assert [(s["steps"], s["episodes"]) for s in summaries] == [(6, 96), (6, 96)]


def test_every_task_is_taken_once_an_epoch_across_the_kills(runs):
    _, killed, _ = runs
    groups = dict((group, query) for group, query, *_ in episodes(killed))
    order = [query for _, query in sorted(groups.items())]
    assert len(order) == 24  # 13 tasks, then 11 of the second epoch
    assert len(set(order[:13])) == 13
    assert len(set(order[13:])) == 11
    assert order[13:] != order[:11]
