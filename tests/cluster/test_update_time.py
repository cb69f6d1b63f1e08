"""The accounting of an update, by hand for a small shape, and plausible for real ones."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ajet.cluster.data_sheet import GPUS, Gpu
from ajet.cluster.episode_size import EpisodeSize
from ajet.cluster.update_time import UpdateInputs, UpdateTime
from tests.cluster.shapes import dense

SMALL = dense(8, 2, 2, 1, 4, 16, 100, tied=True)
# q and o 2 x 64, k and v 2 x 32, gate, up and down 3 x 128, two norms 16
LAYER = 128 + 64 + 384 + 16
PARAMETERS = 2 * LAYER + 100 * 8 + 8
QWEN_0_5B = dense(896, 24, 14, 2, 64, 4864, 151936, tied=True, qkv_bias=True)
QWEN_7B = dense(3584, 28, 28, 4, 128, 18944, 152064, tied=False, qkv_bias=True)
GPU = Gpu("slow", 1, flops=1e6, bandwidth=1e6, link=1e6)
SLOWLY_LINKED = replace(GPU, link=1e4)
STEP = UpdateInputs(groups=3, members=2, size=EpisodeSize(4, 6), recomputes=False)


def parts_of(inputs, shape=SMALL, gpu=GPU):
    return {part.name: part.seconds for part in UpdateTime(shape, gpu, inputs).parts}


def test_the_tree_computes_a_groups_prompt_once_and_other_layouts_for_each_episode():
    tree, packed, padded = (
        UpdateTime(SMALL, GPU, replace(STEP, layout=name)) for name in ("tree", "packed", "padded")
    )
    assert tree.tokens == 3 * (4 + 2 * 6) == 48
    assert packed.tokens == padded.tokens == 60
    # A prompt has 4 x 5 / 2 pairs; a reply's tokens attend to 4 + 1, 4 + 2, … 4 + 6: 45
    assert tree.pairs() == 3 * (10 + 2 * 45)
    assert packed.pairs() == 6 * 55 and padded.pairs() == 6 * 100


def test_a_step_without_recomputation_by_hand():
    found = parts_of(STEP)
    # one forward and two backward passes
    assert found["products"] == pytest.approx(2 * 3 * 2 * LAYER * 48 / 0.7e6)
    # 1 + 2.5 passes of 4 FLOPs x width 8
    assert found["attention"] == pytest.approx(4 * 3.5 * 2 * 8 * 300 / 0.18e6)
    # 10 x 8 + 2 x (8 + 4) + 3 x 16 values of 2 bytes
    assert found["elementwise"] == pytest.approx(3 * 48 * 2 * 152 * 2 / 0.78e6)
    # 36 trained tokens; logits forward, again, and two products backward, which read or write each
    # logit of 2 bytes 2 + 5 times
    softmax = (2 + 5) * 2 * 100 * 36 / 0.78e6
    assert found["head"] == pytest.approx(2 * 4 * 8 * 100 * 36 / 0.7e6 + softmax)
    assert found["rest"] == pytest.approx(3 * 48 * 2 * 43 * 8 * 2 / 0.78e6)
    assert found["optimizer"] == pytest.approx(40 * PARAMETERS / 0.78e6)
    assert found["communication"] == 0


def test_mfu_counts_neither_recomputation_nor_a_reference():
    plain = UpdateTime(SMALL, GPU, STEP)
    more = UpdateTime(SMALL, GPU, replace(STEP, recomputes=True, has_reference=True))
    flops = 6 * 2 * LAYER * 48 + 12 * 2 * 8 * 300 + 6 * 8 * 100 * 36
    assert plain.model_flops == more.model_flops == flops
    assert plain.mfu == pytest.approx(flops / (plain.seconds * 1e6))
    assert more.mfu < plain.mfu


def test_passes_are_added_for_recomputation_a_reference_old_logprobs_and_epochs():
    once = parts_of(STEP)["products"] / 3
    for changes, passes in [
        ({"recomputes": True}, 4),
        ({"has_reference": True}, 4),
        ({"scores_before": True}, 4),
        ({"epochs": 2, "scores_before": True}, 7),
        ({"lora_rank": 2}, 2),  # no gradient of the weights
    ]:
        assert parts_of(replace(STEP, **changes))["products"] == pytest.approx(passes * once)


def test_ranks_share_the_work_and_gather_what_the_others_have():
    ranks = replace(STEP, ranks=4, ranks_of_node=4, tokens_of_pass=6)
    one, four = parts_of(STEP), parts_of(ranks, gpu=SLOWLY_LINKED)
    for name in ("products", "attention", "elementwise", "head", "rest", "optimizer"):
        assert four[name] == pytest.approx(one[name] / 4)
    update = UpdateTime(SMALL, GPU, ranks)
    assert update.micro_batches == 2  # 12 tokens a rank
    # each gathers the weights for forward and backward in bfloat16, and sums gradients in float32
    moved = 2 * (2 * 2 + 4) * PARAMETERS * 3 / 4
    computed = sum(
        seconds for name, seconds in four.items() if name not in ("optimizer", "communication")
    )
    assert four["communication"] == pytest.approx(moved / 0.7e4 - computed)


def test_weights_that_stay_gathered_are_gathered_and_gradients_summed_once():
    ranks = replace(STEP, ranks=4, ranks_of_node=4, tokens_of_pass=1, keeps_gathered=True)
    found = parts_of(ranks, gpu=SLOWLY_LINKED)
    moved = (2 + 4) * PARAMETERS * 3 / 4  # once, whatever the 12 micro-batches
    computed = sum(found.values()) - found["optimizer"] - found["communication"]
    assert found["communication"] == pytest.approx(moved / 0.7e4 - computed)


def test_offloaded_shards_cross_pcie_and_step_on_the_cpu():
    found = parts_of(replace(STEP, offload=True, cpus_of_rank=2.0), QWEN_7B, GPUS["h100"])
    assert found["optimizer"] == pytest.approx(7.615616512 * 1.31 / 2)
    many = parts_of(replace(STEP, offload=True, cpus_of_rank=64.0), QWEN_7B, GPUS["h100"])
    assert many["optimizer"] == pytest.approx(7.615616512 * 40 / 200)  # the memory's bandwidth
    # two gathers and one gradient of four bytes each, behind 1 ms of computation
    assert found["communication"] == pytest.approx(12 * 7_615_616_512 / 25.6e9, rel=0.01)


def test_7b_on_eight_h100_computes_at_a_third_of_the_peak_and_offloaded_on_one_at_half_of_that():
    inputs = UpdateInputs(
        groups=32, members=8, size=EpisodeSize(512, 1024), ranks=8, ranks_of_node=8,
        tokens_of_pass=16384, has_reference=True,
    )  # fmt: skip
    eight = UpdateTime(QWEN_7B, GPUS["h100"], inputs)
    assert 0.25 < eight.mfu < 0.4
    alone = replace(inputs, ranks=1, ranks_of_node=1, offload=True)
    assert 0.1 < UpdateTime(QWEN_7B, GPUS["h100"], alone).mfu < 0.2
    small = UpdateTime(QWEN_0_5B, GPUS["h100"], replace(alone, offload=False))
    assert 0.1 < small.mfu < eight.mfu  # a vocabulary of 151,936 for 896 hidden values


@pytest.mark.parametrize(
    ("groups", "prompt", "reply"), [(8, 1024, 384), (4, 512, 2048), (1, 512, 4096)]
)
def test_updates_that_an_h100_made_are_within_a_tenth(groups, prompt, reply):
    results = Path(__file__).parents[2] / "benchmarks/results/gpu_first_contact.json"
    [update] = [
        part for part in json.loads(results.read_text())["parts"] if part["part"] == "update"
    ]
    inputs = UpdateInputs(
        groups=groups, members=8, size=EpisodeSize(prompt, reply), tokens_of_pass=16384,
        recomputes=False, is_sharded=False,
    )  # fmt: skip
    planned = UpdateTime(QWEN_0_5B, GPUS["h100"], inputs)
    measured_s = planned.tokens / update["figures"][f"{groups}x8x({prompt}+{reply})_tokens_s"]
    assert planned.seconds == pytest.approx(measured_s, rel=0.1)
