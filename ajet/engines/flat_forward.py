"""The fast forward pass: one flat list of tokens, with keys and values shared by a prefix cache.

       weights                      prefill              attention of a decode step
CPU    packed_decoder.py if large   chunks (below)       kernel_batch.py
CUDA   copied_decoder.py if small   packed_prefill.py    kernel_batch.py, step_graph.py
else   the policy's modules         chunks (below)       grid_batch.py, kv_cache.py
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ajet.core.images.image_ids import image_spans
from ajet.core.model.attention.varlen_attention import VarlenKernel, varlen_kernel_for
from ajet.core.model.decoder import Attend
from ajet.core.model.flat_decoder import FlatDecoder, flat_decoder
from ajet.core.model.kernels.functions import Kernels, attention_kernels_for
from ajet.core.model.kernels.segments import AttentionSegment, SegmentTable
from ajet.core.model.routers import Routers
from ajet.core.model.routes import Routes
from ajet.core.model.vision import vision_of
from ajet.engines.copied_decoder import CopiedDecoder, JoinedDecoder
from ajet.engines.forward import BatchRow
from ajet.engines.grid_batch import GraphBatch, GridBatch
from ajet.engines.kernel_batch import CudaBatch, TiledBatch
from ajet.engines.kv_cache import (
    MASKED,
    CacheLayout,
    GatheredCache,
    Ids,
    KVBatch,
    KVPool,
    attend_shared,
)
from ajet.engines.packed_decoder import PackedDecoder, PackedWeights
from ajet.engines.packed_prefill import PackedPrefill, pass_tokens, prefill_passes
from ajet.engines.prefix_cache import PrefixCache, PrefixNode, path, path_slots
from ajet.engines.step_graph import Graph, StepGraph

MAX_CHUNK = 512
"""The largest number of tokens of a chunk, to limit the memory of attention scores."""
MAX_SCORES, MAX_TOKENS = 500_000, 2048
"""The attention scores (tokens x heads x columns) that are computed at a time; with compiled
kernels, which store no scores, the tokens."""


@dataclass(frozen=True)
class PrefillChunk:
    """New `tokens` to compute and their `slots`, and the slots of the tokens `before` them."""

    before: Ids
    tokens: Ids
    slots: Ids


class FlatForward:
    """A `Forward` of a model with a flat decoder."""

    def __init__(
        self,
        model: nn.Module,
        max_kv_tokens: int,
        *,
        graph: Graph | None = None,
        packs: bool = True,
        routers: Routers | None = None,
        varlen_for: Callable[[Tensor], VarlenKernel | None] = varlen_kernel_for,
    ) -> None:
        """`graph` captures and replays decode steps. `packs` allows `PackedWeights` for models that
        `PackedDecoder` refuses. `routers` record the experts of each row. `varlen_for`
        returns the attention kernel of `PackedPrefill` for keys ``[kv_heads, slots, d]``, or None:
        new tokens are then computed in chunks."""
        self._decoder: FlatDecoder
        self._packed: CopiedDecoder | PackedWeights | None = None  # what has copies of weights
        if PackedDecoder.supports(model):
            self._decoder = self._packed = PackedDecoder(model)
        elif JoinedDecoder.supports(model):
            self._decoder = self._packed = JoinedDecoder(model)
        else:
            self._decoder = flat_decoder(model)
            if packs and PackedWeights.supports(model):
                self._packed = PackedWeights(model)
        weight = next(model.parameters())
        # Where products are fast, a dozen calls for each segment cost more than padding.
        self._prefers_grid = self._packed is not None or weight.device.type != "cpu"
        self._pool = KVPool(
            self._decoder.num_layers,
            self._decoder.num_kv_heads,
            self._decoder.head_dim,
            max_kv_tokens,
            weight.dtype,
            weight.device,
        )
        self._attention_kernels = attention_kernels_for(self._pool.k)
        self._attends_on_cuda = CudaBatch.supports(
            self._pool, self._decoder.num_heads // self._decoder.num_kv_heads
        )
        self._max_kv_tokens = max_kv_tokens
        self._cache = PrefixCache(max_kv_tokens)
        self._version = 0
        self._batch: KVBatch | None = None
        self._routers = routers
        vision = vision_of(model)
        self._axes_of = vision.positions if vision is not None and vision.has_axes else None
        self._both_ways = vision is not None and vision.sees_both_ways
        self._rows: list[BatchRow] = []
        self._graph = None if graph is None else StepGraph(graph, weight.device)
        self._varlen = varlen_for(self._pool.k[0])
        config: Any = model.config
        self._pass_tokens = pass_tokens(
            config.hidden_size, config.intermediate_size, weight.itemsize
        )

    @property
    def num_replayed(self) -> int:
        return 0 if self._graph is None else self._graph.num_replayed

    def reset(self) -> None:
        self._cache.clear()
        self._batch, self._rows = None, []
        self._pool.free()
        self.free_weights()

    def renew(self, version: int, oldest: int | None) -> None:
        self._version = version
        if oldest is None:
            self.reset()
        else:
            self._cache.forget(oldest)
            self.free_weights()

    def free_weights(self) -> None:
        if self._packed is not None:
            self._packed.free()
        if self._graph is not None:
            self._graph.free()

    def release(self, episode_ids: Iterable[str]) -> None:
        self._cache.release(episode_ids)

    def rebuild(self, rows: Sequence[BatchRow]) -> int:
        if self._packed is not None:
            self._packed.pack()
        self._pool.allocate()
        self._cache.tick()
        # Without the last token, which the first step feeds. All rows are inserted before any path
        # is read: inserting may split the nodes of earlier rows.
        tails = []
        for row in rows:
            tail = self._cache.insert(np.array(row.ids[:-1], np.int64))
            assert tail is not None, "the engine admits no more rows than the pool holds"
            tails.append(tail)
        if self._axes_of is not None:
            for row, tail in zip(rows, tails, strict=True):
                positions_3T = self._axes_of(row.ids)
                self._axes[path_slots(tail)] = positions_3T[:, :-1].T
                row.position_shift = int(positions_3T[0, -1]) - (len(row.ids) - 1)
        paths = [path(tail) for tail in tails]
        num_computed = self._compute(paths)
        for row, nodes in zip(rows, paths, strict=True):
            if not row.logprobs:
                old = (node for node in nodes if node.version != self._version)
                row.num_old_keys = sum(len(node.tokens) for node in old)
        self._batch = None  # frees its memory before the new batch is allocated
        batch_class, layout = self._layout([path_slots(tail) for tail in tails])
        self._batch, self._rows = batch_class(self._pool, layout, _room(rows)), list(rows)
        if self._routers is not None:
            for row, tail in zip(rows, tails, strict=True):
                row.add_routes(self._routes[path_slots(tail)], 0)
        if self._graph is not None:
            self._graph.forget()
        return num_computed

    def fits(self, rows: Sequence[BatchRow]) -> bool:
        # A cheap bound first: no layout of them is larger than this.
        if 3 * len(rows) * max(row.max_len for row in rows) <= self._max_kv_tokens:
            return True
        # A layout only depends on common prefixes, so tokens stand for slots here.
        tokens = sorted(row.ids[:-1] for row in rows)
        _, layout = self._layout([np.array(ids, np.int64) for ids in tokens])
        return layout.num_slots(_room(rows)) <= self._max_kv_tokens

    def _layout(self, slots_R: list[Ids]) -> tuple[type[KVBatch], CacheLayout]:
        """Returns the class and the layout of a batch for rows given by their slots (or tokens)."""
        if self._attends_on_cuda:
            return CudaBatch, CacheLayout.of(slots_R, smallest=True)
        if self._graph is not None:
            return GraphBatch, GraphBatch.layout_of(slots_R)
        if TiledBatch.supports(self._pool):
            return TiledBatch, CacheLayout.of(slots_R, smallest=True)
        if self._prefers_grid:
            for smallest in (True, False):
                layout = CacheLayout.of(slots_R, smallest=smallest)
                if GridBatch.fits(layout):
                    return GridBatch, layout
        return KVBatch, CacheLayout.of(slots_R)

    def decode(self, tokens_R: Tensor, positions_R: Ids) -> Tensor:
        batch, graph = self._batch, self._graph
        assert batch is not None

        def compute(tokens: Tensor, places: Tensor) -> Tensor:
            positions, batch.column_1 = places.split((batch.num_rows, 1))
            return self._decoder.logits(self._compute_tokens(tokens, positions, batch.attend))

        rotary_R = positions_R
        if self._axes_of is not None:  # sampled tokens have the same position on each axis
            rotary_R = positions_R + np.array([row.position_shift for row in self._rows])
        places = np.append(rotary_R, batch.column)  # one upload for both
        if graph is None:
            logits = compute(tokens_R.long().to(self._pool.k.device), self._pool.tensor(places))
        else:
            logits = graph.step(tokens_R, places, compute)
        if self._routers is not None:
            for row, position, routes in zip(
                self._rows, positions_R, self._last_routes[:, None], strict=True
            ):
                row.add_routes(routes, int(position))
        num_columns = batch.num_columns
        batch.advance()
        if graph is not None and batch.num_columns != num_columns:
            graph.forget()  # columns were added: the captured addresses are stale
        return logits

    def keep(self, index: Ids) -> None:
        assert self._batch is not None
        if self._graph is not None:
            self._graph.forget()
        self._rows = [self._rows[number] for number in index]
        if len(index):
            self._batch.keep(index)
        else:
            self._batch = None

    def store(self, rows: Sequence[tuple[int, BatchRow]]) -> None:
        """Copies keys and values of rows, given with their numbers in the batch, to the prefix
        cache, as long as it has room."""
        if self._batch is None:
            return
        numbers, positions, slots = [], [], []
        for number, row in rows:
            tail = self._cache.insert(np.array(row.ids[:-1], np.int64))
            if tail is None:
                continue
            if not tail.computed:
                # The missing nodes are the end of the path, the positions first ..
                # len(row.ids) - 2. Their keys and values must be in the row's own part: the batch
                # cannot save those of a segment.
                missing = [node for node in path(tail) if not node.computed]
                first = len(row.ids) - 1 - sum(len(node.tokens) for node in missing)
                if first < self._batch.num_shared(number):  # the row's beginning was evicted
                    if not tail.children:
                        self._cache.remove(tail)
                    continue
                for node in missing:
                    node.computed, node.version = True, row.policy_version
                missing_slots = np.concatenate([node.slots for node in missing])
                numbers.append(np.full(len(missing_slots), number))
                positions.append(np.arange(first, len(row.ids) - 1))
                slots.append(missing_slots)
                if row.routes:
                    routes = np.concatenate(row.routes)
                    self._routes[missing_slots] = routes[first : len(row.ids) - 1]
            if row.finish_reason is not None:
                self._cache.mark_tail(row.episode_id, tail)
        if slots:
            self._batch.save(
                np.concatenate(numbers), np.concatenate(positions), np.concatenate(slots)
            )

    def _compute(self, paths: list[list[PrefixNode]]) -> int:
        """Computes the nodes that lack keys and values. Returns the number of tokens."""
        if self._varlen is None or self._both_ways:
            num_tokens = self._compute_chunks(paths)
        else:
            num_tokens = 0
            for rows in prefill_passes(paths, self._pass_tokens):
                prefill = PackedPrefill(self._pool, rows, self._varlen)
                self._fill(prefill.slots_N, prefill.tokens_N, prefill.positions_N, prefill.attend)
                num_tokens += len(prefill.tokens_N)
        for node in {node for nodes in paths for node in nodes if not node.computed}:
            node.computed, node.version = True, self._version
        return num_tokens

    def _compute_chunks(self, paths: list[list[PrefixNode]]) -> int:
        """Computes the nodes in chunks, parents before children."""
        # Level i has the i-th missing chunk of each path, keyed by its first slot: paths that share
        # a chunk have it on the same level, and it is computed once.
        levels: list[dict[int, PrefillChunk]] = []
        for nodes in paths:
            for level, chunk in enumerate(_missing_chunks(nodes, self._both_ways)):
                if level == len(levels):
                    levels.append({})
                levels[level].setdefault(int(chunk.slots[0]), chunk)
        for chunks in levels:
            for group in self._group_chunks(list(chunks.values())):
                self._prefill(group)
        return sum(len(chunk.tokens) for chunks in levels for chunk in chunks.values())

    def _group_chunks(self, chunks: list[PrefillChunk]) -> Iterator[list[PrefillChunk]]:
        """Yields lists of neighbouring chunks to compute together, within the limits."""

        def is_too_large(chunks: list[PrefillChunk]) -> bool:
            lengths = [len(chunk.tokens) for chunk in chunks]
            if self._attention_kernels is not None:
                return sum(lengths) > MAX_TOKENS
            # The scores of the padded batch.
            columns = max(len(chunk.before) + len(chunk.tokens) for chunk in chunks)
            return len(chunks) * max(lengths) * self._decoder.num_heads * columns > MAX_SCORES

        group: list[PrefillChunk] = []
        for chunk in chunks:
            if group and is_too_large([*group, chunk]):
                yield group
                group = []
            group.append(chunk)
        if group:
            yield group

    def _prefill(self, chunks: list[PrefillChunk]) -> None:
        """Writes the keys and values of these chunks' tokens to the pool."""
        kernels = self._attention_kernels
        attention = (
            PrefillAttention(self._pool, chunks)
            if kernels is None
            else KernelPrefillAttention(self._pool, chunks, self._decoder, kernels)
        )
        attend = attention.attend
        if self._both_ways:
            attend = BothWaysAttention(self._pool, chunks, attend).attend
        slots_N = np.concatenate([chunk.slots for chunk in chunks])
        tokens_N = self._pool.tensor(np.concatenate([chunk.tokens for chunk in chunks]))
        positions = [np.arange(len(chunk.tokens)) + len(chunk.before) for chunk in chunks]
        self._fill(slots_N, tokens_N, self._pool.tensor(np.concatenate(positions)), attend)

    def _fill(self, slots_N: Ids, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> None:
        """Computes what the cache keeps of new tokens: keys and values, which `attend` writes, and
        their experts."""
        if self._axes_of is not None:
            positions_N = self._pool.tensor(self._axes[slots_N].T)
        self._compute_tokens(tokens_N, positions_N, attend)
        if self._routers is not None:
            self._routes[slots_N] = self._last_routes

    def _compute_tokens(self, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """Returns the final hidden states, and records the experts."""
        if self._routers is None:
            return self._decoder(tokens_N, positions_N, attend)
        self._routers.begin()
        hidden_ND = self._decoder(tokens_N, positions_N, attend)
        self._last_routes = self._routers.compact(self._routers.end())
        return hidden_ND

    @cached_property
    def _axes(self) -> Ids:
        """The positions ``[slots, 3]`` of the cached tokens, where positions have three axes."""
        return np.zeros((self._max_kv_tokens + 1, 3), np.int64)

    @cached_property
    def _routes(self) -> Routes:
        """The experts of the cached tokens, by slot. What is never written takes no memory."""
        assert self._routers is not None
        shape = (self._max_kv_tokens + 1, self._routers.num_layers, self._routers.top_k)
        return np.zeros(shape, self._routers.dtype)


def _room(rows: Sequence[BatchRow]) -> int:
    """Returns the largest number of tokens that may still be sampled for a row."""
    return max(row.max_len - len(row.ids) for row in rows)


class PrefillAttention:
    """Attention of several chunks' new tokens over the tokens before them and among themselves.

    It works like a decode step with several queries per row. The queries are also right-aligned, so
    query c sees the own columns up to ``c + columns - queries``.
    """

    def __init__(self, pool: KVPool, chunks: list[PrefillChunk]) -> None:
        self._pool = pool
        layout = CacheLayout.of([np.concatenate((chunk.before, chunk.slots)) for chunk in chunks])
        self._gathered = GatheredCache(pool, layout)
        self._segments = layout.segments
        lengths = np.array([len(chunk.tokens) for chunk in chunks])
        self._num_rows, self._num_queries = len(chunks), int(lengths.max())
        # Token n of the flat list is query `_queries_N[n]` of row `_rows_N[n]`.
        aligned = [np.arange(self._num_queries - n, self._num_queries) for n in lengths]
        self._slots_N = pool.tensor(np.concatenate([chunk.slots for chunk in chunks]))
        self._rows_N = pool.tensor(np.repeat(np.arange(len(chunks)), lengths))
        self._queries_N = pool.tensor(np.concatenate(aligned))
        # The mask to add to the own scores, [1, rows, queries, 1, columns]: padding on the left of
        # a row is hidden, and so are columns after the query.
        columns = layout.own_RT.shape[1]
        column = np.arange(columns)
        last = np.arange(self._num_queries) + columns - self._num_queries
        seen = (column >= layout.start_R[:, None, None]) & (column <= last[:, None])
        mask = np.where(seen, 0.0, MASKED).astype(np.float32)
        self._mask = pool.tensor(mask).to(pool.k.dtype)[None, :, :, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the attention of one layer for ``q [N, heads, d]``."""
        # Written first, so that the new tokens are gathered with those before them.
        self._pool.write(layer, self._slots_N, k, v)
        k_pool, v_pool = self._pool.k[layer], self._pool.v[layer]
        gathered = self._gathered
        heads, d = k.shape[1], q.shape[2]
        padded = q.new_zeros(heads, self._num_rows, self._num_queries, q.shape[1] // heads, d)
        padded[:, self._rows_N, self._queries_N] = q.view(len(q), heads, -1, d).transpose(0, 1)
        out = attend_shared(
            padded,
            (gathered.own(k_pool), gathered.own(v_pool)),
            (gathered.shared(k_pool), gathered.shared(v_pool)),
            self._segments,
            self._mask,
        )
        return out[:, self._rows_N, self._queries_N].transpose(0, 1).reshape(q.shape)


class KernelPrefillAttention:
    """`PrefillAttention` with the compiled kernels, without padding."""

    def __init__(
        self, pool: KVPool, chunks: list[PrefillChunk], decoder: FlatDecoder, kernels: Kernels
    ) -> None:
        self._pool, self._kernels = pool, kernels
        self._slots_N = pool.tensor(np.concatenate([chunk.slots for chunk in chunks]))
        # The slots of all keys, chunk after chunk; a chunk's queries are its last keys.
        self._seen_M = pool.tensor(np.concatenate([s for c in chunks for s in (c.before, c.slots)]))
        segments: list[AttentionSegment] = []
        query = key = 0
        for chunk in chunks:
            num_queries, num_keys = len(chunk.tokens), len(chunk.before) + len(chunk.tokens)
            segments.append(AttentionSegment(query, num_queries, key, num_keys))
            query, key = query + num_queries, key + num_keys
        self._table = SegmentTable.of(segments, decoder.num_heads // decoder.num_kv_heads)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the attention of one layer for ``q [N, heads, d]``."""
        self._pool.write(layer, self._slots_N, k, v)
        keys, values = (
            cached[layer].index_select(1, self._seen_M).transpose(0, 1)
            for cached in (self._pool.k, self._pool.v)
        )
        return self._kernels.attention(q, keys, values, self._table)[0]


class BothWaysAttention:
    """Attention in which the tokens of an image also see those of it that come later (Gemma 3)."""

    def __init__(self, pool: KVPool, chunks: list[PrefillChunk], attend: Attend) -> None:
        self._pool, self._attend = pool, attend
        # Of each image: its tokens in the flat list, and the slots that they see.
        self._images: list[tuple[slice, Tensor]] = []
        at = 0
        for chunk in chunks:
            for start, stop in image_spans(chunk.tokens):
                seen = pool.tensor(np.concatenate((chunk.before, chunk.slots[:stop])))
                self._images.append((slice(at + start, at + stop), seen))
            at += len(chunk.tokens)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the attention of one layer for ``q [N, heads, d]``."""
        out = self._attend(layer, q, k, v)
        group = q.shape[1] // k.shape[1]
        for image, seen in self._images:
            keys, values = (
                cached[layer].index_select(1, seen).repeat_interleave(group, dim=0)
                for cached in (self._pool.k, self._pool.v)
            )
            attended = scaled_dot_product_attention(q[image].transpose(0, 1), keys, values)
            out[image] = attended.transpose(0, 1)
        return out


def _missing_chunks(nodes: list[PrefixNode], both_ways: bool) -> Iterator[PrefillChunk]:
    """Yields the tokens of a path without keys and values, in chunks of `MAX_CHUNK`, or a few more
    where an image sees itself both ways: it is not divided."""
    before = np.empty(0, np.int64)
    for node in nodes:
        if not node.computed:
            images = image_spans(node.tokens) if both_ways else []
            at = 0
            while at < len(node.tokens):
                end = at + MAX_CHUNK
                end = next((stop for start, stop in images if start < end < stop), end)
                context = np.concatenate((before, node.slots[:at]))
                yield PrefillChunk(context, node.tokens[at:end], node.slots[at:end])
                at = end
        before = np.concatenate((before, node.slots))
