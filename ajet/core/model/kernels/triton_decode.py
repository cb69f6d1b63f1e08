"""A decode step on a CUDA GPU in Triton: attention, and the draw of the next tokens. They do the
same as `attend` and `draw` of the CPU (functions.py) but for rounding. A row's result does not
depend on the other rows, except that keys of few rows are cut into more parts. The column is read
from a tensor, so a captured step (step_graph.py) stays valid.
"""
# pyright: reportInvalidTypeForm=false
# To pyright, which reads this without Triton, tl.constexpr is a variable.

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton")
tl: Any = import_module("triton.language")

# Fixed: tuning at run time would take seconds at the start of a run.
QUERIES = 16  # rows of the smallest matrix product: the most query heads of a key head
# Size of a tile of keys, and tiles in flight. With those of values they are 64 KB at most: the
# smallest GPUs have room for a program, and an H100's SM for three.
TILE_BYTES, STAGES = 1 << 13, 4
# Keys are cut into parts where rows and key heads make fewer programs: two for each SM of an H100.
NUM_PROGRAMS = 256
MOST_PARTS, MIN_PART = 32, 128  # the most parts, a power of two; the least keys of a part
LOG2_E = 1.4426950408889634
BATCH_SIZES = (
    *("q_stride", "k_stride", "v_stride", "rows", "columns", "num_shared_slots", "num_parts"),
)
"""Sizes that change with every batch: not compiled again for multiples of 16."""
BLOCK, BLOCKS = 256, 16  # tokens of a block of `draw`, as on the CPU; blocks that a program sums


def num_parts(rows: int, kv_heads: int, num_keys: int) -> int:
    """Returns the number of parts for rows with at most `num_keys` keys."""
    return max(1, min(NUM_PROGRAMS // (rows * kv_heads), num_keys // MIN_PART, MOST_PARTS))


def attend(
    qkv: tuple[Tensor, Tensor, Tensor],
    row_kv: tuple[Tensor, Tensor],
    shared: tuple[Tensor, Tensor],
    table_R3: Tensor,
    column_1: Tensor,
    num_parts: int,
) -> Tensor:
    """Writes the new keys and values ``[rows, kv_heads, d]`` to a column of `row_kv` ``[kv_heads,
    rows, columns, d]``, and returns the attention ``[rows, heads, d]``.

    `table_R3` (int32) has for each row its first column in `row_kv`, and the first and the number
    of its slots in `shared` ``[kv_heads, slots, d]``. A row sees these slots, and its columns up to
    `column_1` (int64), the new one."""
    q, k, v = (t if t.stride()[1:] == (t.shape[2], 1) else t.contiguous() for t in qkv)
    kv_heads, rows, columns, dim = row_kv[0].shape
    heads = q.shape[1]
    out = q.new_empty(q.shape)
    # Parts write unnormalised sums, with the maximum and the total of their softmax.
    is_whole = num_parts == 1
    sums = out if is_whole else q.new_empty(rows * heads, num_parts, dim, dtype=torch.float32)
    stats = out if is_whole else q.new_empty(rows * heads, num_parts, 2, dtype=torch.float32)
    block = TILE_BYTES // (dim * q.element_size())
    with torch.cuda.device_of(q):
        _attend[(rows, kv_heads, num_parts)](
            *(q, k, v, *row_kv, *shared, table_R3, column_1, out, sums, stats),
            *(q.stride(0), k.stride(0), v.stride(0)),
            *(rows, columns, shared[0].shape[1], num_parts, dim**-0.5 * LOG2_E),
            *(heads // kv_heads, QUERIES, dim, block, STAGES, is_whole),
            num_warps=4,
        )
        if not is_whole:
            _join_parts[(rows * heads,)](sums, stats, out, num_parts, dim, MOST_PARTS, num_warps=4)
    return out


def draw(logits: Tensor, scales: Tensor, u: Tensor, greedy: Tensor) -> Tensor:
    """Draws a token of each row of ``logits [R, V]`` times ``scales [R]`` in float32: the first
    whose cumulative probability exceeds ``u [R]`` (float64), or in `greedy` rows the first of the
    largest. Returns, in one tensor ``[3, R]`` of float64, the tokens, their log-probabilities, and
    the rows' sums of exponentials, which are not finite where a logit is not."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, size = logits.shape
    num_blocks = -(-size // BLOCK)
    maxima, sums = logits.new_empty(2, rows, num_blocks, dtype=torch.float32)
    out = logits.new_empty(3, rows, dtype=torch.float64)
    with torch.cuda.device_of(logits):
        _sum_blocks[(rows, -(-num_blocks // BLOCKS))](
            *(logits, scales, maxima, sums, logits.stride(0), size, num_blocks, BLOCKS, BLOCK),
            num_warps=4,
        )
        _draw[(rows,)](
            *(logits, scales, u, greedy, maxima, sums, out),
            *(rows, logits.stride(0), size, num_blocks, triton.next_power_of_2(num_blocks), BLOCK),
            num_warps=4,
        )
    return out


@triton.jit
def _attend_keys(
    q_tile,
    k,
    v,
    first,
    end,
    largest,
    total,
    weighted,
    scale,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Continues an online softmax over the contiguous keys ``first .. end - 1``. `weighted` is the
    sum of exp2(score - largest) * value, `total` that of the weights."""
    keys = tl.arange(0, KEYS)
    dims = tl.arange(0, DIM)
    for at in tl.range(first, end, KEYS, num_stages=NUM_STAGES):
        inside = at + keys < end
        places = (at + keys)[:, None] * DIM + dims[None, :]
        k_tile = tl.load(k + places, mask=inside[:, None], other=0.0)
        v_tile = tl.load(v + places, mask=inside[:, None], other=0.0)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        # Earlier sums are scaled down to the new maximum.
        risen = tl.maximum(largest, tl.max(scores, 1))
        kept = tl.exp2(largest - risen)
        weights = tl.exp2(scores - risen[:, None])
        total = total * kept + tl.sum(weights, 1)
        weighted = weighted * kept[:, None] + tl.dot(
            weights.to(v_tile.dtype), v_tile, input_precision="ieee"
        )
        largest = risen
    return largest, total, weighted


@triton.jit(do_not_specialize=BATCH_SIZES)
def _attend(
    q,
    k,
    v,
    own_k,
    own_v,
    shared_k,
    shared_v,
    table,
    column,
    out,
    sums,
    stats,
    q_stride,
    k_stride,
    v_stride,
    rows,
    columns,
    num_shared_slots,
    num_parts,
    scale,
    GROUP: tl.constexpr,
    ROWS_OF_Q: tl.constexpr,
    DIM: tl.constexpr,
    KEYS: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Attends to one part of a row's keys with the queries of one key head.

    Keys before the new token are counted from the first shared slot on; part 0 also has the new
    token, with which its softmax begins. `scale` includes log2(e), for exp2."""
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    wide_row = row.to(tl.int64)  # products of rows and strides may exceed 32 bits
    queries = tl.arange(0, ROWS_OF_Q)
    dims = tl.arange(0, DIM)
    is_query = queries < GROUP
    heads_of_q = head * GROUP + queries
    q_tile = tl.load(
        q + wide_row * q_stride + heads_of_q[:, None] * DIM + dims[None, :],
        mask=is_query[:, None],
        other=0.0,
    )
    new_k = tl.load(k + wide_row * k_stride + head * DIM + dims)
    new_v = tl.load(v + wide_row * v_stride + head * DIM + dims)
    start = tl.load(table + row * 3)
    first_slot = tl.load(table + row * 3 + 1)
    num_shared = tl.load(table + row * 3 + 2)
    now = tl.load(column).to(tl.int32)

    row_start = (head.to(tl.int64) * rows + row) * columns * DIM
    is_first = part == 0
    if is_first:
        tl.store(own_k + row_start + now.to(tl.int64) * DIM + dims, new_k)
        tl.store(own_v + row_start + now.to(tl.int64) * DIM + dims, new_v)
    score = tl.sum(q_tile.to(tl.float32) * new_k.to(tl.float32)[None, :], 1) * scale
    largest = tl.where(is_first, score, float("-inf"))
    total = tl.zeros([ROWS_OF_Q], tl.float32) + tl.where(is_first, 1.0, 0.0)
    weighted = tl.zeros([ROWS_OF_Q, DIM], tl.float32)
    weighted += tl.where(is_first, new_v.to(tl.float32), 0.0)[None, :]

    # This part's range of keys, whole tiles except at the end. It may have shared keys, columns of
    # the row, or both; an empty range is skipped by the loop.
    num_keys = num_shared + now - start
    length = tl.cdiv(tl.cdiv(num_keys, num_parts), KEYS) * KEYS
    first = part * length
    end = tl.minimum(first + length, num_keys)
    shared = (head.to(tl.int64) * num_shared_slots + first_slot) * DIM
    largest, total, weighted = _attend_keys(
        q_tile,
        shared_k + shared,
        shared_v + shared,
        first,
        tl.minimum(end, num_shared),
        largest,
        total,
        weighted,
        scale,
        DIM,
        KEYS,
        NUM_STAGES,
    )
    largest, total, weighted = _attend_keys(
        q_tile,
        own_k + row_start,
        own_v + row_start,
        start + tl.maximum(first - num_shared, 0),
        start + end - num_shared,
        largest,
        total,
        weighted,
        scale,
        DIM,
        KEYS,
        NUM_STAGES,
    )

    at = wide_row * (tl.num_programs(1) * GROUP) + heads_of_q
    if IS_WHOLE:
        tl.store(
            out + at[:, None] * DIM + dims[None, :],
            (weighted / total[:, None]).to(out.dtype.element_ty),
            mask=is_query[:, None],
        )
    else:
        at = at * num_parts + part
        tl.store(sums + at[:, None] * DIM + dims[None, :], weighted, mask=is_query[:, None])
        tl.store(stats + at * 2, largest, mask=is_query)
        tl.store(stats + at * 2 + 1, total, mask=is_query)


@triton.jit(do_not_specialize=BATCH_SIZES)
def _join_parts(sums, stats, out, num_parts, DIM: tl.constexpr, MOST: tl.constexpr):
    """Joins the parts of one row and head. Part 0 is never empty, so the maximum is finite."""
    index = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, MOST)
    dims = tl.arange(0, DIM)
    inside = numbers < num_parts
    at = index * num_parts + numbers
    largest = tl.load(stats + at * 2, mask=inside, other=float("-inf"))
    totals = tl.load(stats + at * 2 + 1, mask=inside, other=0.0)
    weights = tl.exp2(largest - tl.max(largest, 0))
    weighted = tl.load(sums + at[:, None] * DIM + dims[None, :], mask=inside[:, None], other=0.0)
    joined = tl.sum(weighted * weights[:, None], 0) / tl.sum(totals * weights, 0)
    tl.store(out + index * DIM + dims, joined.to(out.dtype.element_ty))


@triton.jit
def _sum_blocks(
    logits,
    scales,
    maxima,
    sums,
    stride,
    size,
    num_blocks,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Finds the largest score of each block, and the sum of ``exp(score - largest)``."""
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    tokens = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    scores = tl.load(logits + row * stride + tokens, mask=tokens < size, other=float("-inf"))
    scores = scores.to(tl.float32) * tl.load(scales + row)
    largest = tl.max(scores, 1)
    # A block of minus infinities has weight 0; -inf - (-inf) would be NaN.
    weights = tl.exp(scores - tl.where(largest == float("-inf"), 0.0, largest)[:, None])
    at = row * num_blocks + blocks
    tl.store(maxima + at, largest, mask=blocks < num_blocks)
    tl.store(sums + at, tl.sum(weights, 1), mask=blocks < num_blocks)


@triton.jit(do_not_specialize=BATCH_SIZES)
def _draw(
    logits,
    scales,
    u,
    greedy,
    maxima,
    sums,
    out,
    rows,
    stride,
    size,
    num_blocks,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Chooses a row's block by the blocks' sums, then the token within the block.

    Only weights above 0 are chosen: a GPU's cumulative sums, which are not computed from left to
    right, may rise where nothing is added. If none exceeds the target, the last one is chosen."""
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(scales + row)
    is_greedy = tl.load(greedy + row) != 0
    blocks = tl.arange(0, PADDED)
    at = row * num_blocks + blocks
    maxima_B = tl.load(maxima + at, mask=blocks < num_blocks, other=float("-inf"))
    sums_B = tl.load(sums + at, mask=blocks < num_blocks, other=0.0)
    largest = tl.max(maxima_B, 0)
    masses = tl.exp(maxima_B - largest).to(tl.float64) * sums_B.to(tl.float64)
    total = tl.sum(masses, 0)
    target = tl.load(u + row) * total
    exceeds = (tl.cumsum(masses, 0) > target) & (masses > 0.0)
    holds = tl.where(is_greedy, maxima_B == largest, exceeds)
    last = tl.max(tl.where(masses > 0.0, blocks, 0), 0)
    block = tl.minimum(tl.min(tl.where(holds, blocks, PADDED), 0), last)

    # The same weights as in the block's sum, so not all are 0 if the sum is not.
    here = tl.load(maxima + row * num_blocks + block)
    before = tl.sum(tl.where(blocks < block, masses, 0.0), 0)
    inside = (target - before) / tl.exp(here - largest).to(tl.float64)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(logits + row * stride + tokens, mask=tokens < size, other=float("-inf"))
    scores = scores.to(tl.float32) * scale
    weights = tl.exp(scores - here).to(tl.float64)
    exceeds = (tl.cumsum(weights, 0) > inside) & (weights > 0.0)
    holds = tl.where(is_greedy, scores == largest, exceeds)
    last = tl.max(tl.where(weights > 0.0, tokens, 0), 0)
    token = tl.minimum(tl.min(tl.where(holds, tokens, size), 0), last)

    score = tl.load(logits + row * stride + token).to(tl.float32) * scale
    tl.store(out + row, token.to(tl.float64))
    tl.store(out + rows + row, (score - largest - tl.log(total.to(tl.float32))).to(tl.float64))
    tl.store(out + 2 * rows + row, total)
