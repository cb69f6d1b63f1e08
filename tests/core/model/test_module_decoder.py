"""The flat forward by transformers' own modules gives the numbers of transformers' own attention,
in the engine and in an update, for each family that it takes."""

import asyncio
import json
import math

import numpy as np
import pytest
import torch
from loguru import logger
from transformers import AutoConfig, AutoModelForCausalLM

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.decoder import Decoder
from ajet.core.model.flat_decoder import FAMILIES, ModuleDecoder, flat_decoder, has_flat_decoder
from ajet.core.model.load import load_model
from ajet.core.model.wide_layer import MIN_WIDTH
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.engines.batch import Batch
from ajet.engines.flat_forward import FlatForward
from ajet.engines.forward import BatchRow
from ajet.engines.in_process import InProcessEngine
from tests.core.model.families import (
    ALL,
    FULL_ATTENTION,
    OTHER_ATTENTION,
    VOCAB,
    WINDOW,
    WITH_STATES,
    family_model,
)
from tests.core.update.update_fixtures import forked_groups
from tests.engines.taped_graph import TapedGraph


def gradients(name, layout, hidden_size=32, **options):
    """Returns the log-probabilities that a layout computes, and their gradients."""
    model = family_model(name, hidden_size=hidden_size)
    rows = rows_of(forked_groups(num_groups=2, group_size=3))
    output = make_layout(model, layout, **options).forward(rows)
    logits = output.head(output.features_UD)[output.index_M]
    targets = torch.from_numpy(np.concatenate([row.targets for row in rows]))
    logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    weights = torch.linspace(-1, 1, len(logprobs))
    (logprobs * weights).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logprobs.detach(), grads


TREES = FULL_ATTENTION | OTHER_ATTENTION | WITH_STATES


def test_the_families_that_are_compared_are_those_that_are_taken():
    models = {name: family_model(name) for name in ALL}
    taken = {name: flat_decoder(m) for name, m in models.items() if has_flat_decoder(m)}
    assert taken.keys() == TREES.keys() == FAMILIES
    longest = {name: decoder.longest_plain for name, decoder in taken.items()}
    assert {name for name, length in longest.items() if length == math.inf} == set(FULL_ATTENTION)
    windows = {name for name, length in longest.items() if length == WINDOW}
    assert windows == {"cohere2", "exaone4", "gemma3_text", "olmo3"}


@pytest.mark.parametrize("name", TREES)
def test_log_probabilities_and_gradients_of_a_tree_are_those_of_padded_rows(name):
    expected, expected_grads = gradients(name, "padded")
    assert expected.std() > 0.05  # weights large enough for a difference to show
    for layout, recompute in (("tree", False), ("tree", True), ("packed", False)):
        found, grads = gradients(name, layout, recompute=recompute)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert grads.keys() == expected_grads.keys()
        for each in grads:
            difference = (grads[each] - expected_grads[each]).norm()
            assert difference <= 1e-3 * expected_grads[each].norm(), each


@pytest.mark.parametrize("name", ["mistral", "phi", "gemma3_text", "lfm2"])
def test_wide_layers_have_the_gradients_of_transformers_own(name):
    """From a width of 256 on linear layers are computed by wide_layer.py; phi's have biases."""
    expected, expected_grads = gradients(name, "padded", MIN_WIDTH)
    for recompute in (False, True):
        found, grads = gradients(name, "tree", MIN_WIDTH, recompute=recompute)
        assert not torch.equal(found, expected)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
        for each in grads:
            difference = (grads[each] - expected_grads[each]).norm()
            assert difference <= 1e-3 * expected_grads[each].norm(), each


async def episodes(engine):
    """Samples two turns of four episodes, two for each question behind a system prompt."""

    async def episode(number):
        ids = [*range(1, 31), 40 + number // 2]
        engine.enter(name := f"e{number}")
        for turn in range(2):
            sampling = SamplingParams(max_tokens=6 + number, seed=10 * number + turn)
            reply = await engine.generate(ids, sampling, f"{name}/{turn}")
            replies.append(reply)
            ids = [*reply.prompt_ids, *reply.token_ids, 7, number]
        engine.leave(name)

    replies = []
    await asyncio.gather(*(episode(number) for number in range(4)))
    await engine.close()
    return replies


@pytest.mark.parametrize("name", FULL_ATTENTION)
def test_the_engine_samples_with_shared_prefixes_and_transformers_log_probabilities(name):
    model = family_model(name)
    engine = InProcessEngine(model, stop_token_ids=())
    replies = asyncio.run(asyncio.wait_for(episodes(engine), 60))
    for reply in replies:
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.inference_mode():
            logits = family_model(name)(ids).logits[0, len(reply.prompt_ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=5e-5)
    # 30 tokens of the system prompt are computed once for four episodes, and all of them are
    # found again at the second turn.
    assert engine.stats.cached_prompt_tokens > 0.7 * engine.stats.prompt_tokens


def test_a_decode_step_without_experts_can_be_captured():
    def tokens(graph):
        model = family_model("smollm3")
        batch = Batch(
            FlatForward(model, 2000, graph=graph), torch.device("cpu"), max_num_seqs=9, eager=False
        )
        sampling = SamplingParams(seed=1)
        batch.add([row := BatchRow("e/0", tuple(range(1, 9)), sampling, frozenset(), 30)])
        with torch.inference_mode():
            while batch.busy:
                batch.step()
        return row.ids, batch.forward.num_replayed

    assert flat_decoder(family_model("smollm3")).launches_the_same
    assert not flat_decoder(family_model("qwen3_moe")).launches_the_same
    eager, replayed = tokens(None), tokens(TapedGraph())
    assert (eager[1], replayed[1]) == (0, 21) and eager[0] == replayed[0]


@pytest.mark.parametrize("max_model_len, shares", [(WINDOW, True), (WINDOW + 1, False)])
def test_the_engine_shares_prefixes_where_no_sequence_leaves_the_window(max_model_len, shares):
    model = family_model("mistral", sliding_window=WINDOW)
    engine = InProcessEngine(model, stop_token_ids=(), max_model_len=max_model_len)

    async def twice():
        sampling = SamplingParams(max_tokens=6, seed=1)
        first = await engine.generate(range(1, 9), sampling, "e/0")
        ids = [*first.prompt_ids, *first.token_ids]
        replies = [first, await engine.generate(ids, sampling, "e/1")]
        await engine.close()
        return replies

    for reply in asyncio.run(asyncio.wait_for(twice(), 60)):
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=5e-5)
    assert (engine.stats.cached_prompt_tokens > 0) is shares


@pytest.mark.parametrize(
    "name, changes, why",
    [
        (
            "mistral",
            {"sliding_window": WINDOW},
            "ajet.rollout.max_model_len exceeds its window of 16 tokens",
        ),
        ("qwen3_5_text", {}, "not all of its layers are plain attention"),
        ("stablelm", {}, "it has no flat forward"),
        ("mistral", {}, None),
    ],
)
def test_a_slower_way_of_sampling_is_said(name, changes, why):
    said = []
    number = logger.add(said.append, format="{message}", level="INFO")
    engine = InProcessEngine(family_model(name, **changes), stop_token_ids=())
    logger.remove(number)
    asyncio.run(engine.close())
    lines = [line for line in said if "without shared prefixes" in line]
    assert len(lines) == (why is not None)
    assert why is None or lines[0].endswith(f"without shared prefixes: {why}\n")


def test_the_model_computes_as_before_where_no_attention_is_given(tmp_path):
    model = family_model("mistral")
    ids = torch.arange(1, 30).reshape(1, -1) % VOCAB
    before = model(ids, attention_mask=torch.ones_like(ids)).logits
    flat_decoder(model)
    assert torch.equal(model(ids, attention_mask=torch.ones_like(ids)).logits, before)
    model.save_pretrained(tmp_path)
    assert "ajet" not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "mistral"


@pytest.mark.parametrize(
    "name, changes",
    [
        ("gemma2", {}),
        ("stablelm", {}),
        (
            "smollm3",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        ),
    ],
)
def test_other_attention_is_refused(name, changes):
    model = family_model(name, **changes)
    assert not has_flat_decoder(model)
    with pytest.raises(ValueError, match="no flat forward"):
        ModuleDecoder(model)


def test_the_families_of_the_other_decoder_are_its_own():
    from ajet.core.model.decoder import FAMILIES as OWN

    assert not OWN & FAMILIES
    assert not Decoder.supports(family_model("mistral"))


def test_adapters_of_a_peft_wrapper_are_computed():
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "o_proj"])
    model = get_peft_model(family_model("mistral"), config).eval()
    ids = torch.arange(20) % VOCAB
    layout = make_layout(model, "auto")
    assert layout.name == "tree"
    [row] = rows_of(forked_groups(num_groups=1, group_size=1)[:1])
    output = layout.forward([row])
    found = output.head(output.features_UD)[output.index_M]
    expected = model(torch.from_numpy(row.input_ids)[None]).logits[0, row.positions]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(ids[None]).logits, family_model("mistral")(ids[None]).logits)


def test_the_demos_model_as_another_family_makes_the_same_update():
    """Seed-OSS with biases and without an output bias computes what Qwen2 does: the same weights
    go through both decoders."""
    qwen2 = load_model("embedded:math", device="cpu").model
    own = qwen2.config.to_dict()
    names = [
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"),
        *("rope_parameters", "max_position_embeddings"),
    ]
    config = AutoConfig.for_model(
        "seed_oss",
        **{name: own[name] for name in names},
        head_dim=own["hidden_size"] // own["num_attention_heads"],
        attention_bias=True,
        attention_out_bias=False,
    )
    seed_oss = AutoModelForCausalLM.from_config(config)
    seed_oss.load_state_dict(qwen2.state_dict())
    kinds, weights, scores = [], [], []
    for model in (qwen2, seed_oss):
        # AdamW divides by sqrt(v) + eps: with its usual eps rounding alone would make a whole step.
        policy = Policy(model, UpdateSettings(lr=1e-3, eps=1e-5, kl_loss_coef=0.1))
        kinds.append(type(policy.layout.decoder))
        before = [weight.detach().clone() for weight in policy.model.parameters()]
        policy.update(forked_groups(num_groups=2, group_size=3))
        weights.append(dict(policy.model.named_parameters()))
        assert not torch.equal(before[0], next(policy.model.parameters()))
        scores.append(np.concatenate(policy.score(forked_groups(1, num_groups=2, group_size=3))))
    assert kinds == [Decoder, ModuleDecoder]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=1e-5, msg=name)
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-3)
