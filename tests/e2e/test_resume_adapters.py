"""Killed and resumed, a run that trains several adapters over one base ends with the same bits."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from safetensors.torch import load

from tests.e2e.kills import kill_and_resume
from tests.e2e.toy_run import STEPS, ToyRun, episodes, metrics

TWO_SIDES = (
    "ajet.rollout.user_workflow=workflow.py->TwoSides",
    "ajet.trainer_common.lora={rank: 4, target_modules: [q_proj, down_proj], "
    "adapters: [pro, con], adapter_by: agent_name}",
    "ajet.trainer_common.optim.lr=0.01",
)
KILLS = ("update", "rollout", "update", "checkpoint", "update")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(undisturbed, killed, where it was killed)."""
    folder = tmp_path_factory.mktemp("resume_adapters")

    def whole() -> ToyRun:
        run = ToyRun(folder / "whole", *TWO_SIDES)
        assert run.finish() == 0, run.stderr()
        return run

    def killed() -> tuple[ToyRun, list[str]]:
        run = ToyRun(folder / "killed", *TWO_SIDES)
        return run, kill_and_resume(run, KILLS, random.Random(2))

    with ThreadPoolExecutor(2) as pool:
        futures = pool.submit(whole), pool.submit(killed)
    return futures[0].result(), *futures[1].result()


def test_all_adapters_and_their_optimizers_are_bit_identical(runs):
    whole, killed, phases = runs
    assert len(phases) >= 3 and "rollout" in phases  # where the others hit is for chance
    assert killed.final_tensors() == whole.final_tensors()


def test_the_records_are_those_of_one_run(runs):
    whole, killed, _ = runs
    assert episodes(killed) == episodes(whole)
    assert metrics(killed) == metrics(whole)
    assert [line["step"] for line in metrics(whole)] == list(range(1, STEPS + 1))


def test_both_adapters_have_learnt_and_apart(runs):
    weights = load(runs[0].final_tensors()["model.safetensors"])
    began_as_zero = {name: t for name, t in weights.items() if "lora_B" in name}
    pro = {name.removeprefix("pro"): t for name, t in began_as_zero.items() if name[:3] == "pro"}
    con = {name.removeprefix("con"): t for name, t in began_as_zero.items() if name[:3] == "con"}
    assert pro.keys() == con.keys() and len(pro) + len(con) == len(began_as_zero) > 0
    for name, tensor in pro.items():
        assert tensor.any() and con[name].any() and not tensor.equal(con[name])
    assert all(
        line[f"update/grad_norm/{n}"] > 0 for line in metrics(runs[0]) for n in ("pro", "con")
    )
