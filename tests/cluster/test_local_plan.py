"""The arithmetic of a plan on one machine, with times that a test gives."""

import pytest

from ajet.cluster.local_plan import MAX_KEPT, EpisodeSize, LocalPlan, Measured
from ajet.cluster.model_shape import ModelShape
from ajet.core.config import load_config
from ajet.core.run.batch_plan import BatchPlan

SMOLLM2 = ModelShape(
    hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152,
    tied=True,
)  # fmt: skip
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


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet: {backbone: debug, model: {path: embedded:math}}\n")
    batch = BatchPlan(load_config(path, list(OVERRIDES)), 100, 24)
    measured = Measured(prefill_s=1.0, decode_s=0.1, group_s=5.0, optimizer_s=0.5)
    return LocalPlan(batch, SMOLLM2, EpisodeSize(324, 125), measured, at_once=16)


def test_a_step_is_its_batches_of_episodes_and_its_groups(plan):
    assert plan.rollout_s == pytest.approx(2 * (1 + 125 * 0.1))  # 32 episodes, 16 at once
    assert plan.update_s == pytest.approx(4 * 5 + 2 * 0.5)  # 4 groups, 2 optimizer steps
    assert plan.validation_s == pytest.approx(1.5 * 13.5)  # 24 episodes
    assert plan.num_validations == 3  # before the first step, after 5 and after 10
    assert plan.run_s == pytest.approx(10 * 48 + 3 * 20.25)


def test_memory_is_counted_by_hand(plan):
    parts = {part.name: part.gib * 2**30 for part in plan.memory_parts()}
    weights = 134_515_008 * 4
    assert parts["weights"] == parts["gradients"] == parts["reference"] == weights
    assert parts["optimizer"] == 2 * weights
    # A group of 324 + 8 x 125 tokens; x twice, q, out, k, v, gate and up of each layer.
    assert parts["activations"] == 1324 * 30 * (4 * 576 + 2 * 192 + 2 * 1536) * 4
    assert parts["logits"] == 1000 * 49152 * 4
    assert parts["cache"] == (2 * 324 + 2 * 16 * 125) * 2 * 30 * 192 * 4
    assert plan.peak_gib == pytest.approx(sum(parts.values()) / 2**30)


def test_the_kept_probabilities_are_those_of_the_update():
    from ajet.core.update.loss import MAX_KEPT as of_update

    assert of_update == MAX_KEPT
