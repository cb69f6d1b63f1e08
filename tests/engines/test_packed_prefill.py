"""Prefill of all new tokens as one flat list, by a stand-in for CUDA's kernel, in float64."""

import numpy as np
import pytest
import torch

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.decoder import Decoder
from ajet.core.model.precision import to_float64
from ajet.engines.batch import Batch
from ajet.engines.flat_forward import FlatForward
from ajet.engines.forward import BatchRow
from ajet.engines.kv_cache import KVPool
from ajet.engines.packed_prefill import PackedPrefill, pass_tokens, prefill_passes
from ajet.engines.prefix_cache import PrefixCache, path
from tests.core.model.product_kernel import ProductKernel
from tests.core.update.update_fixtures import tiny_model

VOCAB, CPU = 64, torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return to_float64(tiny_model(tie_word_embeddings=False))


class CountingKernel(ProductKernel):
    """Notes the queries and keys of each sequence that it computes."""

    def __init__(self):
        self.calls = []

    def forward(self, q, k, v, call):
        lengths = [t.diff().tolist() for t in (call.cu_queries, call.cu_keys)]
        self.calls.append((*lengths, call.causal))
        return super().forward(q, k, v, call)


class Prefill:
    """A prefix cache and a pool, whose missing tokens are computed pass by pass."""

    def __init__(self, model, max_tokens=8192, kernel=None):
        self.model, self.max_tokens = model, max_tokens
        self.kernel = kernel or ProductKernel()
        self.cache = PrefixCache(2000)
        self.pool = KVPool(2, 2, 8, 2000, torch.float64, CPU)
        self.pool.allocate()
        self.pass_tokens = []

    def compute(self, rows):
        """Computes what these rows lack, and returns the slots of each."""
        tails = [self.cache.insert(np.array(row)) for row in sorted(rows)]
        paths = [path(tail) for tail in tails]
        decoder = Decoder(self.model)
        for each in prefill_passes(paths, self.max_tokens):
            prefill = PackedPrefill(self.pool, each, self.kernel)
            with torch.inference_mode():
                decoder(prefill.tokens_N, prefill.positions_N, prefill.attend)
            self.pass_tokens.append(len(prefill.tokens_N))
        for nodes in paths:
            for node in nodes:
                node.computed = True
        return [np.concatenate([node.slots for node in nodes]) for nodes in paths]


def error_against_transformers(model, prefill, rows, slots):
    """The largest error of any key or value of these rows, which are sorted as the slots are."""
    worst = 0.0
    for ids, at in zip(sorted(rows), slots, strict=True):
        with torch.inference_mode():
            layers = model(torch.tensor([ids]), use_cache=True).past_key_values.layers
        for number, layer in enumerate(layers):
            for pool, known in ((prefill.pool.k, layer.keys), (prefill.pool.v, layer.values)):
                worst = max(worst, float((pool[number][:, at] - known[0]).abs().max()))
    return worst


@pytest.mark.parametrize("max_tokens", [1, 7, 8192])
def test_keys_and_values_are_those_of_transformers_however_passes_are_cut(model, max_tokens):
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 3, rng.integers(1, 14)).tolist() for _ in range(20)]
    prefill = Prefill(model, max_tokens)
    for some in (rows[:6], rows):  # of the second call, beginnings are in the cache
        slots = prefill.compute(some)
        assert error_against_transformers(model, prefill, some, slots) < 1e-12
    distinct = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    num_used = prefill.cache.num_slots - prefill.cache.num_free
    assert sum(prefill.pass_tokens) == len(distinct) == num_used
    assert max(prefill.pass_tokens) <= max_tokens


def test_a_pass_takes_one_call_of_a_layer_and_one_for_each_level_of_ancestors(model):
    kernel = CountingKernel()
    prefill = Prefill(model, kernel=kernel)
    prefill.compute([[9, 9]])  # the system prompt
    kernel.calls.clear()
    # 9 9 | 1 1 | 2 3      Behind the cached prompt two groups: 1 1 with the replies 2 3 and 4,
    #     |     | 4        and 5 with the replies 6 and 7 8 9.
    #     | 5   | 6
    #           | 7 8 9
    prefill.compute([[9, 9, 1, 1, 2, 3], [9, 9, 1, 1, 4], [9, 9, 5, 6], [9, 9, 5, 7, 8, 9]])
    own = ([2, 2, 1, 1, 1, 3], [2, 2, 1, 1, 1, 3], True)
    to_the_prompt = ([10], [2], False)
    to_the_groups = ([3, 4], [2, 1], False)
    assert kernel.calls == [own, to_the_prompt, to_the_groups] * 2  # in each of two layers
    assert prefill.pass_tokens == [2, 10]


def test_only_a_row_longer_than_a_pass_is_cut_and_goes_on_in_the_next(model):
    kernel = CountingKernel()
    prefill = Prefill(model, max_tokens=4, kernel=kernel)
    prefill.compute([[1, 2, 3, 4, 5], [1, 2, 6]])
    assert prefill.pass_tokens == [4, 2]
    # First 1 2 3 4; then 5, which sees 1 2 and 3 4, and 6, which sees 1 2.
    first = [([4], [4], True)]
    second = [([1, 1], [1, 1], True), ([2], [2], False), ([1], [2], False)]
    assert kernel.calls == [*first * 2, *second * 2]
    prefill = Prefill(model, max_tokens=4)
    prefill.compute([[1, 2, 3], [4, 5, 6], [7]])
    assert prefill.pass_tokens == [3, 4]


@pytest.mark.parametrize(
    ("sizes", "itemsize", "tokens"),
    [
        # 3 x (3,584 + 18,944) values of 2 bytes for each token of 7B: 7,944 tokens in 1 GiB
        ((3584, 18_944), 2, 8192),
        ((896, 4864), 2, 32_768),  # 0.5B: 31,069
        ((896, 4864), 4, 16_384),
        ((5120, 27_648), 2, 4096),  # 32B: 5,461
        ((64, 128), 2, 65_536),
    ],
)
def test_a_pass_takes_about_a_gibibyte_in_the_widest_layer(sizes, itemsize, tokens):
    assert pass_tokens(*sizes, itemsize) == tokens


def rows_of_turns(turn, replies):
    """Returns 9 rows of 3 questions behind a system prompt; a later turn goes on from the reply."""
    rows = []
    for n in range(9):
        prompt = [*range(1, 41), *([50 + n // 3] * 33), n] if turn == 0 else [*replies[n], 60, n]
        sampling = SamplingParams(max_tokens=4 + n, seed=9 * turn + n)
        limit = len(prompt) + 4 + n
        rows.append(BatchRow(f"e{n}/{turn}", tuple(prompt), sampling, frozenset(), limit))
    return rows


def conversations(model, **given):
    """Plays three turns; returns all rows, and the prompt tokens that were in the cache."""
    batch = Batch(FlatForward(model, 20_000, **given), CPU, max_num_seqs=99, eager=False)
    rows, replies = [], []
    for turn in range(3):
        new = rows_of_turns(turn, replies)
        batch.add(new)
        with torch.inference_mode():
            while batch.busy:
                batch.step()
        replies = [row.ids for row in new]
        rows += new
    return rows, batch.cached_prompt_tokens


def test_conversations_are_those_of_prefill_in_chunks(model):
    found, cached = conversations(model, varlen_for=lambda _: ProductKernel())
    expected, cached_in_chunks = conversations(model)
    assert [row.ids for row in found] == [row.ids for row in expected]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=1e-10)
    assert cached == cached_in_chunks > 0


def test_a_cpu_has_no_flash_attention(model):
    assert FlatForward(model, 100)._varlen is None
