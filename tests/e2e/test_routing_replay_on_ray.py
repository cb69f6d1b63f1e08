"""A mixture of experts whose routing is replayed, on backbones debug, verl and trinity in turns."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

from ajet.core.model.tokenizer import EMBEDDED_DIR
from tests.e2e.three_backbones import SETTINGS, episodes, numbers, run_on_each, weights

pytestmark = pytest.mark.ray


def mixture(folder):
    """Writes a random model of eight experts with the vocabulary of `embedded:math`."""
    source = EMBEDDED_DIR / "math"
    dense = json.loads((source / "config.json").read_text())
    shape = {name: dense[name] for name in ("vocab_size", "eos_token_id", "num_attention_heads")}
    config = Qwen2MoeConfig(
        **shape,
        hidden_size=32,
        num_hidden_layers=2,
        num_key_value_heads=2,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    Qwen2MoeForCausalLM(config).save_pretrained(folder)
    for file in source.iterdir():
        if not (folder / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    folder = tmp_path_factory.mktemp("experts")
    model = mixture(folder / "model")
    more = [f"ajet.model.path={model}", "ajet.rollout.routing_replay=true"]
    return run_on_each(folder, [*SETTINGS, *more])


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_the_run_is_the_same_and_computes_with_the_engines_experts(runs, backbone):
    assert episodes(runs[backbone]) == episodes(runs["debug"])
    names = ("update/loss", "update/router_balance", "update/router_aux_loss")
    debug, other = (numbers(runs[name], *names) for name in ("debug", backbone))
    assert np.abs(other - debug).max() < 1e-6
    debug, other = weights(runs["debug"]), weights(runs[backbone])
    assert max(np.abs(other[name] - debug[name]).max() for name in debug) < 1e-6


@pytest.mark.parametrize("backbone", ["debug", "verl", "trinity"])
def test_the_engine_and_the_trainer_choose_alike_in_float64(runs, backbone):
    """So all that is replayed is what the trainer would choose, and nothing is lost on the way."""
    changed, difference = numbers(
        runs[backbone], "update/router_changed", "update/logprob_diff_max"
    ).T
    assert (changed == 0).all()
    assert difference.max() < 1e-5
