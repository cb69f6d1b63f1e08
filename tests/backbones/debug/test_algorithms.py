"""Whole runs with each algorithm's settings: what is recorded, counted, and left unchanged."""

import io
import json
import math
import sqlite3
import sys

import pytest
from rich.console import Console

from ajet.backbones.debug.training import fit_debug
from ajet.core.config import load_config
from ajet.core.record.step_warnings import NO_STATE_KEY
from tests.e2e.toy_run import ToyRun

ALGORITHM = "ajet.trainer_common.algorithm"
NO_KL = "ajet.trainer_common.use_kl_loss=false"


@pytest.fixture
def train(tmp_path, monkeypatch):
    """`train(workflow, steps, *overrides)` -> the run's metrics, a dict a step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    toy = ToyRun(tmp_path)

    def trained(workflow, steps, *overrides):
        settings = [f"ajet.rollout.user_workflow=workflow.py->{workflow}", *overrides]
        settings += [f"ajet.trainer_common.total_training_steps={steps}"]
        settings = [text.replace("ALG", ALGORITHM) for text in settings]
        config = load_config("toy.yaml", settings, backbone="debug")
        fit_debug(config, Console(file=io.StringIO()))
        return list(map(json.loads, (toy.path / "logs/metrics.jsonl").read_text().splitlines()))

    trained.toy = toy
    return trained


def rows(toy, query):
    with sqlite3.connect(toy.path / "episodes.sqlite") as connection:
        return connection.execute(query).fetchall()


def is_finite(lines):
    return all(math.isfinite(value) for line in lines for value in line.values())


def test_remax_records_a_greedy_episode_for_each_group_and_trains_on_none(train):
    [line] = train("Plain", 1, "ALG.adv_estimator=remax", NO_KL)
    assert (line["baseline/episodes"], line["episodes/total"]) == (4, 16)
    assert line["remax/no_baseline"] == 0 and line["update/grad_norm"] > 0
    found = rows(train.toy, "SELECT episode_id, advantage FROM episodes WHERE mode = 'baseline'")
    assert sorted(found) == [(f"000001-baseline-{number:04d}-00", None) for number in range(4)]
    seeds = "SELECT DISTINCT seed FROM episodes WHERE mode = '{}' ORDER BY seed"
    assert rows(train.toy, seeds.format("train")) == rows(train.toy, seeds.format("baseline"))
    trained = "SELECT count(*) FROM turns JOIN episodes USING (episode_id) WHERE mode = 'baseline'"
    assert rows(train.toy, f"{trained} AND loss_mask IS NOT NULL") == [(0,)]


def test_a_run_in_which_no_group_ever_has_signal_goes_on_with_its_weights(train):
    lines = train(
        "AllEqual", 2, "ALG.dynamic_sampling.enable=true", "ALG.dynamic_sampling.max_rounds=2"
    )
    assert [line["groups/total"] for line in lines] == [8, 8]
    assert [line["groups/trained"] for line in lines] == [0, 0]
    assert [line["selection/dynamic_sampling/left_out"] for line in lines] == [32, 32]
    assert [line["update/optimizer_steps"] for line in lines] == [0, 0]
    assert [line["reward/mean"] for line in lines] == [0.5, 0.5]
    assert is_finite(lines)
    assert (
        train.toy.final_tensors(2)["model.safetensors"]
        == train.toy.final_tensors(1)["model.safetensors"]
    )
    groups = "SELECT DISTINCT group_id FROM episodes WHERE step = 2 ORDER BY group_id"
    assert rows(train.toy, groups) == [(f"000002-train-{number:04d}",) for number in range(8)]


def test_a_step_in_which_every_episode_fails_changes_nothing_and_the_run_goes_on(train):
    lines = train("AllFail", 3, "ajet.rollout.max_failure_rate=1.0")
    assert [line["episodes/agent_error"] for line in lines] == [0, 16, 0]
    assert [line["update/optimizer_steps"] for line in lines] == [2, 0, 2]
    assert is_finite(lines)
    second, third = (train.toy.final_tensors(step)["model.safetensors"] for step in (2, 3))
    assert second != third


def test_gigpo_without_state_keys_is_warned_of_and_with_them_has_anchors(train, warnings):
    [line] = train("Plain", 1, "ALG.adv_estimator=gigpo")
    assert f"adv_estimator gigpo: {NO_STATE_KEY}" in warnings
    warnings.clear()
    [_, line] = train("Stepwise", 2, "ALG.adv_estimator=gigpo")
    assert not any(NO_STATE_KEY in text for text in warnings)
    # In a group the second calls of all four meet, the first ones are alone: (4 + 4 * 1) / 5.
    assert (line["gigpo/anchor_group_size"], line["gigpo/singleton_steps"]) == (1.6, 0.5)


OWN = """
def loss(tokens, settings):
    return -tokens.advantages_M * tokens.ratio_M

def centred(groups, options):
    return [e.reward - sum(o.reward for o in g) / len(g) for g in groups for e in g]

def shaped(groups):
    return [e.reward + 3 for g in groups for e in g]

def last_first(tasks, epoch, seed):
    return [len(tasks) - 1] * len(tasks)
"""
OWN_KEYS = (
    "ALG.policy_loss=own.py->loss",
    "ALG.adv_estimator=own.py->centred",
    "ALG.reward_shaping=own.py->shaped",
    "ajet.data.sampler=own.py->last_first",
)


def test_a_run_with_algorithms_of_the_users_own_trains_and_knows_their_code(train):
    train.toy.folder.joinpath("own.py").write_text(OWN)
    [line] = train("Plain", 1, *OWN_KEYS, NO_KL)
    assert line["update/grad_norm"] > 0 and is_finite([line])
    assert line["advantage/mean"] == pytest.approx(0, abs=0.5)  # a shift of 3 is taken off
    queries = rows(train.toy, "SELECT DISTINCT task_id FROM episodes WHERE mode = 'train'")
    assert len(queries) == 1  # the sampler takes one task alone
    attempt = json.loads((train.toy.path / "attempts/0001/attempt.json").read_text())
    assert "own.py" in attempt["identity"]["code"]


def test_a_reward_that_nobody_gave_is_that_episodes_judge_error(train):
    rewards = "ALG.reward_weights={digits: 1}"
    failing = ("ajet.rollout.max_failure_rate=1.0", "ALG.adv_estimator=gdpo", rewards, NO_KL)
    [line] = train("Plain", 1, *failing)
    assert line["episodes/judge_error"] == 16
    [(error,)] = rows(train.toy, "SELECT DISTINCT error FROM episodes WHERE mode = 'train'")
    assert error == (
        "the workflow gave no log_metrics['digits'], which "
        "ajet.trainer_common.algorithm.reward_weights names"
    )
