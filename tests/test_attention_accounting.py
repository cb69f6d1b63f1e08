"""What the passes of a large model ask of a GPU, without one (scripts/attention_accounting.py)."""

import numpy as np
import pytest
import torch

from ajet.core.model.attention.trie import trie_of_rows
from ajet.core.model.attention.varlen_attention import VarlenPlan
from ajet.core.model.decoder import Decoder
from scripts.attention_accounting import (
    BATCHES,
    DECODES,
    META,
    PROMPTS,
    SHAPES,
    CountedGraph,
    count,
    counting,
    decode_launches,
    forward,
    model_of,
    needed_pairs,
    planned_pairs,
    prefill_launches,
)


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.name)
def test_both_passes_of_28_layers_take_at_most_3000_launches_and_no_pair_too_many(batch):
    forest = trie_of_rows(batch.rows())
    plan = VarlenPlan.of(forest, META)
    one, two = (count(Decoder(model_of("7B", layers)), forest, plan).launches for layers in (1, 2))
    assert one + 27 * (two - one) <= 3000
    assert planned_pairs(forest) == needed_pairs(forest)


@pytest.mark.parametrize("decode", DECODES, ids=lambda decode: decode.name)
def test_a_replayed_decode_step_takes_4_launches_however_many_layers_and_groups_there_are(decode):
    one, two = (decode_launches(model_of("7B", n), decode, CountedGraph()) for n in (1, 2))
    # the tokens in, positions and column in, the replay, and the mask of the next column
    assert one == two == 4
    one, two = (decode_launches(model_of("7B", n), decode, None) for n in (1, 2))
    assert two - one >= 31  # by torch alone; Triton's kernels are fewer
    if decode is DECODES[0]:
        assert two - one == 31


@pytest.mark.parametrize(
    ("shape", "passes", "launches_of_64"),
    [("0.5B", 1, 799), ("7B", 4, 2829)],  # 32,704 tokens, 32,768 and 8,192 in a pass
)
def test_prefill_launches_grow_with_layers_and_passes_and_not_with_prompts(
    shape, passes, launches_of_64
):
    def launches(layers, prompts, packed=True):
        return prefill_launches(model_of(shape, layers), prompts, packed=packed)

    one_pass = launches(1, PROMPTS[:16])  # 8,176 tokens
    assert one_pass == launches(1, PROMPTS[:2]) == launches(1, (300, 40, 700, 512))
    layer = launches(2, PROMPTS[:16]) - one_pass
    one, two = (launches(layers, PROMPTS) for layers in (1, 2))
    assert one <= passes * one_pass and two - one <= passes * layer
    total = one + (SHAPES[shape]["num_hidden_layers"] - 1) * (two - one)
    assert total == launches_of_64


def kept_bytes(num_layers, num_tokens):
    """The bytes that a forward pass keeps for the backward pass, without the weights."""
    decoder, forest = Decoder(model_of("7B", num_layers)), trie_of_rows([np.arange(num_tokens)])
    kept = {}

    def keep(tensor):
        whole = tensor if tensor._base is None else tensor._base  # a view is kept with its whole
        if not isinstance(whole, torch.nn.Parameter):
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    plan = VarlenPlan.of(forest, META)
    with counting(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(decoder, forest, plan)
    return sum(kept.values())


def test_a_layer_keeps_what_the_plan_counts_and_the_log_sum_exps():
    # ajet/plan/model_shape.py counts it: 4 x 3584 + 2 x 3584 + 2 x 512 + 4 x 18944
    # values of bfloat16 for each token; and a float32 for each of 28 heads
    found = kept_bytes(2, num_tokens=100) - kept_bytes(1, num_tokens=100)
    assert found == 100 * (2 * 98_304 + 4 * 28)
