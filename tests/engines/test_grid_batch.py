"""A decode step over all groups at once, or in tiles, against one over group after group."""

import numpy as np
import pytest
import torch

from ajet.engines.grid_batch import GraphBatch, GridBatch
from ajet.engines.kernel_batch import TiledBatch
from ajet.engines.kv_cache import CacheLayout, KVBatch, KVPool

LAYERS, KV_HEADS, HEADS, WIDTH = 2, 2, 6, 64
STEPS = 70  # past two growths of 32 columns
KINDS = pytest.mark.parametrize("kind", [GridBatch, GraphBatch, TiledBatch])


def _skip_without_compiler(kind, pool):
    if kind is TiledBatch and not TiledBatch.supports(pool):
        pytest.skip("no C compiler is installed")


def _slots(groups):
    """Returns the slots of rows, from each group's shared slots and the own ones of its rows."""
    free = iter(range(1, 2000))
    rows = []
    for num_shared, own_lengths in groups:
        shared = [next(free) for _ in range(num_shared)]
        rows += [np.array(shared + [next(free) for _ in range(n)], np.int64) for n in own_lengths]
    return rows


def _pool():
    generator = torch.Generator().manual_seed(0)
    pool = KVPool(LAYERS, KV_HEADS, WIDTH, 2000, torch.float32, torch.device("cpu"))
    pool.allocate()
    for values in (pool.k, pool.v):
        values[:, :, 1:] = torch.randn(values[:, :, 1:].shape, generator=generator)
    return pool


def _step(batches, num_rows, generator):
    """Advances all batches by the same token, and returns the attention of each layer."""
    outs = [[] for _ in batches]
    for batch in batches:
        batch.column_1 = torch.tensor([batch.column])
    for layer in range(LAYERS):
        q = torch.randn(num_rows, HEADS, WIDTH, generator=generator)
        k, v = torch.randn(2, num_rows, KV_HEADS, WIDTH, generator=generator)
        for out, batch in zip(outs, batches, strict=True):
            out.append(batch.attend(layer, q, k, v))
    for batch in batches:
        batch.advance()
    return outs


@pytest.mark.parametrize(
    "groups",
    [
        [(40, [3, 3]), (40, [3, 3])],
        [(40, [3, 0, 9]), (70, [5]), (33, [1, 2])],
        [(0, [3, 4, 5])],
        [(50, [0, 0, 0])],
        [(64, [1, 1]), (0, [2, 30])],
        [(40, [1] * 25), (90, [2] * 3)],
    ],
    ids=[
        "even",
        "ragged",
        "nothing shared",
        "no own tokens",
        "one group shares nothing",
        "more queries than a tile has",
    ],
)
@KINDS
def test_it_gives_the_same_attention_as_group_after_group(kind, groups):
    slots = _slots(groups)
    _skip_without_compiler(kind, _pool())
    layout = CacheLayout.of(slots)
    batches = [each(_pool(), layout, STEPS) for each in (KVBatch, kind)]
    generator = torch.Generator().manual_seed(1)
    kept = np.array([n for n in range(len(slots)) if n % 3 != 1])
    for step in range(STEPS):
        num_rows = len(slots) if step < 20 else len(kept)
        if step == 20:
            for batch in batches:
                batch.keep(kept)
        expected, found = _step(batches, num_rows, generator)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@KINDS
def test_what_it_computed_is_saved_as_by_group_after_group(kind):
    _skip_without_compiler(kind, _pool())
    layout = CacheLayout.of(_slots([(40, [3, 0, 9]), (33, [1, 2])]))
    saved = []
    for each in (KVBatch, kind):
        pool = _pool()
        batch = each(pool, layout, 1)
        _step([batch], 5, torch.Generator().manual_seed(1))
        batch.save(np.array([0, 4]), np.array([43, 35]), np.array([1500, 1501]))
        saved.append((pool.k[:, :, 1500:1502], pool.v[:, :, 1500:1502]))
    torch.testing.assert_close(saved[0], saved[1], rtol=0, atol=0)


def test_it_fits_where_padding_at_most_doubles_the_work():
    def fits(groups):
        return GridBatch.fits(CacheLayout.of(_slots(groups)))

    assert fits([(0, [1, 2, 3])])
    assert fits([(40, [1] * 8), (100, [1] * 8)])  # 2 x 100 slots for 140
    assert not fits([(600, [1, 1]), *[(40, [1, 1])] * 4])  # 5 x 600 slots for 760
    assert not fits([(40, [1] * 20), *[(40, [1, 1])] * 4])  # 5 x 20 rows for 28
