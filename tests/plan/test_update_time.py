"""The accounting of an update, by hand for a small shape, and plausible for real ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ajet.core.config import load_config
from ajet.plan.update_time import GPUS, EpisodeSize, Gpu, StepTokens, UpdateTime
from tests.plan.shapes import dense, published, qwen_0_5b, qwen_7b

# q and o 2 x 64, k and v 2 x 32, gate, up and down 3 x 128, two norms 16
PRODUCTS = 128 + 64 + 384
PARAMETERS = 2 * (PRODUCTS + 16) + 100 * 8 + 8
GPU = Gpu("slow", 1, flops=1e6, bandwidth=1e6, link=1e6)
SLOWLY_LINKED = replace(GPU, link=1e4)
STEP = {
    "ajet.data.train_batch_size": 3,
    "ajet.rollout.num_repeat": 2,
    "ajet.trainer_common.mini_batch_num": 1,
    "ajet.trainer_common.use_kl_loss": "false",
}
SIZE = EpisodeSize(4, 6)
TOKENS, FSDP = "verl.trainer.max_token_len_per_gpu", "ajet.trainer_common.fsdp_config"


@pytest.fixture
def time_of(tmp_path):
    def time_of(changes=(), shape=None, gpu=GPU, size=SIZE, **fields):
        path = tmp_path / "run.yaml"
        path.write_text("ajet: {model: {path: m}}")
        overrides = [f"{key}={value}" for key, value in (STEP | dict(changes)).items()]
        config = load_config(path, overrides, backbone="verl")
        shape = shape or dense(8, 2, 2, 1, 4, 16, 100, tied=True)
        return UpdateTime(config, shape, gpu, size, **{"recomputes": False} | fields)

    return time_of


def parts_of(update):
    return {part.name: part.seconds for part in update.parts}


def test_the_tree_computes_a_groups_prompt_once_and_other_layouts_for_each_episode():
    tree, packed, padded = (
        StepTokens(3, 2, EpisodeSize(4, 6), name) for name in ("tree", "packed", "padded")
    )
    assert tree.num == 3 * (4 + 2 * 6) == 48
    assert packed.num == padded.num == 60
    # A prompt has 4 x 5 / 2 pairs; a reply's tokens attend to 4 + 1, 4 + 2, … 4 + 6: 45
    assert tree.pairs() == 3 * (10 + 2 * 45)
    assert packed.pairs() == 6 * 55 and padded.pairs() == 6 * 100
    # A prompt of 4 has 1 + 2 + 3 + 3 pairs in a window of 3, each token of a reply 3.
    assert tree.pairs(window=3) == 3 * (9 + 2 * 18)


def test_a_step_without_recomputation_by_hand(time_of):
    parts = parts_of(time_of())
    # one forward and two backward passes
    assert parts["products"] == pytest.approx(2 * 3 * 2 * PRODUCTS * 48 / 0.7e6)
    # 1 + 2.5 passes of 4 FLOPs x width 8
    assert parts["attention"] == pytest.approx(4 * 3.5 * 2 * 8 * 300 / 0.18e6)
    # 4 x 8 + 2 x (8 + 4) + 4 x 16 values of 2 bytes
    assert parts["elementwise"] == pytest.approx(2.56 * 3 * 48 * 2 * 120 * 2 / 0.78e6)
    # 36 trained tokens; logits forward, again, and two products backward, which read or write each
    # logit of 2 bytes 2 + 5 times
    softmax = (2 + 5) * 2 * 100 * 36 / 0.78e6
    assert parts["head"] == pytest.approx(2 * 4 * 8 * 100 * 36 / 0.7e6 + softmax)
    assert parts["optimizer"] == pytest.approx(40 * PARAMETERS / 0.78e6)
    assert parts["communication"] == 0


def test_mfu_counts_neither_recomputation_nor_a_reference(time_of):
    plain = time_of()
    more = time_of({"ajet.trainer_common.use_kl_loss": "true"}, recomputes=True)
    flops = 6 * 2 * PRODUCTS * 48 + 12 * 2 * 8 * 300 + 6 * 8 * 100 * 36
    assert plain.model_flops == more.model_flops == flops
    assert plain.mfu == pytest.approx(flops / (plain.seconds * 1e6))
    assert more.mfu < plain.mfu


@pytest.mark.parametrize(
    ("changes", "recomputes", "passes"),
    [
        ({}, True, 4),
        ({"ajet.trainer_common.use_kl_loss": "true"}, False, 4),
        ({"ajet.trainer_common.algorithm.old_logprobs": "trainer"}, False, 4),
        ({"ajet.trainer_common.ppo_epochs": 2}, False, 6),
        ({"ajet.trainer_common.lora.rank": 2}, False, 2),  # no gradient of the weights
    ],
)
def test_passes_are_added_for_recomputation_a_reference_old_logprobs_and_epochs(
    changes, recomputes, passes, time_of
):
    once = parts_of(time_of())["products"] / 3
    products = parts_of(time_of(changes, recomputes=recomputes))["products"]
    assert products == pytest.approx(passes * once)


def test_ranks_share_the_work_and_gather_what_the_others_have(time_of):
    one = parts_of(time_of())
    update = time_of({TOKENS: 6}, ranks=4, ranks_of_node=4, gpu=SLOWLY_LINKED)
    four = parts_of(update)
    for name in ("products", "attention", "elementwise", "head", "optimizer"):
        assert four[name] == pytest.approx(one[name] / 4)
    assert update.micro_batches == 2  # 12 tokens a rank
    # each gathers the weights for forward and backward in bfloat16, and sums gradients in float32
    moved = 2 * (2 * 2 + 4) * PARAMETERS * 3 / 4
    computed = sum(four.values()) - four["optimizer"] - four["communication"]
    assert four["communication"] == pytest.approx(moved / 0.7e4 - computed)
    kept = parts_of(
        time_of(
            {TOKENS: 1, f"{FSDP}.keep_gathered": "true"},
            ranks=4,
            ranks_of_node=4,
            gpu=SLOWLY_LINKED,
        )
    )
    moved = (2 + 4) * PARAMETERS * 3 / 4  # once, whatever the 12 micro-batches
    assert kept["communication"] == pytest.approx(moved / 0.7e4 - computed)


def test_offloaded_shards_cross_pcie_and_step_on_the_cpu(time_of):
    offloaded = {f"{FSDP}.param_offload": "true"}
    parts, many = (
        parts_of(time_of(offloaded, qwen_7b(), GPUS["h100"], cpus_of_rank=cpus))
        for cpus in (2.0, 64.0)
    )
    assert parts["optimizer"] == pytest.approx(7.615616512 * 1.31 / 2)
    assert many["optimizer"] == pytest.approx(7.615616512 * 40 / 200)  # the memory's bandwidth
    # two gathers and one gradient of four bytes each, behind 1 ms of computation
    assert parts["communication"] == pytest.approx(12 * 7_615_616_512 / 25.6e9, rel=0.01)


def test_7b_on_eight_h100_computes_at_a_third_of_the_peak_and_offloaded_on_one_at_half_of_that(
    time_of,
):
    step = {
        "ajet.data.train_batch_size": 32,
        "ajet.rollout.num_repeat": 8,
        "ajet.trainer_common.use_kl_loss": "true",
        TOKENS: 16384,
    }
    run = {"gpu": GPUS["h100"], "size": EpisodeSize(512, 1024), "recomputes": True}
    eight = time_of(step, qwen_7b(), ranks=8, ranks_of_node=8, **run)
    alone = time_of(step | {f"{FSDP}.param_offload": "true"}, qwen_7b(), **run)
    small = time_of(step, qwen_0_5b(), **run)
    assert 0.25 < eight.mfu < 0.4 and 0.1 < alone.mfu < 0.2
    assert 0.1 < small.mfu < eight.mfu  # a vocabulary of 151,936 for 896 hidden values


def test_a_mixture_takes_the_time_of_reading_all_its_experts(time_of):
    shape, gpu = published("Qwen3-30B-A3B"), GPUS["h100"]
    update = time_of({"ajet.data.train_batch_size": 1}, shape, gpu, EpisodeSize(1000, 500))
    [products] = [part for part in update.parts if part.name == "products"]
    weights = 48 * shape.layers[0].parameters
    assert products.seconds == pytest.approx(3 * 2 * weights / (0.78 * gpu.bandwidth))
    assert "all weights 3 times" in products.note


@pytest.mark.parametrize(
    ("groups", "prompt", "reply"), [(8, 1024, 384), (4, 512, 2048), (1, 512, 4096)]
)
def test_updates_that_an_h100_made_are_within_a_tenth(groups, prompt, reply, time_of):
    results = Path(__file__).parents[2] / "benchmarks/results/gpu_first_contact.json"
    [update] = [
        part for part in json.loads(results.read_text())["parts"] if part["part"] == "update"
    ]
    step = {"ajet.data.train_batch_size": groups, "ajet.rollout.num_repeat": 8}
    planned = time_of(step, qwen_0_5b(), GPUS["h100"], EpisodeSize(prompt, reply), is_sharded=False)
    name = f"{groups}x8x({prompt}+{reply})_tokens_s"
    measured_s = planned.tokens.num / update["figures"][name]
    assert planned.seconds == pytest.approx(measured_s, rel=0.1)
