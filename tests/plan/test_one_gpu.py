"""A run on backbone debug on one GPU: what fits into 24 GiB, by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ajet.core.config import load_config
from ajet.plan.gpu_plan import OneGpuPlan
from ajet.plan.memory import GIB
from ajet.plan.update_time import BANDWIDTH_SHARE, GPUS, EpisodeSize
from tests.plan.shapes import published, qwen_0_5b, qwen_1_5b


def plan_of(shape, *overrides, gpu="4090", prompt=500, reply=500):
    config = load_config("tutorial/example_math_agent/demo.yaml", overrides)
    return OneGpuPlan(config, shape, GPUS[gpu], EpisodeSize(prompt, reply))


def gib_of(plan):
    return {part.name: part.gib for part in plan.memory_parts}


def test_half_a_billion_trains_in_full_on_24_gib_with_every_part_by_hand():
    plan = plan_of(qwen_0_5b(), "ajet.trainer_common.use_kl_loss=true")
    parts, size = gib_of(plan), 494_032_768 / GIB
    assert parts["weights"] == parts["reference"] == pytest.approx(2 * size)
    assert parts["masters"] == pytest.approx(4 * size)
    assert parts["optimizer"] == pytest.approx(8 * size)
    # and that of the embeddings in bfloat16, before it is added
    assert parts["gradients"] == pytest.approx(4 * size + 2 * 151936 * 896 / GIB)
    tokens = plan.config.ajet.trainer_common.max_tokens_per_micro_batch
    recomputed = 24 * 896 + 25_088 + 11_520  # the layers' inputs, and one layer
    assert parts["activations"] == pytest.approx(2 * tokens * recomputed / GIB)
    assert plan.needed_gib == pytest.approx(sum(parts.values())) and plan.needed_gib < 24
    assert plan.problems() == []


def test_one_and_a_half_billion_needs_adapters_on_24_gib():
    [problem] = plan_of(qwen_1_5b()).problems()
    assert "GiB of 24 (most of it optimizer, 12)" in problem
    assert "set ajet.trainer_common.lora.rank" in problem
    adapted = plan_of(qwen_1_5b(), "ajet.trainer_common.lora.rank=16")
    assert adapted.problems() == [] and adapted.needed_gib < 20
    assert gib_of(adapted)["adapters"] == pytest.approx(
        4 * qwen_1_5b().trained_parameters(16) / GIB
    )
    assert "reference" not in gib_of(adapted) and "masters" not in gib_of(adapted)


def test_without_recomputation_every_layer_is_kept():
    kept = plan_of(qwen_0_5b(), "ajet.trainer_common.fsdp_config.activation_checkpointing=false")
    tokens = kept.config.ajet.trainer_common.max_tokens_per_micro_batch
    assert gib_of(kept)["activations"] == pytest.approx(2 * tokens * (24 * 25_088 + 11_520) / GIB)


def test_auto_keeps_every_layer_where_that_takes_half_of_what_is_left():
    whole = 2 * 4096 * (24 * 25_088 + 11_520) / GIB
    small, large = plan_of(qwen_0_5b(), gpu="4090"), plan_of(qwen_0_5b(), gpu="h100")
    room = 24 - (small.needed_gib - gib_of(small)["activations"])
    assert room / 2 < whole < room and small.recomputes and small.update.recomputes
    assert gib_of(large)["activations"] == pytest.approx(whole)
    assert not large.recomputes and not large.update.recomputes
    adapted = plan_of(qwen_0_5b(), "ajet.trainer_common.lora.rank=16", gpu="h100")
    assert adapted.recomputes  # adapters keep more than is counted


def test_float32_has_no_masters_and_twice_the_weights():
    wide = gib_of(plan_of(qwen_0_5b(), "ajet.model.dtype=float32"))
    assert wide["weights"] == pytest.approx(4 * 494_032_768 / GIB) and "masters" not in wide


def test_a_token_of_a_small_model_waits_for_launches_unless_steps_are_replayed():
    few = "ajet.rollout.max_env_worker=16"
    plan = plan_of(qwen_0_5b(), few, "ajet.rollout.cuda_graphs=false")
    episodes = plan.config.ajet.data.train_batch_size * plan.config.ajet.rollout.num_repeat
    assert plan.at_once == 16
    bandwidth = BANDWIDTH_SHARE * 1.008e12
    # The weights, and 500 tokens of keys and values of each episode on average, of 2 bytes.
    weights_s, cache_s = 2 * 494_032_768 / bandwidth, 2 * 16 * 500 * 2 * 24 * 128 / bandwidth
    step_s = 9 * 50e-6 * 24 + cache_s + 0.2e-3
    assert plan.rollout_s == pytest.approx(episodes * 500 / 16 * step_s)
    kernels_s = 9 * 4.8e-6 * 24
    assert kernels_s < weights_s
    replayed = plan_of(qwen_0_5b(), few).rollout_s
    assert replayed == pytest.approx(episodes * 500 / 16 * (weights_s + cache_s + 0.2e-3))


def test_a_step_of_128_rows_takes_what_was_measured():
    """On an H100, 128 rows of 512 + 128 tokens: `decode` in gpu_first_contact.json."""
    file = Path(__file__).parents[2] / "benchmarks/results/gpu_first_contact.json"
    [row] = [part for part in json.loads(file.read_text())["parts"] if part["part"] == "decode"]
    steps = ("ajet.data.train_batch_size=16", "ajet.rollout.num_repeat=8")
    plan = plan_of(
        qwen_0_5b(),
        *steps,
        "ajet.rollout.max_env_worker=128",
        gpu="h100",
        prompt=512,
        reply=128,
    )
    step_s = plan.rollout_s / 128
    assert step_s * 1e3 == pytest.approx(row["figures"]["step_ms"], rel=0.15)


def test_a_mixture_reads_the_experts_that_rows_choose_and_launches_its_kernels():
    shape = published("Qwen3-30B-A3B")
    plan = plan_of(shape, "ajet.rollout.max_env_worker=16", "ajet.model.path=none", gpu="h200")
    episodes = plan.config.ajet.data.train_batch_size * plan.config.ajet.rollout.num_repeat
    # 16 rows choose 8 of 128 experts of 3 x 2048 x 768: 82.4 of them on average
    chosen = 128 * (1 - (120 / 128) ** 16)
    assert round(chosen, 1) == 82.4
    weights = 2 * (30_532_122_624 - 48 * (128 - chosen) * 4_718_592)
    for bandwidth, is_fast in ((4.8e11, False), (4.8e12, True)):
        weights_s, cache_s = (
            num_bytes / (BANDWIDTH_SHARE * bandwidth) for num_bytes in (weights, 16 * 500 * 98_304)
        )
        launched_s = 16 * 50e-6 * 48
        assert (launched_s > weights_s) is is_fast
        step_s = max(weights_s, launched_s) + cache_s + 0.2e-3
        slowed = replace(plan, gpu=replace(plan.gpu, bandwidth=bandwidth))
        assert slowed.rollout_s == pytest.approx(episodes * 500 / 16 * step_s)
    # Gate and up of a layer's experts are the largest tensor whose gradient there is.
    assert gib_of(plan)["gradients"] * GIB == 4 * shape.parameters + 2 * 128 * 1536 * 2048


def test_the_cache_is_the_engines():
    for gpu, budget in (("4090", 2.4), ("h100", 8)):  # a tenth, for rows and for kept prefixes
        assert gib_of(plan_of(qwen_0_5b(), gpu=gpu))["cache"] == pytest.approx(2 * budget)


def test_the_table_ends_with_the_sum_and_the_step():
    plan = plan_of(qwen_0_5b())
    assert plan.memory_rows()[-1][0] == "all" and plan.memory_rows()[-1][2] == "of 24 GiB"
    names = [name.strip() for name, *_ in plan.time_rows()]
    assert names == [
        "rollout", "products", "attention", "elementwise", "head", "optimizer", "communication",
        "update", "MFU of the update", "step",
    ]  # fmt: skip
