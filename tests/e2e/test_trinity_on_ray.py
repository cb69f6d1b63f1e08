"""Backbone trinity on Ray, its halves at the same time: no token is older than the bound, and no
episode is lost."""

import json
import sqlite3
import sys

import pytest

from tests.e2e.three_backbones import SETTINGS, train_trinity
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray
STEPS = 6
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


def test_on_the_same_devices_the_halves_take_turns(toy):
    summary = train_trinity([*SHORT, "trinity.mode=colocate"])
    assert summary.steps == STEPS
    assert set(ages(toy)) == {0} and len(ages(toy)) == STEPS * EPISODES
