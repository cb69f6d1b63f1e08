"""Experts from the engine to the gradient: recorded for each token, replayed in every layout."""

import asyncio
import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.precision import to_float64
from ajet.core.model.routers import Routers
from ajet.core.model.routes import unknown as unknown_route
from ajet.core.trajectory.samples import timelines
from ajet.core.trajectory.turn import Turn
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.engines.in_process import InProcessEngine
from tests.core.model.families import family_model

FLAT = ["deepseek_v3", "granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"]
BY_TRANSFORMERS = ["gpt_oss", "lfm2_moe", "qwen3_5_moe_text", "qwen3_next"]
"""Families that the engine samples through transformers: windows, sinks, or layers with states."""
NUM_TURNS = 3


async def _episode(engine, number):
    """An episode whose first question it shares with others; every second one comes late."""
    episode_id, turns = f"e{number}", []
    engine.enter(episode_id)
    ids = [*range(5, 25), 5 + number // 4]
    for turn in range(NUM_TURNS):
        sampling = SamplingParams(max_tokens=3 + number % 4, seed=10 * number + turn)
        completion = await engine.generate(ids, sampling, f"{episode_id}/{turn:04d}")
        turns.append(Turn(completion, [], None, {}))
        ids = [*completion.prompt_ids, *completion.token_ids, 6, 7 + turn]
    engine.leave(episode_id)
    return turns


def episodes(model, num=8, **options):
    """Returns the turns of episodes that the engine samples."""

    async def run():
        engine = InProcessEngine(model, stop_token_ids=(3,), records_routes=True, **options)
        try:
            return await asyncio.gather(*(_episode(engine, number) for number in range(num)))
        finally:
            await engine.close()

    return asyncio.run(run())


def own_choice(model, ids):
    """The experts that the model chooses for a sequence by itself."""
    routers = Routers.of(model)
    routers.begin()
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    return routers.end().numpy()


@cache
def samples(name):
    """Timelines of sampled episodes, with advantages."""
    made = []
    for number, turns in enumerate(episodes(family_model(name))):
        for sample in timelines(turns, episode_id=f"e{number}", group_id=f"g{number // 4}"):
            advantages = sample.loss_mask * np.float32((-1.0) ** number * (1 + number))
            made.append(replace(sample, advantages=advantages))
    return made


def other_model(name):
    """A model whose routers choose other experts for many tokens."""
    model = family_model(name)
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            noise = torch.randn(module.weight.shape, generator=generator)
            module.weight.data += 0.5 * module.weight.std() * noise
    return model


def policy(model, **settings):
    plain = {"clip_high": 1e9, "lr": 0.0, "max_tokens_per_micro_batch": 150}
    return Policy(model, UpdateSettings(routing_replay=True, **plain | settings))


@pytest.mark.parametrize("name", FLAT + BY_TRANSFORMERS)
@pytest.mark.parametrize("options", [{}, {"max_num_seqs": 3, "max_kv_tokens": 300}])
def test_the_engine_records_the_experts_of_every_token(name, options):
    """Whatever is shared, cached, evicted and joins late: what it records is what the model chooses
    for the whole sequence."""
    model = family_model(name)
    for turns in episodes(model, **options):
        for turn in turns:
            ids = [*turn.completion.prompt_ids, *turn.completion.token_ids][:-1]
            recorded = turn.completion.routes
            assert recorded.dtype == np.uint8
            expected = own_choice(model, ids)
            assert (np.sort(recorded) == np.sort(expected)).all()


@pytest.mark.parametrize("name", FLAT + BY_TRANSFORMERS)
@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_every_layout_computes_with_the_recorded_experts(name, layout, monkeypatch):
    trainer = policy(other_model(name), batch_layout=layout)
    computed = []
    end = Routers.end
    monkeypatch.setattr(Routers, "end", lambda self: computed.append(end(self)) or computed[-1])
    monkeypatch.setattr(Routers, "begin", noted_begin := _Noted(Routers.begin))
    scores = trainer.score(samples(name))
    used = [(g, c) for g, c in zip(noted_begin.given, computed, strict=True) if g is not None]
    unknown = unknown_route(trainer.layout.routers.dtype)
    assert used and all(((g == c) | (g == unknown)).all() for g, c in used)
    # The same log-probabilities as a router that is told its experts, over each sample alone.
    for sample, score in zip(samples(name), scores, strict=True):
        told = with_told_routers(other_model(name), sample.routes[: len(sample) - 1])
        with torch.no_grad():
            logits = told(input_ids=torch.from_numpy(sample.token_ids[None, :-1])).logits[0]
        expected = F.log_softmax(logits, -1).gather(1, torch.from_numpy(sample.token_ids[1:, None]))
        mask = sample.loss_mask
        assert np.abs(score[mask] - expected[:, 0].numpy()[mask[1:]]).max() < 2e-4


class _Noted:
    """`Routers.begin`, with the experts that passes were begun with."""

    def __init__(self, begin):
        self.begin, self.given = begin, []

    def __get__(self, routers, _):
        def begin(given=None, load=None):
            self.given.append(given)
            self.begin(routers, given, load)

        return begin


class ToldRouter(nn.Module):
    """Written for the test: the weights of given experts, for the families that normalise them
    after a softmax or take one over their logits."""

    def __init__(self, router, experts_Tk):
        super().__init__()
        self.router, self.experts_Tk = router, torch.from_numpy(experts_Tk.astype(np.int64))

    def forward(self, hidden, *bias):
        router, experts = self.router, self.experts_Tk
        hidden = hidden.reshape(-1, hidden.shape[-1])
        logits = hidden @ router.weight.T + getattr(router, "bias", 0.0)
        name = type(router).__name__.lower()
        if name.startswith(("gptoss", "granite")):
            weights = logits.gather(1, experts).softmax(-1)
        elif name.startswith(("deepseek", "lfm2")):
            weights = logits.sigmoid().gather(1, experts)
            if router.norm_topk_prob:
                weights = weights / weights.sum(-1, keepdim=True)
            weights = weights * router.routed_scaling_factor
        else:
            weights = logits.softmax(-1).gather(1, experts)
            if getattr(router, "norm_topk_prob", True):
                weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, experts


def with_told_routers(model, routes):
    layer = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("Router"):
                setattr(module, name, ToldRouter(child, routes[:, layer]))
                layer += 1
    return model


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_routers_gradient_is_that_of_a_float64_reference(layout, recompute):
    """-sum_t A_t * log pi(t) / N, over each sample alone, with routers that are told their
    experts. Recomputation in the backward pass uses the same experts."""
    name, chosen = "qwen3_moe", samples("qwen3_moe")
    model = to_float64(other_model(name))
    trainer = policy(model, batch_layout=layout, activation_checkpointing=recompute)
    gradients = {}

    def keep(self, adam=None):
        gradients.update({n: p.grad.clone() for n, p in self.model.named_parameters()})
        self.optimizer.zero_grad()
        return step(self, adam)

    step = Policy.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policy, "step", keep)
        metrics = trainer.update(exact(chosen, trainer))
    reference = to_float64(other_model(name))
    total = 0.0
    for sample in chosen:
        told = with_told_routers(copy.deepcopy(reference), sample.routes[: len(sample) - 1])
        logits = told(input_ids=torch.from_numpy(sample.token_ids[None, :-1])).logits[0]
        logprobs = F.log_softmax(logits, -1).gather(1, torch.from_numpy(sample.token_ids[1:, None]))
        (-(logprobs[:, 0] * torch.from_numpy(sample.advantages[1:]).double()).sum()).backward()
        for p, q in zip(reference.parameters(), told.parameters(), strict=True):
            if q.grad is not None:
                p.grad = q.grad.clone() if p.grad is None else p.grad + q.grad
        total += sample.num_trained
    routers = [n for n in gradients if n.endswith("gate.weight")]
    assert len(routers) == 4
    expected = dict(reference.named_parameters())
    for n in gradients:
        # The router of transformers takes its softmax in float32.
        assert torch.allclose(gradients[n], expected[n].grad / total, atol=1e-7, rtol=1e-5), n
    assert metrics["router_changed"] > 0.05


def exact(chosen, trainer):
    """The samples with the trainer's log-probabilities, so that all ratios are 1."""
    scores = trainer.score(chosen)
    return [replace(s, logprobs=x.astype(np.float32)) for s, x in zip(chosen, scores, strict=True)]


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_replay_brings_an_imprecise_sampler_and_the_trainer_together(noise):
    """The sampler's routers differ a little: the mean difference falls by more than five times."""
    shape = {"num_experts": 16, "norm_topk_prob": True, "initializer_range": 0.1}
    sampler = family_model("qwen3_moe", **shape)
    for module in sampler.modules():
        if type(module).__name__.endswith("Router"):
            torch.manual_seed(2)
            module.weight.data += noise * module.weight.std() * torch.randn(module.weight.shape)
    chosen = [s for turns in episodes(sampler, 16) for s in timelines(turns)]
    exact_model = family_model("qwen3_moe", **shape)
    differences = {}
    for replays in (True, False):
        trainer = Policy(copy.deepcopy(exact_model), UpdateSettings(routing_replay=replays))
        gaps = [
            np.abs(score - sample.logprobs)[sample.loss_mask]
            for sample, score in zip(chosen, trainer.score(chosen), strict=True)
        ]
        differences[replays] = np.concatenate(gaps).mean()
    assert differences[False] > 5 * differences[True]


def test_a_model_without_experts_is_refused():
    with pytest.raises(ConfigError, match="has no experts to replay; leave it false"):
        policy(family_model("llama"))
