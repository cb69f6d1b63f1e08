"""What the passes of a large model ask of a GPU, without one (scripts/attention_accounting.py)."""

import pytest

from ajet.core.update.layouts.trie import trie_of_rows
from ajet.core.update.layouts.varlen_plan import VarlenPlan
from scripts.attention_accounting import (
    BATCHES,
    META,
    count,
    decoder_of_7b,
    needed_pairs,
    planned_pairs,
)


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.name)
def test_both_passes_of_28_layers_take_at_most_3000_launches_and_no_pair_too_many(batch):
    forest = trie_of_rows(batch.rows())
    plan = VarlenPlan.of(forest, META)
    one, two = (count(decoder_of_7b(layers), forest, plan).launches for layers in (1, 2))
    assert one + 27 * (two - one) <= 3000
    assert planned_pairs(forest) == needed_pairs(forest)
