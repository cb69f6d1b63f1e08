"""The Triton kernels of a decode step against torch, on a GPU or in Triton's interpreter:

TRITON_INTERPRET=1 python -m pytest tests/core/model/test_triton_decode.py
"""

import os

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from ajet.core.model.decoder import Decoder
from ajet.engines.kernel_batch import CudaBatch
from ajet.engines.kv_cache import CacheLayout, KVBatch, KVPool
from ajet.engines.sampling import inverse_cdf

triton = pytest.importorskip("triton")
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (IS_INTERPRETED or torch.cuda.is_available()):
    pytest.skip("no GPU is here, nor is TRITON_INTERPRET=1 set", allow_module_level=True)

from ajet.core.model.kernels import triton_decode  # noqa: E402

DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
KV_HEADS = 2
LAYOUTS = {
    "segments of different lengths": [(40, [3, 0, 9]), (70, [5]), (133, [1, 2])],
    "nothing shared": [(0, [3, 4, 50])],
    "no own tokens": [(50, [0, 0, 0])],
    "one token": [(0, [1])],
    "long": [(700, [1, 30]), (0, [260])],
}


@pytest.fixture(autouse=True)
def mended_interpreter(monkeypatch):
    """The interpreter holds bfloat16 as its bits, and would multiply these; and from NumPy 2.4 on
    its scalars, which are arrays of one number, are no bounds of a loop."""
    if not IS_INTERPRETED:
        return
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    create_dot = interpreter.InterpreterBuilder.create_dot
    patch_tensor = interpreter._patch_lang_tensor

    def wide_dot(self, a, b, *args):
        if a.dtype.scalar == bfloat16:
            a, b = (self.cast_impl(each, float32) for each in (a, b))
        return create_dot(self, a, b, *args)

    def patch_tensor_with_index(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", wide_dot)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_tensor_with_index)


def slots_of(groups):
    """Returns the slots of rows, from each group's shared slots and the own ones of its rows."""
    free = iter(range(1, 3000))
    rows = []
    for num_shared, own_lengths in groups:
        shared = [next(free) for _ in range(num_shared)]
        rows += [np.array(shared + [next(free) for _ in range(n)], np.int64) for n in own_lengths]
    return rows


def set_column(batch):
    """Puts the current column where the kernel reads it, as a step does with its tokens."""
    batch.column_1 = torch.tensor([batch.column], device=DEVICE)


def pool_of(dtype, width, layers=1):
    generator = torch.Generator().manual_seed(0)
    pool = KVPool(layers, KV_HEADS, width, 3000, dtype, DEVICE)
    pool.allocate()
    for values in (pool.k, pool.v):
        values[:, :, 1:] = torch.randn(values[:, :, 1:].shape, generator=generator).to(values)
    return pool


def wide_pool_of(pool):
    """Returns the same keys and values in float64."""
    layers, heads, slots, width = pool.k.shape
    wide = KVPool(layers, heads, width, slots - 1, torch.float64, DEVICE)
    wide.k, wide.v = pool.k.double(), pool.v.double()
    return wide


@pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "width", "group"),
    [
        (torch.float32, 64, 7),
        (torch.bfloat16, 64, 7),
        (torch.float16, 32, 16),
        (torch.bfloat16, 128, 4),
        (torch.float32, 128, 1),
    ],
    ids=str,
)
def test_it_gives_the_attention_of_torch_in_float64(dtype, width, group, groups):
    slots, tolerance = slots_of(groups), 1e-5 if dtype == torch.float32 else 0.02
    pool = pool_of(dtype, width)
    batch = CudaBatch(pool, CacheLayout.of(slots, smallest=True), 40)
    expected = KVBatch(wide_pool_of(pool), CacheLayout.of(slots), 40)
    generator = torch.Generator().manual_seed(1)
    kept = np.array([n for n in range(len(slots)) if n % 3 != 1])
    rows = len(slots)
    for step in range(4):
        if step == 2:
            rows = len(kept)
            batch.keep(kept)
            expected.keep(kept)
        q, k, v = (
            torch.randn(rows, heads, width, generator=generator).to(DEVICE, dtype)
            for heads in (KV_HEADS * group, KV_HEADS, KV_HEADS)
        )
        set_column(batch)
        found = batch.attend(0, q, k, v)
        wide = expected.attend(0, q.double(), k.double(), v.double())
        torch.testing.assert_close(found.double(), wide, rtol=tolerance, atol=tolerance)
        assert found.dtype == dtype
        batch.advance()
        expected.advance()


@pytest.mark.parametrize("parts", [1, 2, 5, 32])
def test_the_parts_that_keys_are_cut_into_change_nothing_but_rounding(parts):
    pool = pool_of(torch.float32, 64)
    slots = slots_of(LAYOUTS["long"])
    batch = CudaBatch(pool, CacheLayout.of(slots, smallest=True), 40)
    expected = KVBatch(wide_pool_of(pool), CacheLayout.of(slots), 40)
    batch._num_parts = parts
    # Queries and keys as a decoder may give them: parts of one tensor, whose rows lie apart.
    qkv = torch.randn(3, 18, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    q, k, v = qkv[:, :14], qkv[:, 14:16], qkv[:, 16:]
    found = batch.attend(0, q, k, v)
    wide = expected.attend(0, q.double(), k.double(), v.double())
    torch.testing.assert_close(found.double(), wide, rtol=1e-5, atol=1e-5)


def test_few_rows_have_their_keys_in_more_parts():
    # 128 rows of 2 key heads are enough programs; a row alone has 256 / 2, and 32 at most, as long
    # as a part has 128 keys.
    assert triton_decode.num_parts(128, 2, 4096) == 1
    assert triton_decode.num_parts(32, 2, 4096) == 4
    assert triton_decode.num_parts(1, 2, 8192) == 32
    assert triton_decode.num_parts(1, 2, 1000) == 7
    assert triton_decode.num_parts(1, 2, 5) == 1


def test_what_stands_in_columns_that_are_not_written_changes_no_bit():
    outs = []
    for filling in (0.0, 1e3):
        batch = CudaBatch(pool_of(torch.float32, 64), CacheLayout.of(slots_of([(0, [3, 5])])), 40)
        for part in (*batch._k, *batch._v):
            part.tensor[:, :, 5:] = filling
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            q, k, v = torch.randn(3, 2, 6, 64, generator=generator).to(DEVICE)
            set_column(batch)
            outs.append(batch.attend(0, q, k[:, :2], v[:, :2]))
            batch.advance()
    torch.testing.assert_close(outs[:3], outs[3:], rtol=0, atol=0)


def test_what_it_computed_is_saved():
    layout = CacheLayout.of(slots_of([(40, [3, 0, 9]), (33, [1, 2])]))
    saved = []
    for kind in (KVBatch, CudaBatch):
        pool = pool_of(torch.float32, 64)
        batch = kind(pool, layout, 1)
        q, k, v = torch.randn(3, 5, 2, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        batch.attend(0, q, k, v)
        batch.advance()
        batch.save(np.array([0, 4]), np.array([43, 35]), np.array([1500, 1501]))
        saved.append((pool.k[:, :, 1500:1502], pool.v[:, :, 1500:1502]))
    torch.testing.assert_close(saved[0], saved[1], rtol=0, atol=0)


def test_all_columns_are_there_from_the_start():
    # 5 columns, 300 tokens to come and one more are 306, in multiples of 16.
    batch = CudaBatch(pool_of(torch.float32, 64), CacheLayout.of(slots_of([(0, [3, 5])])), 300)
    own_k = batch._k[0].tensor
    assert batch.num_columns == 320
    for _ in range(300):
        batch.advance()
    assert batch._k[0].tensor is own_k
    assert batch.column == 305


def test_a_decoder_computes_with_it_what_it_does_group_after_group():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=KV_HEADS,
        initializer_range=0.2,
    )
    decoder = Decoder(AutoModelForCausalLM.from_config(config).to(DEVICE).eval())
    layout = CacheLayout.of(slots_of([(40, [3, 0, 9]), (33, [1, 2])]))
    batches = [kind(pool_of(torch.float32, 32, 2), layout, 40) for kind in (KVBatch, CudaBatch)]
    positions = np.array([len(own) for own in slots_of([(40, [3, 0, 9]), (33, [1, 2])])])
    with torch.inference_mode():
        for step in range(3):
            inputs = torch.tensor(np.stack((positions % 64, positions + step)), device=DEVICE)
            for batch in batches:
                set_column(batch)
            expected, found = (
                decoder.logits(decoder(inputs[0], inputs[1], batch.attend)) for batch in batches
            )
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            for batch in batches:
                batch.advance()


def draw(logits, scales, u, greedy=None):
    """Returns tokens, log-probabilities and sums."""
    rows = len(logits)
    greedy = torch.zeros(rows, dtype=torch.bool) if greedy is None else greedy
    scales, u, greedy = (torch.as_tensor(t).to(DEVICE) for t in (scales, u, greedy))
    out = triton_decode.draw(logits.to(DEVICE), scales.float(), u.double(), greedy).cpu()
    return out[0].long(), out[1], out[2]


@pytest.mark.parametrize("vocab", [5, 256, 1000, 9000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_draws_the_first_token_whose_cumulative_probability_exceeds_u(vocab, dtype):
    rows = 64
    generator = torch.Generator().manual_seed(vocab)
    logits = (4 * torch.randn(rows, vocab, generator=generator)).to(dtype)
    scales = torch.tensor([1.0, 2.0, 0.3, 1.0]).repeat(rows // 4)
    u = torch.rand(rows, generator=generator, dtype=torch.float64)
    tokens, logprobs, totals = draw(logits, scales, u)
    exact = (logits.double() * scales.unsqueeze(1)).log_softmax(-1)
    cdf = exact.exp().cumsum(1)
    drawn_by_torch, _ = inverse_cdf(exact.exp(), u)
    for row, token in enumerate(tokens):
        assert logprobs[row] == pytest.approx(float(exact[row, token]), abs=2e-5)
        assert cdf[row, token] > u[row] - 1e-6
        assert token == 0 or cdf[row, token - 1] <= u[row] + 1e-6
    assert int((tokens != drawn_by_torch).sum()) <= 1
    assert torch.isfinite(totals).all()


def test_a_draw_does_not_depend_on_the_rows_beside_it():
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(8, 1500, generator=generator)
    scales, u = torch.linspace(0.5, 2, 8), torch.rand(8, generator=generator, dtype=torch.float64)
    greedy = torch.arange(8) % 3 == 0
    together = torch.stack([t.double() for t in draw(logits, scales, u, greedy)])
    for row in range(8):
        at = slice(row, row + 1)
        alone = torch.stack([t.double() for t in draw(logits[at], scales[at], u[at], greedy[at])])
        torch.testing.assert_close(alone, together[:, at], rtol=0, atol=0)


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.randn(3, 2000, generator=torch.Generator().manual_seed(2))
    logits[:, :1000] = logits[:, -50:] = float("-inf")
    tokens, _, _ = draw(logits, torch.ones(3), torch.tensor([0.0, 1 - 2.0**-53, 0.5]).double())
    assert tokens[0] == 1000 and tokens[1] == 1949 and 1000 < tokens[2] < 1949

    # Only the first and the last of 700 weigh anything: e^0 against e^-1, .731 and .269 of both.
    logits = torch.full((3, 700), float("-inf"))
    logits[:, 0], logits[:, 699] = 0.0, -1.0
    tokens, logprobs, _ = draw(logits, torch.ones(3), torch.tensor([0.73, 0.74, 0.999]))
    assert tokens.tolist() == [0, 699, 699]
    np.testing.assert_allclose(logprobs, np.log([0.7310586, 0.2689414, 0.2689414]), atol=1e-6)


def test_greedy_rows_take_the_first_of_the_largest():
    logits = torch.zeros(2, 2000)
    logits[:, [700, 1500]] = 5.0
    tokens, logprobs, _ = draw(
        logits, torch.ones(2), torch.tensor([0.99, 0.0]), torch.tensor([True, False])
    )
    assert tokens.tolist() == [700, 0]
    # 2 e^5 + 1998 = 2294.83 in all.
    np.testing.assert_allclose(logprobs, [5 - np.log(2294.826), -np.log(2294.826)], atol=1e-5)


@pytest.mark.parametrize("values", [[float("nan")], [float("inf")], None], ids=str)
def test_sums_are_not_finite_where_logits_are_not(values):
    logits = torch.randn(2, 600, generator=torch.Generator().manual_seed(2))
    if values is None:
        logits[1] = float("-inf")
    else:
        logits[1, 400] = values[0]
    _, _, totals = draw(logits, torch.ones(2), torch.tensor([0.3, 0.3]))
    assert torch.isfinite(totals).tolist() == [True, False]
