"""A reply ends at its first stop string, the same whether the engine stops there or not."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.core.inference.endpoint import Completion, SamplingParams, cut_at_stop
from ajet.engines.in_process import InProcessEngine
from tests.core.update.update_fixtures import tiny_model

LETTERS = "abcdefgh"


def letters(ids):
    """One letter a token."""
    return "".join(LETTERS[token_id % 8] for token_id in ids)


def completion(text):
    ids = tuple(LETTERS.index(letter) for letter in text)
    return Completion((1,), ids, tuple(-float(i) for i in range(len(ids))), "length", 3)


def test_the_cut_falls_after_the_token_that_completes_the_first_stop_string():
    cut, stop = cut_at_stop(completion("abcdabcd"), ("da", "cd"), letters)
    assert (letters(cut.token_ids), stop) == ("abcd", "cd")
    assert cut.logprobs == (0.0, -1.0, -2.0, -3.0)
    assert (cut.finish_reason, cut.policy_version, cut.prompt_ids) == ("stop", 3, (1,))


def test_without_a_stop_string_nothing_is_cut():
    assert cut_at_stop(completion("abc"), ("d",), letters) is None


def test_a_stop_string_within_a_token_keeps_the_token():
    words = ["Ans", "wer", ": 4 Obs", "er", "vation: 5"]
    said = Completion((), (0, 1, 2, 3, 4), (0.0,) * 5, "stop", 0)
    cut, _ = cut_at_stop(said, ("Obs",), lambda ids: "".join(words[i] for i in ids))
    assert cut.token_ids == (0, 1, 2)


@given(st.text("abc", min_size=1, max_size=40), st.lists(st.text("abc", min_size=1, max_size=3)))
@settings(max_examples=200)
def test_one_token_fewer_never_holds_a_stop_string(text, stops):
    found = cut_at_stop(completion(text), stops, letters)
    assert (found is not None) == any(stop in text for stop in stops)
    if found is not None:
        cut, stop = found
        assert not any(stop in letters(cut.token_ids[:-1]) for stop in stops)
        assert letters(cut.token_ids).endswith(stop)


@pytest.mark.parametrize("seed", range(8))
def test_an_engine_that_stops_early_samples_the_same_tokens(seed):
    model = tiny_model(tie_word_embeddings=False).float()
    stops = ("abc", "g", "hh") if seed % 2 else ("ba", "cd")

    async def sampled(decode):
        engine = InProcessEngine(model, stop_token_ids=(63,), decode=decode)
        engine.enter("e")
        asked = SamplingParams(max_tokens=40, stop=stops, seed=seed)
        reply = await engine.generate([1, 2, 3], asked, "e/0000")
        await engine.close()
        return reply, engine.stats.sampled_tokens

    early, num_early = asyncio.run(sampled(letters))
    late, num_late = asyncio.run(sampled(None))
    found = cut_at_stop(late, stops, letters)
    expected = late if found is None else found[0]
    assert early.token_ids == expected.token_ids
    assert early.logprobs == pytest.approx(expected.logprobs, abs=1e-6)
    assert num_early == len(early.token_ids) <= num_late
