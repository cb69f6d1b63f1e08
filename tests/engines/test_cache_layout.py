"""Which rows of a batch share a segment, and how many of them fit a budget."""

import itertools

import numpy as np
import pytest
import torch

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.attention.trie import common_length_of_ids
from ajet.core.model.kernels.functions import kernels
from ajet.engines import kv_cache
from ajet.engines.batch import Batch
from ajet.engines.flat_forward import FlatForward
from ajet.engines.forward import BatchRow
from ajet.engines.kernel_batch import TiledBatch
from ajet.engines.kv_cache import CacheLayout
from tests.engines.test_packed_decoder import _model

SYSTEM = 50


def conversations(*groups):
    """Returns the tokens of rows: a common system prompt, a question of each group, and an own
    history of each row, all without a token in common."""
    free = iter(range(SYSTEM, 10**6))
    rows = []
    for question, histories in groups:
        asked = [*range(SYSTEM), *itertools.islice(free, question)]
        rows += [[*asked, *itertools.islice(free, history)] for history in histories]
    return [np.array(row) for row in rows]


def segments(layout):
    return [(s.first, s.last, len(s.slots)) for s in layout.segments]


def test_a_question_is_stored_once_for_its_group():
    rows = conversations((200, [0] * 8), (100, [0] * 8))
    few, small = CacheLayout.of(rows), CacheLayout.of(rows, smallest=True)
    assert segments(few) == [(0, 16, 50)] and few.own_RT.shape == (16, 200)
    assert few.num_slots(max_new_tokens=10) == 50 + 16 * (200 + 10)
    assert segments(small) == [(0, 8, 250), (8, 16, 150)] and small.own_RT.shape == (16, 0)
    assert small.num_slots(max_new_tokens=10) == 250 + 150 + 16 * 10


def test_a_row_alone_shares_all_that_it_has():
    small = CacheLayout.of(conversations((300, [0]), (0, [500, 400])), smallest=True)
    # 50 + 1.25 * 900 + 32 for the last two together, 550 + 450 + 64 for each alone
    assert segments(small) == [(0, 1, 350), (1, 2, 550), (2, 3, 450)]
    assert small.own_RT.shape == (3, 0)


def test_what_is_asked_once_is_not_stored_with_each_question():
    small = CacheLayout.of(conversations((5, [0]), (6, [0]), (7, [0])), smallest=True)
    # 50 + 1.25 * 18 + 32 = 104.5 together, 55 + 56 + 57 + 96 apart
    assert segments(small) == [(0, 3, 50)] and small.own_RT.shape == (3, 7)


@pytest.mark.parametrize("seed", range(5))
def test_no_other_cuts_take_less(seed):
    rng = np.random.default_rng(seed)
    groups = [(int(rng.integers(0, 90)), rng.integers(0, 90, 2).tolist()) for _ in range(4)]
    rows = conversations(*groups)

    def cost(cuts):
        total = 0.0
        for first, end in itertools.pairwise([0, *cuts, len(rows)]):
            group = rows[first:end]
            common = min((common_length_of_ids(group[0], row) for row in group[1:]), default=None)
            common = len(group[0]) if common is None else common
            own = sum(len(row) - common for row in group)
            total += common + kv_cache.OWN_COST * own + kv_cache.SEGMENT_COST
        return total

    every = [
        cuts
        for count in range(len(rows))
        for cuts in itertools.combinations(range(1, len(rows)), count)
    ]
    found = CacheLayout.of(rows, smallest=True)
    assert cost([s.first for s in found.segments[1:]]) == min(map(cost, every))


def test_a_wide_model_is_computed_with_the_kernels_from_the_first_batch_on():
    if kernels() is None:
        pytest.skip("no C compiler is installed")
    forward = FlatForward(_model(), max_kv_tokens=1000)
    for _ in range(2):
        row = BatchRow("e/0", tuple(range(60)), SamplingParams(), frozenset(), 70)
        with torch.inference_mode():
            forward.rebuild([row])
        assert isinstance(forward._batch, TiledBatch)
        forward.reset()


def test_as_many_rows_start_as_fit_with_what_they_share():
    forward = FlatForward(_model(), max_kv_tokens=1000)
    batch = Batch(forward, torch.device("cpu"), max_num_seqs=99, eager=False)
    prompts = [tuple(range(first, first + 201)) for first in (0, 300) for _ in range(8)]
    batch.add(
        BatchRow(f"e{n:02d}/0", prompt, SamplingParams(max_tokens=50), frozenset(), 251)
        for n, prompt in enumerate(prompts)
    )
    with torch.inference_mode():
        batch.step()
    # 200 slots of each question, and 50 new ones of each row: 200 + 200 + 12 * 50 = 1000. A whole
    # conversation for each would be 251 slots: room for three.
    assert len(batch._rows) == 12 and len(batch._queue) == 4
