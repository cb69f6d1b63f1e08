"""Layers with a state over a tree: batches by hand, and a layer whose state is a sum."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from ajet.core.errors import ConfigError
from ajet.core.model.attention.trie import forest_of_rows, trie_of_rows
from ajet.core.model.branch_states import SegmentPlan, compute_by_segments
from ajet.core.ranks.sequence import SequenceGroup
from ajet.core.update.layouts import make_layout
from tests.core.model.families import family_model

CPU = torch.device("cpu")


def rows(*texts):
    return [np.array([ord(c) for c in text]) for text in texts]


class RunningSum(nn.Module):
    """Returns, for each token, the sum of all tokens before it and twice the one before it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, hidden_states, cache=None, attention_mask=None):
        before = cache.get_recurrent_state(0) if cache else None
        if before is None:
            before = torch.zeros(len(hidden_states), 1, hidden_states.shape[2])
        last = torch.zeros_like(hidden_states)
        if cache:
            self.calls.append(tuple(hidden_states.shape[:2]))
            width = hidden_states.shape[1]
            last = cache.update_conv_state(hidden_states.mT, 0, conv_kernel_size=2).mT[:, :width]
            cache.update_recurrent_state(before + hidden_states.sum(1, keepdim=True), 0)
        else:
            last[:, 1:] = hidden_states[:, :-1]
        return before + hidden_states.cumsum(1) - hidden_states + 2 * last


def test_segments_come_after_their_parents_and_those_without_children_are_padded():
    #   ab ── c ── d       segments of the tree, in its order:
    #      │    └─ efg     0 ab, 1 c, 2 d, 3 efg, 4 hi
    #      └─ hi
    forest = trie_of_rows(rows("abcd", "abcefg", "abhi"))
    batches = SegmentPlan(forest, CPU).batches
    found = [
        (
            each.index_SL.tolist(),
            each.is_token_SL.sum(1).tolist(),
            None if each.parents_S is None else each.parents_S.tolist(),
            each.have_children,
        )
        for each in batches
    ]
    assert found == [
        ([[0, 1]], [2], None, True),
        ([[2]], [1], [0], True),
        ([[7, 8]], [2], [0], False),
        # efg and d: 6 places for 4 tokens, which is the limit of one and a half.
        ([[4, 5, 6], [3, 3, 3]], [3, 1], [1, 1], False),
    ]


@pytest.mark.parametrize("make", [trie_of_rows, forest_of_rows])
def test_outputs_and_gradients_are_those_of_the_rows_one_by_one(make):
    texts = rows("abcd", "abcefg", "abhi", "abhijk", "xy", "abc", "x", "q")
    forest = make(texts)
    torch.manual_seed(0)
    table = torch.randn(128, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(texts), 8, 5, dtype=torch.float64)
    layer = RunningSum()
    expected = [layer(table[torch.from_numpy(text)][None])[0] for text in texts]
    compute_by_segments(layer)
    plan = SegmentPlan(forest, CPU)
    ids_N = torch.from_numpy(forest.token_ids_N)
    out_ND = layer(table[ids_N][None], cache=None, segments=plan)[0]
    found = [out_ND[torch.from_numpy(nodes)] for nodes in forest.row_nodes]

    def gradient(outputs):
        loss = sum((out * weights[n, : len(out)]).sum() for n, out in enumerate(outputs))
        return torch.autograd.grad(loss, table, retain_graph=True)[0]

    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(gradient(found), gradient(expected))


def test_a_layer_is_wrapped_once_and_computes_as_before_without_segments():
    layer = RunningSum()
    compute_by_segments(layer)
    wrapped = layer.forward
    compute_by_segments(layer)
    assert layer.forward is wrapped
    assert layer(torch.ones(1, 3, 1)).flatten().tolist() == [0, 1 + 2, 2 + 2]


def test_a_copy_of_a_model_computes_with_its_own_weights():
    model = family_model("lfm2")
    make_layout(model, "tree")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    ids = torch.arange(1, 9)[None]
    assert torch.equal(copied(ids).logits, family_model("lfm2")(ids).logits)


def test_ranks_cannot_share_a_sequence_with_a_state():
    with pytest.raises(ConfigError, match="ulysses_sequence_parallel_size=2: layers of the model"):
        make_layout(family_model("lfm2"), "tree", sequence=SequenceGroup(0, 2, None))
