"""A teacher behind a server gives the local teacher's numbers, and whatever else is one line."""

import json
import re

import numpy as np
import pytest
import torch

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.errors import ConfigError, RunFailed
from ajet.core.learning.teacher_server import (
    ServerAddress,
    TeacherServer,
    generate_logprobs,
)
from ajet.core.update.frozen_model import FrozenModel
from ajet.core.update.settings import UpdateSettings
from tests.core.update.update_fixtures import forked_groups, sample, tiny_model
from tests.env_server import StubService

NAN, INF = float("nan"), float("inf")


class StandIn:
    """Answers as vLLM (0.32) and SGLang (0.5.23) do, with a model's own numbers. A field that it
    does not know is an error, so that nothing is sent that they might not take."""

    def __init__(self, model, tokenizer=None, name="teacher", context=1024):
        self.model, self.tokenizer, self.name, self.context = model, tokenizer, name, context

    def __call__(self, path, body):
        if path == "/v1/models":
            card = {"id": self.name, "object": "model", "max_model_len": self.context}
            return 200, {"object": "list", "data": [card]}
        return 200, {
            "v1/completions": self.completions,
            "generate": self.generate,
            "detokenize": self.detokenize,
        }[path](**body)

    @torch.no_grad()
    def logprobs(self, ids):
        logits = self.model(torch.tensor([ids])).logits[0].double()
        rows = torch.log_softmax(logits, -1)[:-1]
        return [None, *rows[range(len(ids) - 1), ids[1:]].tolist()]

    def completions(self, model, prompt, max_tokens, prompt_logprobs):
        assert (model, max_tokens, prompt_logprobs) == (self.name, 1, 0)
        entries = [
            value and {str(token): {"logprob": value, "rank": 3, "decoded_token": "x"}}
            for token, value in zip(prompt, self.logprobs(prompt), strict=True)
        ]
        return {"choices": [{"index": 0, "text": "x", "prompt_logprobs": entries}]}

    def generate(self, input_ids, sampling_params, return_logprob, logprob_start_len):
        assert sampling_params == {"max_new_tokens": 1} and return_logprob
        size = self.model.config.vocab_size
        values = [None, *self.logprobs(input_ids)[logprob_start_len + 1 :]]
        names = [token if token < size - 1 else 0 for token in input_ids[logprob_start_len:]]
        entries = [[value, name, None] for value, name in zip(values, names, strict=True)]
        return {"text": "x", "meta_info": {"input_token_logprobs": entries}}

    def detokenize(self, model, tokens, skip_special_tokens=False):
        assert not skip_special_tokens
        text = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return {"prompt": text} if model == self.name else {}


def teacher_at(stub, **settings):
    address = {"base_url": f"{stub.url}/v1", "model": "teacher", "backoff_s": 0.0} | settings
    return TeacherServer(ServerAddress(**address))


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_a_server_gives_the_numbers_of_the_same_teacher_in_this_process(api):
    samples = [*forked_groups(), sample([3, 63, 5, 63], "0101")]
    expected = FrozenModel(tiny_model(1), UpdateSettings()).score(samples)
    with StubService(StandIn(tiny_model(1))) as stub:
        found = teacher_at(stub, api=api).score(samples)
    assert len(stub.calls) == sum(bool(each.num_trained) for each in samples) < len(samples)
    assert max(map(len, found)) > 20
    for ours, its in zip(expected, found, strict=True):
        assert its.dtype == np.float32
        np.testing.assert_allclose(its, ours, rtol=1e-5, atol=1e-5)


class TwoRanks:
    """One of two ranks; the other's values were gathered before."""

    size, dp_size, sequence = 2, 2, None

    def __init__(self, rank, others):
        self.rank, self.others, self.gathered = rank, others, None

    def all_gather(self, value):
        self.gathered = value
        return [value, self.others] if self.rank == 0 else [self.others, value]


def test_each_rank_asks_for_its_share_and_has_all_scores():
    samples = forked_groups()
    trained = [each for each in samples if each.num_trained]
    with StubService(StandIn(tiny_model(1))) as stub:
        alone = teacher_at(stub).score(samples)
        second = TwoRanks(1, ([np.zeros(len(each), np.float32) for each in trained[::2]], None))
        TeacherServer(teacher_at(stub)._at, second).score(samples)
        stub.calls.clear()
        found = TeacherServer(teacher_at(stub)._at, TwoRanks(0, second.gathered)).score(samples)
    assert len(stub.calls) == len(trained[::2])
    assert all(map(np.array_equal, found, alone))


def score_one(answer, **settings):
    """What the teacher makes of one sample of two sampled tokens, with these answers."""
    with StubService(answer) as stub:
        try:
            return teacher_at(stub, **settings).score([sample([1, 2, 3], "011")]), stub
        except RunFailed as error:
            assert "\n" not in str(error) and len(str(error)) < 400
            assert str(error).startswith(f"teacher teacher at {stub.url}/v1: ")
            return str(error), stub


def prompt_logprobs(*values, ids=(1, 2, 3)):
    entries = [None, *({str(n): {"logprob": v}} for n, v in zip(ids[1:], values, strict=True))]
    return {"choices": [{"prompt_logprobs": entries}]}


def input_logprobs(*entries):
    return {"meta_info": {"input_token_logprobs": list(entries)}}


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("no json", "the answer is no JSON"),
        ("[" * 100_000, "the answer is no JSON"),
        ([1], "no log-probabilities for 3 prompt tokens"),
        ({"choices": []}, "no log-probabilities for 3 prompt tokens"),
        ({"choices": [{"prompt_logprobs": None}]}, "no log-probabilities for 3 prompt tokens"),
        (prompt_logprobs(-1.0, ids=(1, 2)), "2 log-probabilities for 3 prompt tokens"),
        (prompt_logprobs(-1.0, NAN), r"of token 2 \(id 3\) is nan, and not a number from -10000"),
        (prompt_logprobs(-INF, -1.0), r"of token 1 \(id 2\) is -inf, and"),
        (prompt_logprobs(-1.0, 0.5), r"of token 2 \(id 3\) is 0\.5, and"),
        (prompt_logprobs(-1.0, -(10**400)), r"of token 2 \(id 3\) is -1000000"),
        (prompt_logprobs(-1.0, True), r"of token 2 \(id 3\) is none, and"),
        (prompt_logprobs(-1.0, "-1"), r"of token 2 \(id 3\) is none, and"),
        (prompt_logprobs(-1.0, -1.0, ids=(1, 2, 4)), r"of token 2 \(id 3\) is none, and"),
    ],
)
def test_an_answer_of_another_form_is_one_line_and_no_score(answer, line):
    found, stub = score_one(lambda path, body: (200, answer))
    assert isinstance(found, str) and re.search(line, found), found
    assert len(stub.calls) == 1


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ([[None, 1, None], [-1.0, 2, None]], "2 log-probabilities for 3 prompt tokens"),
        ([[None, 1], [-1.0, 9], [-1.0, 3]], r"token 1 \(id 2\) is none"),
        ([[None, 1], [-1.0, False], [-1.0, 3]], r"token 1 \(id 2\) is none"),
        ([[None, 1], [NAN, 2], [-1.0, 3]], r"token 1 \(id 2\) is nan"),
        ([None, None, None], r"token 1 \(id 2\) is none"),
    ],
)
def test_an_answer_of_sglangs_that_does_not_fit_is_one_line(entries, line):
    with pytest.raises(ValueError, match=line):
        generate_logprobs(input_logprobs(*entries), [1, 2, 3], 1)


def test_a_busy_server_is_asked_again_and_a_refusal_is_not():
    statuses = iter([503, 429, 200])
    found, stub = score_one(lambda path, body: (next(statuses), prompt_logprobs(-1.0, -2.0)))
    assert found[0].tolist() == [0.0, -1.0, -2.0] and len(stub.calls) == 3
    found, stub = score_one(lambda path, body: (400, {"message": "too\nlong"}))
    assert "/v1/completions: 400" in found and "too" in found and len(stub.calls) == 1


def test_a_server_that_stays_away_ends_the_step_after_the_last_retry():
    found, stub = score_one(lambda path, body: None, max_retries=2)
    assert "cannot be reached or broke off" in found and found.endswith("(tried 3 times)")
    assert len(stub.calls) == 3


def test_an_answer_that_is_too_large_is_refused_unread():
    huge = prompt_logprobs(-1.0, -2.0) | {"rest": "x" * (65 << 20)}
    found, stub = score_one(lambda path, body: (200, json.dumps(huge)))
    assert "the answer has more than" in found and len(stub.calls) == 1


def test_the_key_goes_in_the_header_alone_and_never_into_an_error(monkeypatch):
    monkeypatch.setenv("AJET_TEACHER_API_KEY", "tk-very-secret")
    found, stub = score_one(lambda path, body: (401, {"message": "bad key tk-very-secret"}))
    assert "bad key ***" in found and "tk-very-secret" not in found
    assert stub.headers[0]["Authorization"] == "Bearer tk-very-secret"


# --- before the run ------------------------------------------------------------------------------


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "ajet: {model: {path: 'embedded:math', device: cpu}, kind: distillation,"
        " rollout: {temperature: 1.0, max_model_len: 512}}\n"
    )
    return lambda *overrides: load_config(path, [f"ajet.distillation.{o}" for o in overrides])


def assembled(load, stand_in, *overrides):
    with StubService(stand_in) as stub:
        config = load(f"base_url={stub.url}/v1", "model=teacher", "timeout_s=5", *overrides)
        loaded = assembly.load_policy_model(config)
        return assembly.make_learner(config, loaded).teacher.scorer, stub


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_a_server_with_the_same_tokens_is_taken_and_has_the_configs_settings(load, api):
    tokenizer = assembly.load_policy_model(load("path=x")).tokenizer
    teacher, stub = assembled(
        load, StandIn(None, tokenizer), f"api={api}", "max_retries=1", "max_parallel=2"
    )
    at = teacher._at
    assert (at.api, at.timeout_s, at.max_retries, at.max_parallel) == (api, 5.0, 1, 2)
    assert [path for path, _ in stub.calls] == ["/v1/models", "detokenize"]
    assert sorted(stub.calls[1][1]["tokens"]) == sorted(tokenizer.get_vocab().values())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"name": "other"}, "there is no model of this name; it has other"),
        ({"context": 512}, "its context has 512 tokens, and .* up to 513"),
    ],
)
def test_a_server_that_cannot_score_the_runs_tokens_is_one_line(load, change, line):
    tokenizer = assembly.load_policy_model(load("path=x")).tokenizer
    with pytest.raises(ConfigError, match=f"^ajet.distillation: teacher teacher at .*{line}"):
        assembled(load, StandIn(None, tokenizer, **change))


def test_a_server_with_other_tokens_or_that_names_none_is_one_line(load):
    config = load("path=x")
    tokenizer = assembly.load_policy_model(config).tokenizer
    tokenizer.add_tokens(["more"])
    other = assembly.load_policy_model(config, "embedded:frozen_lake").tokenizer
    with pytest.raises(ConfigError, match=r"its tokens 0 to \d+ are not the policy's"):
        assembled(load, StandIn(None, other))
    silent = StandIn(None, other)
    silent.detokenize = lambda **body: {}
    with pytest.raises(ConfigError, match=r"its tokens 0 to \d+ are not the policy's"):
        assembled(load, silent)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["base_url=http://h/v1"], r"distillation\.model is refused: .* name on that server"),
        (["base_url=http://h/v1", "model=m", "path=p"], "path is refused: several are named"),
        (["base_url=http://me:pw@h/v1", "model=m"], "the address at h: leave the login out"),
        (["base_url=h", "model=m"], "an address begins with http"),
    ],
)
def test_a_half_named_server_is_one_line(load, overrides, line):
    with pytest.raises(ConfigError, match=line):
        load(*overrides)


def test_a_server_needs_temperature_one(tmp_path, load):
    path = tmp_path / "hot.yaml"
    path.write_text(
        "ajet: {model: {path: 'embedded:math'}, kind: distillation,"
        " distillation: {base_url: 'http://h/v1', model: m}}\n"
    )
    with pytest.raises(ConfigError, match=r"rollout\.temperature is refused: .* set 1"):
        load_config(path, [])
