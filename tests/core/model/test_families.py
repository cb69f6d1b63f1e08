"""Each family of families.py is right in the engine and in the update, and in docs/models.md."""

import asyncio
import inspect

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

from ajet.cli.model_findings import WITHOUT_CACHE, WITHOUT_TEXT_MODEL
from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.decoder import decoder_layers
from ajet.core.model.precision import to_float64
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.engines.hf_forward import CACHE_NAMES, HfForward
from ajet.engines.in_process import InProcessEngine
from tests.core.model.families import ALL, FIRST, VOCAB, WINDOW, family_model
from tests.core.model.families_page import FLOAT32_INSIDE, PAGE, table
from tests.core.update.update_fixtures import sample


async def _episode(engine, number, replies):
    """Two turns. The members of a group share their prompt, and end at different tokens."""
    episode_id, group = f"e{number}", number // 2
    ids = [*range(1, WINDOW + 9), 10 + group, *range(1, 1 + 5 * group)]
    engine.enter(episode_id)
    for turn in range(2):
        sampling = SamplingParams(max_tokens=2 + 2 * number, seed=10 * number + turn)
        reply = await engine.generate(ids, sampling, f"{episode_id}/{turn:04d}")
        replies.append(reply)
        ids = [*reply.prompt_ids, *reply.token_ids, 7, number, turn]
    engine.leave(episode_id)


def _sampled(model, **options):
    async def run():
        engine, replies = InProcessEngine(model, stop_token_ids=(), **options), []
        await asyncio.gather(*(_episode(engine, number, replies) for number in range(4)))
        await engine.close()
        return replies

    return asyncio.run(run())


def _assert_exact(model, replies, atol=1e-4):
    """Every log-probability is that of the model's own forward over the whole sequence. Random
    weights are ill-conditioned: float32 and float64 differ by up to 1e-4 here."""
    for reply in replies:
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        found = torch.tensor(reply.logprobs, dtype=expected.dtype)
        torch.testing.assert_close(found, expected, rtol=10 * atol, atol=atol)


@pytest.mark.parametrize("name", FIRST | ALL)
def test_the_engine_returns_the_log_probabilities_of_the_model(name):
    model = family_model(name)
    replies = _sampled(model)
    assert sorted({len(reply.token_ids) for reply in replies}) == [2, 4, 6, 8]
    _assert_exact(model, replies)


@pytest.mark.parametrize(
    "name", ["gemma2", "gemma4_text", "gpt_oss", "minimax", "nemotron", "stablelm"]
)
def test_prompts_of_unequal_length_are_padded_exactly_in_float64(name):
    model = to_float64(family_model(name))
    replies = _sampled(model)
    assert len({len(reply.prompt_ids) for reply in replies}) > 1
    _assert_exact(model, replies, atol=1e-6 if name in FLOAT32_INSIDE else 1e-7)


@pytest.mark.parametrize("name", ["qwen3_5_text", "minimax"])
def test_rows_that_join_and_wait_are_exact(name):
    model = family_model(name)
    _assert_exact(model, _sampled(model, max_num_seqs=2, deterministic=False, gathers=False))


ROWS = [
    sample(
        np.random.default_rng(length).integers(1, VOCAB, length),
        "0" * 9 + "1" * (length - 15) + "0" * 4 + "11",
    )
    for length in (18, 29)
]


def _logprobs(layout, rows):
    out = layout.forward(rows)
    targets_M = torch.from_numpy(np.concatenate([row.targets for row in rows]))
    logits = out.head(out.features_UD)[out.index_M]
    return logits.log_softmax(-1).gather(1, targets_M[:, None])[:, 0]


def _gradients(name, recompute, row_by_row):
    model = to_float64(family_model(name))
    layout, rows = make_layout(model, "padded", recompute=recompute), rows_of(ROWS)
    parts = [[row] for row in rows] if row_by_row else [rows]
    logprobs = torch.cat([_logprobs(layout, part) for part in parts])
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    assert len(decoder_layers(model)) == model.config.num_hidden_layers
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    return logprobs.detach(), gradients


@pytest.mark.parametrize("name", FIRST | ALL)
def test_padded_rows_that_are_recomputed_have_the_gradient_of_single_ones(name):
    tolerance = 1e-6 if name in FLOAT32_INSIDE else 1e-13
    logprobs, expected = _gradients(name, False, row_by_row=True)
    found, gradients = _gradients(name, True, row_by_row=False)
    torch.testing.assert_close(found, logprobs, rtol=0, atol=10 * tolerance)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for weight, gradient in expected.items():
        assert float((gradients[weight] - gradient).abs().max()) <= tolerance * largest, weight


def test_an_expert_without_tokens_stays_as_it_is_and_its_state_is_saved():
    def policy():
        settings = UpdateSettings(lr=1e-2, weight_decay=0.0, batch_layout="padded")
        return Policy(family_model("qwen3_moe"), settings)

    def router_of(trained):
        return trained.model.model.layers[0].mlp.gate.weight

    trained = policy()
    with torch.no_grad():
        router_of(trained).zero_()  # a tie, which sends all tokens to the same two of four experts
    experts = trained.model.model.layers[0].mlp.experts.down_proj
    before = experts.detach().clone()
    metrics = trained.update(ROWS)
    assert np.isfinite(metrics["grad_norm"]) and metrics["grad_norm"] > 0
    changed = (experts != before).flatten(1).any(1)
    assert sorted(changed.tolist()) == [False, False, True, True]
    resumed = policy()
    saved = trained.state_dict()
    resumed.load_state_dict(saved.tensors, saved.state)
    for each in (trained, resumed):
        each.update(ROWS)
    weights = dict(resumed.model.named_parameters())
    assert all(torch.equal(weights[n], w) for n, w in trained.model.named_parameters())


def test_a_budget_of_bytes_counts_states_and_keys_and_values():
    config = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    forward = HfForward(family_model("qwen3_5_text", **config), None, 10_000)
    # Linear attention: 4 heads of 8 x 8, and 4 columns of 2 x 2 x 8 + 4 x 8 channels. Full
    # attention: keys and values of 2 heads of 12 for each token. All are float32.
    assert forward._cache_bytes == (4 * (4 * 8 * 8 + 4 * 64), 4 * 2 * 2 * 12)


def test_a_model_without_a_cache_is_refused():
    config = CONFIG_MAPPING["openai-gpt"](vocab_size=VOCAB, n_embd=8, n_layer=1, n_head=2)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match="'openai-gpt' have no cache") as error:
        InProcessEngine(model, stop_token_ids=())
    assert error.value.code is Code.MODEL_UNSUPPORTED


def test_the_types_that_check_refuses_are_those_that_transformers_lacks():
    configs = {name: CONFIG_MAPPING[name] for name in WITHOUT_CACHE + WITHOUT_TEXT_MODEL}
    for name in WITHOUT_CACHE:
        model = MODEL_FOR_CAUSAL_LM_MAPPING[configs[name]]
        assert not set(CACHE_NAMES) & set(inspect.signature(model.forward).parameters)
    for name in WITHOUT_TEXT_MODEL:
        text_config = configs[name]().get_text_config()
        assert not {type(text_config), configs[name]} & set(MODEL_FOR_CAUSAL_LM_MAPPING)


def test_the_page_has_every_family():
    """`python -m tests.core.model.families_page` writes the table."""
    assert table() in PAGE.read_text(encoding="utf-8")
