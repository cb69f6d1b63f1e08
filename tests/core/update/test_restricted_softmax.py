"""Replies under a grammar: the update restricts the policy as the engine did."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from ajet.core.errors import ModelError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.grammar import json_rule, reply_grammar
from ajet.core.model.precision import to_float64
from ajet.core.trajectory.sample import FORCED, FREE
from ajet.core.trajectory.samples import timelines, with_advantages
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.core.update.layouts.layout import Row
from ajet.core.update.loss import score_tokens
from ajet.core.update.policy import Policy
from ajet.core.update.restricted_softmax import RowMasks
from ajet.core.update.settings import UpdateSettings
from ajet.engines.in_process import InProcessEngine
from tests.fakes import chat_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"enum": [1, 12, 345]}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def template():
    return ChatTemplate(chat_tokenizer("qwen2_5"))


def make_model(template):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(template.tokenizer) + 5,  # padded, as models' vocabularies are
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    return to_float64(Qwen2ForCausalLM(config))


def grammar_of(template):
    return reply_grammar(json_rule(SCHEMA), template.end_token_id)


def conversation(template, model, seed, grammars):
    """Turns of one conversation, the k-th sampled under the k-th grammar."""
    engine = InProcessEngine(
        model, stop_token_ids=template.stop_token_ids, grammars=template.grammars
    )

    async def play():
        turns, prompt = [], [5, 6, 7]
        for number, grammar in enumerate(grammars):
            sampling = SamplingParams(
                temperature=TEMPERATURE, max_tokens=40, seed=seed, grammar=grammar
            )
            completion = await engine.generate(prompt, sampling, f"e{seed}/{number}")
            turns.append(Turn(completion, [], None, {}, notes=TurnNotes(grammar=grammar)))
            prompt = [*prompt, *completion.token_ids, 8, 9]
        await engine.close()
        return turns

    return asyncio.run(play())


def samples_of(template, model, num=2):
    grammar, samples = grammar_of(template), []
    for seed in range(num):
        turns = conversation(template, model, seed, [grammar, "", grammar])
        rng = np.random.default_rng(seed)
        advantages = [rng.normal(size=len(t.completion.token_ids)).astype("f4") for t in turns]
        laid_out = timelines(turns, grammars=template.grammars, episode_id=str(seed), group_id="0")
        samples += with_advantages(laid_out, {str(seed): advantages})
    return samples


def allowed_by_bias(template, grammar, token_ids):
    """What llguidance adds to logits: one byte for each token, 0 where it is refused."""
    matcher = template.grammars.matcher(grammar)._matcher
    rows = []
    for token_id in token_ids:
        rows.append(np.frombuffer(matcher.compute_logit_bias(), np.uint8) > 0)
        assert matcher.consume_token(token_id)
    return torch.tensor(np.stack(rows)[:, : len(template.tokenizer)])


def reference_logprobs(template, model, sample):
    """Of the sample's trained tokens, with entropies: transformers' own forward pass, and every
    token that the grammar refuses at -inf."""
    logits = model(torch.tensor(sample.token_ids[None])).logits[0] / TEMPERATURE
    trained = np.flatnonzero(sample.loss_mask)
    logits = logits[trained - 1]
    refused = torch.zeros_like(logits, dtype=torch.bool)
    for span in sample.spans:
        if sample.masks.numbers_T[span.start] == FREE:
            continue
        rows = torch.tensor((trained >= span.start) & (trained < span.stop))
        ids = sample.token_ids[span.start : span.stop].tolist()
        allowed = allowed_by_bias(template, grammar_of(template), ids)
        refused[rows] = torch.nn.functional.pad(~allowed, (0, 5), value=True)
    logprobs = torch.log_softmax(logits.masked_fill(refused, -torch.inf), -1)
    entropy = -(logprobs.exp() * logprobs.masked_fill(refused, 0.0)).sum(-1)
    return logprobs.gather(1, torch.tensor(sample.token_ids[trained])[:, None])[:, 0], entropy


def test_replies_follow_their_schema_and_others_in_the_batch_do_not_notice(template):
    model, grammar = make_model(template), grammar_of(template)
    for seed in range(5):
        first, free, last = conversation(template, model, seed, [grammar, "", grammar])
        for turn in (first, last):
            value = json.loads(template.decode(turn.completion.token_ids))
            assert len(value["name"]) <= 5 and value["n"] in (1, 12, 345)
        assert not template.decode(free.completion.token_ids).startswith("{")
    alone = conversation(template, model, 3, [""])[0].completion
    assert alone == conversation(template, model, 3, ["", grammar])[0].completion


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_the_trainers_log_probabilities_are_the_engines(template, layout):
    model = make_model(template)
    samples = samples_of(template, model)
    settings = UpdateSettings(temperature=TEMPERATURE, batch_layout=layout)
    for sample, score in zip(samples, Policy(model, settings).score(samples), strict=True):
        np.testing.assert_allclose(score, sample.logprobs, atol=1e-6)
        forced = sample.masks.numbers_T == FORCED
        assert forced.sum() > 10 and not score[forced].any() and not sample.logprobs[forced].any()


@pytest.mark.parametrize("entropy_coef", [0.0, 0.05])
@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_the_gradient_equals_a_dense_float64_reference(template, layout, entropy_coef):
    model = make_model(template)
    samples = samples_of(template, model)
    # By hand: within the clip bounds the loss of a token is -advantage * ratio, less the entropy;
    # each of the two episodes counts 1/2, which float32 holds exactly.
    reference = make_model(template)
    loss = 0.0
    for sample in samples:
        logprobs, entropy = reference_logprobs(template, reference, sample)
        advantages = torch.tensor(sample.advantages[sample.loss_mask]).double()
        ratio = (logprobs - torch.tensor(sample.logprobs[sample.loss_mask]).double()).exp()
        loss = loss - (advantages * ratio + entropy_coef * entropy).sum() / 2
    loss.backward()
    settings = UpdateSettings(
        lr=0.0,
        grad_clip=0.0,
        temperature=TEMPERATURE,
        batch_layout=layout,
        entropy_coef=entropy_coef,
        loss_agg_mode="seq-mean-token-sum",
    )
    policy = Policy(model, settings)
    metrics = policy.update(samples)
    moments = policy.optimizer.tensors()
    for name, weight in reference.named_parameters():
        found = 10 * next(t for n, t in moments.items() if n.endswith(f"{name}.exp_avg"))
        torch.testing.assert_close(found, weight.grad, rtol=1e-9, atol=1e-12, msg=name)
    masks = [sample.masks.numbers_T for sample in samples]
    restricted = sum(int((numbers != FREE).sum()) for numbers in masks)
    forced = sum(int((numbers == FORCED).sum()) for numbers in masks)
    assert metrics["restricted_tokens"] == restricted
    assert metrics["forced_fraction"] == pytest.approx(forced / restricted)


def test_slices_of_the_logits_change_nothing(template):
    model = make_model(template)
    rows = [Row.of(sample, n) for n, sample in enumerate(samples_of(template, model))]
    policy = Policy(model, UpdateSettings(temperature=TEMPERATURE))
    whole = policy.scores(rows)
    output = policy.layout.forward(rows)
    targets = torch.tensor(np.concatenate([row.targets for row in rows]))
    masks = RowMasks.of(rows, policy.device)
    for max_logits in (1, 3 * output.vocab_size):
        scores = score_tokens(output, targets, TEMPERATURE, True, max_logits, masks=masks)
        torch.testing.assert_close(scores.logprobs_M, whole.logprobs_M)
        torch.testing.assert_close(scores.entropy_M, whole.entropy_M)


def test_an_update_of_forced_tokens_alone_changes_nothing(template):
    grammar = reply_grammar('"yes"', template.end_token_id)
    model = make_model(template)
    turns = conversation(template, model, 0, [grammar])
    assert template.decode(turns[0].completion.token_ids) == "yes"
    assert turns[0].completion.logprobs == (0.0,) * 4
    laid_out = timelines(turns, grammars=template.grammars, episode_id="0", group_id="0")
    [sample] = with_advantages(laid_out, {"0": [np.ones(4, "f4")]})
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    metrics = Policy(model, UpdateSettings(lr=0.1, weight_decay=0.0)).update([sample])
    assert metrics["grad_norm"] == 0.0 and metrics["forced_fraction"] == 1.0
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())


def test_a_token_that_the_grammar_refuses_is_an_error(template):
    turn = conversation(template, make_model(template), 0, [grammar_of(template)])[0]
    ids = (*turn.completion.token_ids[:-1], 5)
    completion = replace(turn.completion, token_ids=ids)
    turn = replace(turn, completion=completion)
    with pytest.raises(ModelError, match="token 5 was sampled, which it does not allow"):
        timelines([turn], grammars=template.grammars)
