"""What is drawn, and the log-probability that is reported for it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.kernels.functions import kernels
from ajet.engines.sampling import (
    DRAWS_AT_ONCE,
    MIN_VOCAB,
    Sampler,
    checked_draws,
    inverse_cdf,
    uniforms,
)

CPU = torch.device("cpu")
LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))


def _drawn(sampler, logits):
    """Returns the tokens and log-probabilities of a draw."""
    return checked_draws(sampler.draw(logits).numpy())


def _draw_many(params, logits=LOGITS, count=4000):
    """Draws number 0 .. count - 1 of one request, and the log-probability of each token."""
    sampler = Sampler([params] * count, CPU, np.arange(count))
    tokens, logprobs = _drawn(sampler, logits.expand(count, -1))
    return np.array(tokens), dict(zip(tokens, logprobs, strict=True))


def _assert_distribution(tokens, logprobs, expected):
    """Frequencies are within four standard errors, and the log-probabilities exact."""
    assert set(tokens.tolist()) == {token for token, p in enumerate(expected) if p > 0}
    for token, p in enumerate(expected):
        error = 4 * math.sqrt(p * (1 - p) / len(tokens))
        assert abs((tokens == token).mean() - p) <= error
        if p > 0:
            assert logprobs[token] == pytest.approx(math.log(p), abs=1e-6)


def test_temperature_one_draws_the_model_distribution():
    _assert_distribution(*_draw_many(SamplingParams(seed=1)), [0.5, 0.25, 0.15, 0.1])


def test_temperature_two_takes_square_roots():
    roots = np.sqrt([0.5, 0.25, 0.15, 0.1])
    _assert_distribution(*_draw_many(SamplingParams(temperature=2.0)), roots / roots.sum())


def test_top_k_renormalises_over_the_k_likeliest():
    _assert_distribution(*_draw_many(SamplingParams(top_k=2)), [2 / 3, 1 / 3, 0, 0])


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass():
    _assert_distribution(*_draw_many(SamplingParams(top_p=0.75)), [2 / 3, 1 / 3, 0, 0])
    _assert_distribution(
        *_draw_many(SamplingParams(top_p=0.76)), [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]
    )


def test_top_p_applies_after_top_k():
    # The three likeliest renormalised are .556 .278 .167: the first two reach 0.8.
    params = SamplingParams(top_k=3, top_p=0.8)
    _assert_distribution(*_draw_many(params), [2 / 3, 1 / 3, 0, 0])


def test_top_p_zero_keeps_the_likeliest_token():
    _assert_distribution(*_draw_many(SamplingParams(top_p=0.0)), [1, 0, 0, 0])


def test_greedy_reports_log_probabilities_at_temperature_one_without_cuts():
    tokens, logprobs = _draw_many(SamplingParams(temperature=0.0, top_k=1, top_p=0.1))
    assert set(tokens.tolist()) == {0}
    assert logprobs[0] == pytest.approx(math.log(0.5), abs=1e-6)


def test_a_row_is_drawn_alike_whatever_is_beside_it():
    torch.manual_seed(0)
    logits = torch.randn(4, 50)
    params = [
        SamplingParams(seed=3),
        SamplingParams(temperature=0.0, seed=4),
        SamplingParams(top_k=5, temperature=0.7, seed=5),
        SamplingParams(top_p=0.5, seed=6),
    ]
    counts = np.array([0, 7, 3, 2])
    together = _drawn(Sampler(params, CPU, counts), logits)
    for row in range(4):
        alone = _drawn(Sampler([params[row]], CPU, counts[row : row + 1]), logits[row : row + 1])
        assert alone[0][0] == together[0][row]
        assert alone[1][0] == pytest.approx(together[1][row], abs=1e-6)


def test_a_row_draws_its_tokens_by_their_numbers_however_many_draws_there_are():
    # 0.5 and 0.5: the token is 1 exactly where u is at least 0.5.
    params = [SamplingParams(seed=seed) for seed in (1, 2, 3)]
    first = np.array([0, 7, 100])
    sampler = Sampler(params, CPU, first)
    for draw in range(2 * DRAWS_AT_ONCE + 3):
        u = uniforms(np.array([1, 2, 3], np.uint64), first + draw)
        assert _drawn(sampler, torch.zeros(3, 2))[0] == (u >= 0.5).tolist()


@given(
    st.lists(st.floats(-200, 20), min_size=2, max_size=40),
    st.sampled_from([0.0, 1 - 2.0**-53, 0.5]),
)
@settings(max_examples=200)
def test_a_token_of_probability_zero_is_never_drawn(values, u):
    logits = torch.tensor([values])
    logits[0, 0] = logits[0, -1] = float("-inf")
    if not bool((logits > -1e9).any()):
        return
    probs = logits.softmax(-1)
    token, _ = inverse_cdf(probs, torch.tensor([u], dtype=torch.float64))
    assert probs[0, token] > 0


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("vocab_size", [2, 256, 700])
def test_logits_that_are_not_finite_say_so_when_the_draw_is_read(value, vocab_size):
    logits = torch.full((1, vocab_size), float(value))
    drawn = Sampler([SamplingParams()], CPU, np.array([0])).draw(logits)
    assert 0 <= drawn[0, 0] < vocab_size  # the next step, which is launched before, looks it up
    with pytest.raises(ModelError, match="diverged"):
        checked_draws(drawn.numpy())


def test_uniforms_are_even_and_depend_on_seed_and_count():
    u = uniforms(np.full(10_000, 5, np.uint64), np.arange(10_000))
    assert u.min() >= 0 and u.max() < 1
    assert np.histogram(u, 10, (0, 1))[0].min() > 880
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.04
    other = uniforms(np.full(10_000, 6, np.uint64), np.arange(10_000))
    assert abs(np.corrcoef(u, other)[0, 1]) < 0.04


@given(st.integers(1, 700), st.integers(0, 2**32), st.floats(0, 1, exclude_max=True))
@settings(max_examples=200)
def test_a_draw_by_blocks_is_the_draw_over_the_whole_vocabulary(vocab_size, seed, u):
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(1, vocab_size, generator=generator, dtype=torch.float64)
    logits[torch.rand(logits.shape, generator=generator) < 0.3] = float("-inf")
    logits[0, vocab_size // 2] = 0
    probs = logits.softmax(-1)
    cdf = probs.cumsum(1)[0]
    token = int(inverse_cdf(probs, torch.tensor([u], dtype=torch.float64))[0])
    assert probs[0, token] > 0
    # The first token whose cumulative probability exceeds u, up to the rounding of the sums.
    assert cdf[token] > u - 1e-12
    assert token == 0 or cdf[token - 1] <= u + 1e-12


def _large(seed, rows, dtype=torch.float32):
    """Returns random logits of a vocabulary that the compiled kernel draws from."""
    if kernels() is None:
        pytest.skip("no C compiler is installed")
    generator = torch.Generator().manual_seed(seed)
    return (4 * torch.randn(rows, MIN_VOCAB + 100, generator=generator)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_draws_what_a_draw_over_the_whole_vocabulary_does(dtype):
    logits = _large(1, 200, dtype)
    params = [SamplingParams(temperature=(1.0, 0.5, 3.0)[n % 3], seed=n) for n in range(200)]
    temperatures = torch.tensor([[p.temperature] for p in params])
    counts = np.arange(200)
    tokens, logprobs = _drawn(Sampler(params, CPU, counts), logits)
    exact = (logits.double() / temperatures).log_softmax(-1)
    cdf = exact.exp().cumsum(1)
    u = uniforms(np.arange(200).astype(np.uint64), counts)
    for row, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        assert logprob == pytest.approx(float(exact[row, token]), abs=1e-5)
        assert cdf[row, token] > u[row] - 1e-6
        assert token == 0 or cdf[row, token - 1] <= u[row] + 1e-6
    assert len(set(tokens)) > 50


def test_the_kernel_never_draws_a_token_of_probability_zero():
    logits = _large(2, 3)
    logits[:, :1000] = logits[:, -50:] = float("-inf")
    u = torch.tensor([0.0, 1 - 2.0**-53, 0.5], dtype=torch.float64)
    tokens, _, _ = kernels().draw(logits, torch.ones(3), u, torch.zeros(3, dtype=torch.bool))
    last = logits.shape[1] - 51
    assert tokens[0] == 1000 and tokens[1] == last and 1000 < tokens[2] < last


def test_the_kernel_takes_the_first_of_the_largest_logits_where_it_is_greedy():
    logits = _large(3, 2)
    logits[0, [77, 5000]] = 50.0
    params = [SamplingParams(temperature=0.0, seed=1), SamplingParams(seed=2)]
    tokens, logprobs = _drawn(Sampler(params, CPU, np.array([0, 0])), logits)
    assert tokens[0] == 77 and logprobs[0] == pytest.approx(math.log(0.5), abs=1e-6)
    assert tokens[1] == _drawn(Sampler(params[1:], CPU, np.array([0])), logits[1:])[0][0]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_logits_of_the_kernel_that_are_not_finite_say_so(value):
    logits = _large(4, 2)
    logits[1, 4000] = float(value)
    with pytest.raises(ModelError, match="diverged"):
        _drawn(Sampler([SamplingParams()] * 2, CPU, np.array([0, 0])), logits)


@pytest.mark.parametrize("cut", [{}, {"top_k": 2}])
@pytest.mark.parametrize("vocab", [300, 9000])  # drawn by torch, and by the compiled kernel
def test_a_mask_restricts_its_row_alone(vocab, cut):
    allowed = [7, 8, 250, 260]
    bits = np.zeros(280, bool)  # the tokenizer has fewer tokens than the model
    bits[allowed] = True
    mask = np.packbits(bits, bitorder="little")
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(0))
    free = torch.log_softmax(logits[0], -1)
    restricted = torch.log_softmax(logits[1, allowed], -1)
    seen = set()
    for seed in range(60):
        params = [SamplingParams(seed=seed), SamplingParams(seed=seed, **cut)]
        params.append(SamplingParams(seed=seed, temperature=0.0))
        sampler = Sampler(params, torch.device("cpu"), np.zeros(3, np.int64))
        tokens, logprobs = checked_draws(sampler.draw(logits.clone(), {1: mask, 2: mask}).numpy())
        assert logprobs[0] == pytest.approx(float(free[tokens[0]]), abs=1e-5)
        seen.add(tokens[1])
        assert tokens[2] == allowed[int(logits[2, allowed].argmax())]
        if not cut:
            assert logprobs[1] == pytest.approx(
                float(restricted[allowed.index(tokens[1])]), abs=1e-5
            )
    likeliest = [allowed[int(n)] for n in restricted.argsort(descending=True)]
    assert seen == set(likeliest[:2] if cut else allowed)
