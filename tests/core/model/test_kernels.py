"""The compiled kernels against torch, and how their library is made."""

import itertools
import os
import stat
import subprocess

import pytest
import torch
from loguru import logger

from ajet.core.model.kernels import segments as segments_module
from ajet.core.model.kernels.functions import kernels, kernels_for
from ajet.core.model.kernels.library import SLOWER, compiled, first_exchangeable, library
from ajet.core.model.kernels.segments import AttentionSegment, SegmentTable
from ajet.core.model.wide_layer import rotate

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler is installed")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
HEADS, KV_HEADS, ROWS = 6, 2, 5
COLUMNS, COLUMN = 32, 20
SEGMENTS = [(0, 2, 37), (2, 5, 150)]
"""The first row, the row behind the last, and the number of keys that they share."""


def _random(*shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _close(found, expected, dtype):
    """Compares with what float64 gives: bfloat16 has 8 bits."""
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize("rows", [3, 300], ids=["one thread", "all threads"])
def test_the_norm_is_torchs(dtype, rows):
    x, weight = _random(rows, 576, dtype=dtype), _random(576, dtype=dtype)
    expected = torch.nn.functional.rms_norm(x.double(), (576,), weight.double(), 1e-5)
    _close(kernels().rms_norm(x, weight, 1e-5), expected, dtype)


@DTYPES
@pytest.mark.parametrize("rows", [3, 300], ids=["one thread", "all threads"])
def test_rotation_turns_the_heads_that_it_is_given_and_no_others(dtype, rows):
    x, cos, sin = (_random(rows, n, 64, dtype=dtype) for n in (9, 1, 1))
    expected = rotate(x[:, :6].double(), cos.double(), sin.double())
    rotated = x.clone()
    kernels().rotate(rotated[:, :6], cos, sin, out=rotated[:, :6])
    _close(rotated[:, :6], expected, dtype)
    assert torch.equal(rotated[:, 6:], x[:, 6:])


def _attention(dtype, dim, segments=SEGMENTS):
    """Returns q, k and v as parts of one tensor, own keys and values, shared keys and values of
    each segment, and the first own column of each row, with the extremes."""
    qkv = _random(ROWS, HEADS + 2 * KV_HEADS, dim, dtype=dtype)
    own = tuple(
        _random(KV_HEADS, ROWS, COLUMNS + i, dim, dtype=dtype)[:, :, :COLUMNS] for i in (0, 1)
    )
    own = tuple(part.contiguous() for part in own)
    shared = [
        [_random(KV_HEADS, num + i, dim, dtype=dtype)[:, :num] for i in (0, 1)]
        for _, _, num in segments
    ]
    q, k, v = qkv[:, :HEADS], qkv[:, HEADS : HEADS + KV_HEADS], qkv[:, HEADS + KV_HEADS :]
    return (q, k, v), own, shared, torch.tensor([0, COLUMN, 3, 7, 0])


def _attend(qkv, own, shared, start, segments, column=COLUMN):
    parts = (
        [kernels().shared_keys(keys) for keys, _ in shared],
        [kernels().shared_values(values) for _, values in shared],
    )
    return kernels().attend(qkv, own, start, column, torch.tensor(segments), parts)


@DTYPES
@pytest.mark.parametrize("dim", [64, 96, 128])
def test_attention_is_one_softmax_over_shared_and_own_keys(dtype, dim):
    (q, k, v), own, shared, start = _attention(dtype, dim)
    found = _attend((q, k, v), own, shared, start, SEGMENTS)
    for written, new in zip(own, (k, v), strict=True):
        assert torch.equal(written[:, :, COLUMN], new.transpose(0, 1))
    for (first, last, _), (keys, values) in zip(SEGMENTS, shared, strict=True):
        for row in range(first, last):
            seen = slice(int(start[row]), COLUMN + 1)
            all_keys, all_values = (
                torch.cat((common, part[:, row, seen]), dim=1).double()
                for common, part in zip((keys, values), own, strict=True)
            )
            query = q[row].double().view(KV_HEADS, -1, dim)
            weights = (query @ all_keys.mT * dim**-0.5).softmax(-1)
            _close(found[row].view(KV_HEADS, -1, dim), weights @ all_values, dtype)


@DTYPES
def test_a_rows_bits_depend_on_nothing_but_the_row(dtype):
    qkv, own, shared, start = _attention(dtype, 64)
    everything = _attend(qkv, own, shared, start, SEGMENTS)
    # Rows 2 and 3 alone, without the first three columns, which they do not see.
    rows = slice(2, 4)
    alone = _attend(
        tuple(t[rows] for t in qkv),
        tuple(part[:, rows, 3:].contiguous() for part in own),
        shared[1:],
        start[rows] - 3,
        [(0, 2, SEGMENTS[1][2])],
        COLUMN - 3,
    )
    assert torch.equal(alone, everything[rows])


def test_what_is_not_a_number_stays_so():
    x, weight = torch.ones(1, 64), torch.ones(64)
    x[0, 3] = float("nan")
    assert kernels().rms_norm(x, weight, 1e-5).isnan().all()
    qkv, own, shared, start = _attention(torch.float32, 64)
    own[0][0, 0, 5] = float("nan")
    out = _attend(qkv, own, shared, start, SEGMENTS).view(ROWS, KV_HEADS, -1)
    assert out[0, 0].isnan().all()
    assert out[0, 1].isfinite().all()
    assert out[1:].isfinite().all()


def _chains(*lengths):
    """Returns the segments of sequences, given by their queries and their keys."""
    queries = [0, *itertools.accumulate(num for num, _ in lengths)]
    keys = [0, *itertools.accumulate(num for _, num in lengths)]
    return [
        AttentionSegment(query, num_queries, key, num_keys)
        for query, key, (num_queries, num_keys) in zip(queries, keys, lengths, strict=False)
    ]


TREE = [
    AttentionSegment(0, 70, 0, 70),
    AttentionSegment(70, 3, 70, 3, parent=0),
    AttentionSegment(73, 130, 73, 130, parent=1),
    AttentionSegment(203, 1, 203, 1, parent=0),
    AttentionSegment(204, 40, 204, 40),
]
SEEN = pytest.mark.parametrize(
    ("segments", "heads", "kv_heads", "dim"),
    [
        (TREE, 6, 2, 64),
        (TREE, 2, 2, 32),
        (_chains((70, 100), (33, 33), (1, 65)), 3, 1, 64),
        (_chains((300, 300)), 4, 2, 128),
    ],
    ids=["tree", "a key head to each head", "after tokens before", "several parts"],
)


def _operands(segments, heads, kv_heads, dim, dtype):
    """Returns a gradient and q, k and v as views whose rows and heads lie apart."""
    num_queries = sum(segment.num_queries for segment in segments)
    num_keys = sum(segment.num_keys for segment in segments)
    grad, q = (_random(num_queries, heads + i, dim + 8, dtype=dtype)[:, i:, :dim] for i in (0, 1))
    k, v = (
        _random(kv_heads, num_keys + i, dim, dtype=dtype)[:, i:].transpose(0, 1) for i in (0, 1)
    )
    return grad, q, k, v


def _masked_attention(q, k, v, segments):
    """The definition, with a square mask, and the log-sum-exp."""
    seen = torch.zeros(len(q), len(k), dtype=torch.bool)
    for segment in segments:
        for i in range(segment.num_queries):
            row = seen[segment.first_query + i]
            before = segment.num_keys - segment.num_queries
            row[segment.first_key : segment.first_key + before + i + 1] = True
            parent = segment.parent
            while parent >= 0:
                other = segments[parent]
                row[other.first_key : other.first_key + other.num_keys] = True
                parent = other.parent
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = torch.einsum("nhd,mhd->nhm", q, k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return torch.einsum("nhm,mhd->nhd", scores.softmax(-1), v), scores.logsumexp(-1)


@DTYPES
@SEEN
def test_attention_and_its_gradients_are_those_under_a_mask(segments, heads, kv_heads, dim, dtype):
    grad, q, k, v = _operands(segments, heads, kv_heads, dim, dtype)
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    out, lse = _masked_attention(*wide, segments)
    table = SegmentTable.of(segments, heads // kv_heads)
    found, found_lse = kernels().attention(q, k, v, table)
    _close(found, out, dtype)
    _close(found_lse, lse, torch.float32)
    expected = torch.autograd.grad(out, wide, grad.double())
    gradients = kernels().attention_backward(grad, q, k, v, out.to(dtype), lse.float(), table)
    for gradient, right in zip(gradients, expected, strict=True):
        _close(gradient / right.abs().max(), right / right.abs().max(), dtype)


def test_queries_are_divided_into_blocks_and_parts(monkeypatch):
    monkeypatch.setattr(segments_module, "MIN_PART", 5)
    table = SegmentTable.of(TREE, group=2)
    # 140, 6, 260, 2 and 80 queries, in blocks of 32
    blocks = [5, 1, 9, 1, 3]
    assert table.blocks_B2[:, 0].tolist() == [s for s, num in enumerate(blocks) for _ in range(num)]
    assert table.blocks_B2[:7, 1].tolist() == [0, 32, 64, 96, 128, 0, 0]
    assert table.segments_S6[:, 4].tolist() == [0, 128, 192, 384, 448]  # multiples of 64 keys
    assert table.num_padded == 512
    # 5 of segment 0; 1 of 1 and 4 of 2; 5 of 2; 1 of 3 and 3 of 4: each with its ancestors
    assert table.starts_P.tolist() == [0, 5, 10, 15, 19]
    assert table.cells_PS.tolist() == [
        [0, -1, -1, -1, -1],
        [128, 256, 320, -1, -1],
        [512, 640, 704, -1, -1],
        [896, -1, -1, 1024, 1088],
    ]
    assert table.num_cells == 1152


@DTYPES
def test_what_an_update_computes_does_not_depend_on_the_number_of_threads(dtype):
    chains = _chains((700, 790), (50, 50))
    grad, q, k, v = _operands(chains, 6, 2, 64, dtype)
    table = SegmentTable.of(chains, 3)
    assert len(table.starts_P) > 2
    x, d_x = _random(700, 576, dtype=dtype), _random(576, 700, dtype=dtype).T.contiguous()
    threads = torch.get_num_threads()
    found = []
    for number in (1, 2):
        torch.set_num_threads(number)
        out, lse = kernels().attention(q, k, v, table)
        gradients = kernels().attention_backward(grad, q, k, v, out, lse, table)
        weight = _random(576, dtype=dtype)
        d_weight = kernels().weight_gradient(d_x, x)
        of_norm = kernels().rms_norm_backward(d_x, x, weight, 1e-5)
        found.append((out, lse, *gradients, d_weight, *of_norm))
    torch.set_num_threads(threads)
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@DTYPES
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [(700, 192, 96), (193, 205, 101), (1, 5, 3), (0, 5, 3)],
    ids=["whole blocks", "parts of blocks", "one row", "no row"],
)
def test_the_gradient_of_a_weight_is_a_product_over_rows(rows, outputs, inputs, dtype):
    grad, x = (_random(rows, num, dtype=dtype) for num in (outputs + 7, inputs + 3))
    grad, x = grad[:, 7:], x[:, :inputs]  # rows of larger matrices
    found = kernels().weight_gradient(grad, x)
    scale = max(rows, 1) ** 0.5
    _close(found / scale, grad.double().T @ x.double() / scale, dtype)


def test_the_gradient_of_a_weight_is_not_a_number_where_a_row_is_not():
    grad, x = torch.ones(300, 16), torch.ones(300, 40)
    grad[200, 3] = x[7, 9] = float("nan")
    found = kernels().weight_gradient(grad, x)
    assert found[3].isnan().all()
    assert found[:, 9].isnan().all()
    assert torch.equal(found[4:, :9], torch.full((12, 9), 300.0))


@DTYPES
def test_the_gradients_of_a_norm_are_autograds(dtype):
    grad, x, weight, added = (
        _random(*shape, dtype=dtype) for shape in [(700, 96)] * 2 + [(96,), (700, 96)]
    )
    wide_x, wide_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = torch.nn.functional.rms_norm(wide_x, (96,), wide_weight, 1e-5)
    d_x, d_weight = torch.autograd.grad(y, (wide_x, wide_weight), grad.double())
    for extra, expected in ((None, d_x), (added, d_x + added.double())):
        found, found_weight = kernels().rms_norm_backward(grad, x, weight, 1e-5, extra)
        _close(found, expected, dtype)
        _close(found_weight / 30, d_weight / 30, dtype)


@DTYPES
def test_the_gradients_of_a_gate_are_autograds(dtype):
    grad, gate, up = (_random(50 + i, 96, dtype=dtype)[:50] * 3 for i in range(3))
    wide = [t.double().requires_grad_() for t in (gate, up)]
    product = torch.nn.functional.silu(wide[0]) * wide[1]
    d_gate, d_up = torch.autograd.grad(product, wide, grad.double())
    _close(kernels().gate(gate, up), product.detach(), dtype)
    found = kernels().gate_backward(grad.clone(), gate, up)
    for value, expected in zip(found, (product.detach(), d_gate, d_up), strict=True):
        _close(value, expected, dtype)


@DTYPES
def test_the_softmax_takes_the_place_of_the_logits(dtype):
    logits = _random(5, 700, dtype=dtype) * 4
    expected = (logits.double() / 0.7).log_softmax(-1)
    probabilities = logits.clone()
    entropy, log_sum = kernels().softmax(probabilities, 0.7)
    _close(probabilities, expected.exp(), dtype)
    _close(entropy, -(expected.exp() * expected).sum(-1), torch.float32)
    _close(log_sum, (logits.double() / 0.7).logsumexp(-1), torch.float32)


def test_other_tensors_are_left_to_torch():
    assert kernels_for(torch.zeros(1)) is kernels()
    assert kernels_for(torch.zeros(1, dtype=torch.float64)) is None
    assert kernels_for(torch.zeros(1, device="meta")) is None


def stand_in_compiler(path):
    """Writes a compiler whose library is the word `made`."""
    script = '[ $1 = --version ] && exit\nwhile [ "$1" != -o ]; do shift; done\necho made > "$2"\n'
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)
    return str(path)


def test_the_library_is_made_once(tmp_path):
    compiler, folder = stand_in_compiler(tmp_path / "cc"), tmp_path / "made"
    folder.mkdir()
    library = compiled(compiler, folder)
    made = library.stat().st_mtime_ns
    assert compiled(compiler, folder) == library
    assert library.stat().st_mtime_ns == made
    assert list(folder.iterdir()) == [library]


@pytest.mark.parametrize("harm", ["written by others", "of another user", "a link"])
def test_a_library_that_somebody_else_could_have_written_is_compiled_anew(tmp_path, harm):
    if harm == "of another user" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    folder, other = tmp_path / "made", tmp_path / "other.so"
    compiler = stand_in_compiler(tmp_path / "cc")
    folder.mkdir()
    library = compiled(compiler, folder)
    other.write_text("harm")
    if harm == "a link":
        library.unlink()
        library.symlink_to(other)
    else:
        library.write_text("harm")
        library.chmod(0o666 if harm == "written by others" else 0o600)
        os.chown(library, 12345 if harm == "of another user" else -1, -1)
    assert compiled(compiler, folder) == library
    assert library.read_text() == "made\n" and other.read_text() == "harm"
    assert stat.S_IMODE(library.lstat().st_mode) == 0o700


def test_a_folder_that_others_could_exchange_is_named(tmp_path):
    folder = tmp_path / "cache" / "ajet"
    folder.mkdir(parents=True)
    assert first_exchangeable(folder) is None
    folder.parent.chmod(0o777)
    assert first_exchangeable(folder) == folder.parent
    folder.parent.chmod(0o1777)  # as /tmp
    assert first_exchangeable(folder) is None
    folder.chmod(0o770)
    assert first_exchangeable(folder) == folder
    if os.geteuid() == 0:
        folder.chmod(0o700)
        os.chown(folder, 12345, 12345)
        assert first_exchangeable(folder) == folder


def test_a_compiler_that_fails_is_an_error(tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\n[ $1 = --version ]\n")
    broken.chmod(0o755)
    (tmp_path / "made").mkdir()
    with pytest.raises(subprocess.CalledProcessError):
        compiled(str(broken), tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


def test_where_no_compiler_is_found_a_warning_says_what_to_install(monkeypatch, tmp_path):
    messages = []
    sink = logger.add(messages.append, format="{message}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert library.__wrapped__() is None
    logger.remove(sink)
    assert messages == [f"{SLOWER}: no C compiler (cc) is installed; gcc is one\n"]
