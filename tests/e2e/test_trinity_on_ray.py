"""Backbone trinity on Ray, explorer and trainer at the same time: no token is older than the bound,
and no episode is lost."""

import json
import os
import signal
import sqlite3
import sys

import numpy as np
import pytest

from tests.e2e.three_backbones import SETTINGS, numbers, train_trinity
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray
STEPS = 4
SHORT = [*SETTINGS, f"ajet.trainer_common.total_training_steps={STEPS}"]
EPISODES = 12  # of a step


@pytest.fixture
def toy(tmp_path, monkeypatch, ray_session):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return ToyRun(tmp_path)


def ages(run):
    """Of each trained episode's oldest token, in updates."""
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        rows = connection.execute(
            "SELECT step, min(policy_version) FROM episodes JOIN turns USING (episode_id) "
            "WHERE status IN ('ok', 'truncated') GROUP BY episode_id"
        ).fetchall()
    return [step - 1 - version for step, version in rows]


def test_one_step_ahead_no_token_is_older_than_one_update_and_every_episode_is_recorded(toy):
    summary = train_trinity([*SHORT, "trinity.max_staleness=1"], num_engines=2)
    assert summary.steps == STEPS
    found = ages(toy)
    assert len(found) == STEPS * EPISODES and set(found) <= {0, 1}
    histogram = summary.extra["staleness"]
    assert set(histogram) <= {"0", "1"}
    lines = (toy.path / "logs" / "metrics.jsonl").read_text().splitlines()
    assert sum(histogram.values()) == sum(json.loads(line)["tokens/trained"] for line in lines)
    # What began for a step that never came has not ended; all that ended is in the record.
    assert sum(line.startswith("end ") for line in toy.told()) == STEPS * EPISODES


@pytest.mark.parametrize("how", ["recompute", "finish"])
def test_no_episode_has_tokens_of_two_versions_where_none_may_go_on(toy, how):
    asked = ["trinity.max_staleness=1", f"trinity.partial_rollout={how}"]
    slow = "ajet.rollout.user_workflow=workflow.py->Uneven"
    assert train_trinity([*SHORT, *asked, slow], num_engines=2).steps == STEPS
    with sqlite3.connect(toy.path / "episodes.sqlite") as connection:
        rows = connection.execute(
            "SELECT max(policy_version) - min(policy_version) FROM turns GROUP BY episode_id"
        ).fetchall()
    assert len(rows) == STEPS * EPISODES and {row[0] for row in rows} == {0}
    assert set(ages(toy)) <= {0, 1}


def test_on_the_same_devices_explorer_and_trainer_take_turns(toy):
    summary = train_trinity([*SHORT, "trinity.mode=colocate"])
    assert summary.steps == STEPS
    assert set(ages(toy)) == {0} and len(ages(toy)) == STEPS * EPISODES


def published_bytes(rank):
    """Of float64: all weights, or with LoRA two factors for each linear layer but the last."""
    from torch import nn

    from ajet import assembly
    from ajet.core.config import load_config

    model = assembly.load_policy_model(load_config("toy.yaml", [])).model
    if not rank:
        return 8 * sum(weight.numel() for weight in model.parameters())
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"}
    return 8 * rank * sum(m.in_features + m.out_features for m in linear.values())


@pytest.mark.parametrize(
    ("method", "lora"),
    [
        *[("nccl", 0), ("checkpoint", 0), ("memory", 0), ("ipc", 0)],
        *[("nccl", 2), ("memory", 2), ("ipc", 2)],
    ],
)
def test_weights_travel_as_asked_and_an_engine_that_is_replaced_gets_those_of_the_day(
    toy, method, lora, monkeypatch
):
    from ajet.cluster.engines import Engines
    from ajet.cluster.trainer_group import TrainerGroup

    way = "wake" if method == "ipc" else "load"  # where trainer and engines take turns
    publish, load, sources, killed = TrainerGroup.publish, getattr(Engines, way), [], []

    async def telling_publish(self, version):
        sources.append(await publish(self, version))
        return sources[-1]

    async def load_and_kill(self, source):
        report = await load(self, source)
        if source.version == 1:  # the engine that takes its place has missed this one
            killed.append(self.pids[0])
            os.kill(self.pids[0], signal.SIGKILL)
        return report

    monkeypatch.setattr(TrainerGroup, "publish", telling_publish)
    monkeypatch.setattr(Engines, way, load_and_kill)
    train_trinity(
        [
            *SETTINGS,
            *(["trinity.mode=colocate"] if method == "ipc" else []),
            "ajet.trainer_common.total_training_steps=3",
            f"ajet.trainer_common.optim.lr={1e-2 if lora else 1e-3}",
            f"ajet.trainer_common.lora.rank={lora}",
            "ajet.trainer_common.mini_batch_num=1",
            "trinity.max_staleness=0",
            f"trinity.synchronizer.sync_method={method}",
        ],
        num_engines=1,
        num_ranks=2 if method == "ipc" else 1,
    )
    kinds = {"nccl": "Broadcast", "ipc": "Handover"}
    assert {type(source).__name__ for source in sources} == {
        kinds.get(method, "FolderSource")
    } and len(killed) == 1
    if method == "checkpoint":
        assert all(str(source.path).startswith(str(toy.path)) for source in sources)
    assert ages(toy) == [0] * 3 * EPISODES  # tokens carry the version that their engine has
    # Other weights than the version says would show between sampler and trainer.
    drift = np.abs(numbers(toy, "update/logprob_diff_max", "update/sampler_kl"))
    assert (drift < (1e-2, 1e-4)).all() and numbers(toy, "update/kl")[-1] > 0.05
    seconds, num_bytes = numbers(toy, "sync/seconds", "sync/bytes").T
    assert (seconds > 0).all() and len(set(num_bytes)) == 1
    assert num_bytes[0] == published_bytes(lora)
