"""The arithmetic of a plan on one machine, with times that a test gives."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ajet.core.config import load_config
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.trajectory.sample import TrainingSample
from ajet.engines.in_process import KV_BYTES
from ajet.plan.cpu_plan import CpuPlan, Measured, Trial, cpu_plan
from ajet.plan.memory import checkpoint_bytes, total
from ajet.plan.update_time import EpisodeSize
from tests.plan.shapes import dense

OVERRIDES = (
    "ajet.data.train_batch_size=4",
    "ajet.rollout.num_repeat=8",
    "ajet.rollout.max_env_worker=16",
    "ajet.trainer_common.mini_batch_num=2",
    "ajet.trainer_common.total_training_steps=10",
    "ajet.trainer_common.test_freq=5",
    "ajet.trainer_common.val_before_train=true",
    "ajet.trainer_common.val_pass_n=1",
    "ajet.trainer_common.max_tokens_per_micro_batch=1536",
    "ajet.trainer_common.use_kl_loss=true",
    "ajet.model.dtype=float32",
)


def config_with(*overrides):
    return load_config("tutorial/example_math_agent/demo.yaml", [*OVERRIDES, *overrides])


def smollm2():
    return dense(576, 30, 9, 3, 64, 1536, 49152, tied=True)


@pytest.fixture
def plan():
    batch = BatchPlan(config_with(), 100, 24)
    measured = Measured(batch_s=13.5, group_s=5.0, optimizer_s=0.5)
    return CpuPlan(batch, smollm2(), EpisodeSize(324, 125), measured)


def test_a_step_is_its_batches_of_episodes_and_its_groups(plan):
    assert plan.rollout_s == pytest.approx(2 * 13.5)  # 32 episodes, 16 at once
    assert plan.update_s == pytest.approx(4 * 5 + 2 * 0.5)  # 4 groups, 2 optimizer steps
    assert plan.validation_s == pytest.approx(1.5 * 13.5)  # 24 episodes
    assert plan.num_validations == 3  # before the first step, after 5 and after 10
    assert plan.run_s == pytest.approx(10 * 48 + 3 * 20.25)


def sizes(parts):
    return {part.name: part.gib * 2**30 for part in parts}


def with_setting(plan, *overrides):
    return replace(plan, batch=BatchPlan(config_with(*overrides), 100, 24))


WEIGHTS = 134_515_008 * 4
A_LAYER = 4 * 576 + 2 * 192 + 2 * 1536  # x twice, q, out, k, v, gate and up


def test_memory_is_counted_by_hand(plan):
    kept = sizes(plan.kept_parts())
    assert kept["weights"] == kept["reference"] == WEIGHTS and kept["optimizer"] == 2 * WEIGHTS
    # 16 at once: a validation's are 16 prompts, a rollout's are 2 of 8 episodes each.
    cached = (16 * 324 + 16 * 125) * 2 * 30 * 192 * 4
    packed = WEIGHTS - 61 * 576 * 4  # all but the norms
    assert sizes(plan.rollout_parts()) == {"cache": 2 * cached, "packed weights": packed}
    assert sizes(plan.update_parts()) == {
        "gradients": WEIGHTS,
        # A group of 324 + 8 x 125 tokens: the input of each layer, and one layer at a time.
        "activations": 1.5 * 1324 * (30 * 576 + A_LAYER) * 4,
        "logits": 1.5 * 1000 * 49152 * 4,
    }


def test_a_cache_is_that_of_the_rollout_where_its_replies_are_more(plan):
    longer = replace(plan, batch=BatchPlan(config_with(), 100, 2), size=EpisodeSize(100, 125))
    cached = (2 * 100 + 16 * 125) * 2 * 30 * 192 * 4  # not that of 2 tasks held out
    assert sizes(longer.rollout_parts())["cache"] == 2 * cached


def test_a_supervised_step_has_no_rollout(plan):
    supervised = (
        "ajet.kind=supervised",
        "ajet.rollout.num_repeat=1",
        "ajet.data.train_batch_size=16",
    )
    with_tasks = with_setting(plan, *supervised, "ajet.supervised.validation=tasks")
    assert (
        with_tasks.rollout_s == 0 and with_tasks.step_s == with_tasks.update_s == 16 * 5 + 2 * 0.5
    )
    assert with_tasks.validation_s == pytest.approx(24 / 16 * 13.5)  # 16 of the 24 at once
    assert [row[0] for row in with_tasks.time_rows()] == ["update", "step", "validation", "run"]
    from_rows = with_setting(plan, *supervised, "ajet.supervised.validation=rows")
    assert from_rows.rollout_parts() == [] and with_tasks.rollout_parts() != []


def test_activations_that_are_kept_are_those_of_all_layers(plan):
    kept = with_setting(plan, "ajet.trainer_common.fsdp_config.activation_checkpointing=false")
    assert sizes(kept.update_parts())["activations"] == 1.5 * 1324 * 30 * A_LAYER * 4


def test_masters_of_bfloat16_are_counted(plan):
    in_bfloat16 = with_setting(plan, "ajet.model.dtype=bfloat16")
    assert sizes(in_bfloat16.kept_parts())["weights"] == 1.5 * WEIGHTS
    assert sizes(in_bfloat16.update_parts())["gradients"] == WEIGHTS


def test_a_large_model_peaks_in_the_rollout_or_in_the_update(plan):
    kept, rollout, update = plan.kept_parts(), plan.rollout_parts(), plan.update_parts()
    largest = max(total(rollout), total(update))
    assert plan.peak_gib == pytest.approx(total(kept) + largest)


def test_a_family_that_transformers_computes_keeps_twice_as_much_of_a_layer(plan):
    other = replace(plan, shape=replace(plan.shape, has_decoder=False))
    kept, expected = (sizes(one.update_parts())["activations"] for one in (other, plan))
    inputs = 1.5 * 4 * 1324 * 30 * 576  # of the layers, kept once
    assert kept - inputs == pytest.approx(2 * (expected - inputs))


def test_a_small_model_keeps_in_the_update_what_the_rollout_has_freed(plan):
    small = replace(plan, shape=dense(128, 30, 8, 4, 16, 384, 1024, tied=True))
    parts = [*small.kept_parts(), *small.rollout_parts(), *small.update_parts()]
    assert "packed weights" not in sizes(parts)
    assert small.peak_gib == pytest.approx(total(parts))


def test_a_cache_is_never_more_than_the_engines_budget(plan):
    longer = replace(plan, size=EpisodeSize(4000, 125))  # 16 of them would take 6.6 GB
    assert sizes(longer.rollout_parts())["cache"] == 2 * KV_BYTES


def test_a_pass_of_several_groups_reads_the_tokens_of_all(plan):
    wide = with_setting(plan, "ajet.trainer_common.max_tokens_per_micro_batch=3000")
    # Two groups of 1,324 tokens, of which 1,000 are sampled.
    assert sizes(wide.update_parts())["logits"] == 1.5 * 2000 * 49152 * 4


def sample(ids, num_prompt):
    mask = np.arange(len(ids)) >= num_prompt
    zeros = np.zeros(len(ids), np.float32)
    return TrainingSample("e", "g", np.array(ids), mask, zeros, zeros, (), 0, 0)


def test_a_trials_lengths_are_what_a_group_begins_with_and_the_rest_of_each_row():
    # Both rows of the first group begin with 1 2 3; one goes on with 8 before anything is sampled.
    first = [sample([1, 2, 3, 7], 3), sample([1, 2, 3, 8, 7, 7], 4)]
    second = [sample([1, 2, 3, 4, 5, 6, 6, 6, 6], 5)]
    trial = Trial([first, second], 3, 2.0)
    assert trial.size == EpisodeSize(prompt=4, reply=round((1 + 3 + 4) / 3))


@pytest.mark.parametrize(
    ("weight_bytes", "is_adapter", "of_weight"),
    [
        (4, False, 4 + 2 * 4),  # the weights, and two moments
        (2, False, 2 + 4 + 2 * 4),  # their masters too
        (2, True, 4 + 2 * 4),  # adapters are float32, and alone
    ],
)
def test_a_checkpoint_has_weights_masters_and_moments(weight_bytes, is_adapter, of_weight):
    assert checkpoint_bytes(1000, weight_bytes, 4, is_adapter=is_adapter) == 1000 * of_weight


def test_a_machine_is_measured_with_short_episodes_where_there_is_no_time_for_long_ones():
    config = config_with("ajet.rollout.max_env_worker=16", "ajet.rollout.num_repeat=2")
    lines, batch = [], BatchPlan(config, 100, 24)
    long = cpu_plan(batch, EpisodeSize(1280, 640), tell=lines.append, budget_s=0)
    told = "measuring 3 of 4 layers with random weights for 0 s, or longer if the shortest passes"
    assert lines == [f"{told} take longer"]
    note = "measured with 3 of 4 layers"
    assert long.measured.note == f"{note}, episodes of 20 + 10 tokens"
    short = cpu_plan(batch, EpisodeSize(16, 8), budget_s=0)
    assert short.measured.note == note


def test_a_model_whose_first_layers_are_all_of_them_is_measured_once(tmp_path):
    config = json.loads(Path("ajet/embedded/math/config.json").read_text())
    config |= {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    batch = BatchPlan(config_with(f"ajet.model.path={tmp_path}"), 100, 24)
    plan = cpu_plan(batch, EpisodeSize(16, 8), budget_s=0)
    assert plan.measured.note.startswith("measured with 1 of 1 layers")
    assert plan.rollout_s > 0 and plan.update_s > 0
