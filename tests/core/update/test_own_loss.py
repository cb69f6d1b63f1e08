"""A loss of the user's own, by file.py->name: the same gradient as ours, and one line for each
mistake."""

import pytest
from test_policy import gradient
from test_policy_losses import assert_same_gradient, near
from update_fixtures import forked_groups, sample, tiny_model

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.model.load import LoadedModel
from ajet.core.update.own_loss import own_loss
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings

PLAIN = """
import torch

def ratio(tokens, settings):
    return -tokens.advantages_M * tokens.ratio_M

class Gspo:
    def __init__(self, config):
        self.high = config.ajet.trainer_common.algorithm.clip_high

    def of_mini_batch(self, tokens, settings):
        return {"mean": tokens.episode_means(tokens.log_ratio_M)}

    def of_tokens(self, tokens, settings):
        own = tokens.logprobs_M - tokens.logprobs_M.detach()
        s = (tokens.mini_batch["mean"] + own).exp()
        cut = s.clamp(1 - settings.clip_low, 1 + self.high)
        return torch.maximum(-tokens.advantages_M * s, -tokens.advantages_M * cut)

def likely(tokens, settings):
    return -tokens.logprobs_M

class WithMetrics:
    def of_tokens(self, tokens, settings):
        from ajet.core.losses.token_loss import TokenLoss
        loss = -tokens.advantages_M * tokens.logprobs_M
        return TokenLoss(loss, tokens.ratio_M.detach(), {"odd": tokens.advantages_M > 0})

class Empty:
    pass

number = 3

def raises(tokens, settings):
    return tokens.advantages

def short(tokens, settings):
    return tokens.logprobs_M[:-1]

def nothing(tokens, settings):
    return None

def constant(tokens, settings):
    return tokens.advantages_M * 2

class ShortNumbers:
    def of_mini_batch(self, tokens, settings):
        return {"x": tokens.advantages_M[:-1]}
    def of_tokens(self, tokens, settings):
        return -tokens.ratio_M

class NoDict:
    def of_mini_batch(self, tokens, settings):
        return tokens.advantages_M
    def of_tokens(self, tokens, settings):
        return -tokens.ratio_M
"""
WIDE = dict(clip_low=0.9, clip_high=9.0)


@pytest.fixture
def config_of(tmp_path):
    (tmp_path / "losses.py").write_text(PLAIN)
    (tmp_path / "run.yaml").write_text(
        "ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}"
    )

    def made(name):
        key = "ajet.trainer_common.algorithm"
        overrides = [f"{key}.policy_loss=losses.py->{name}", f"{key}.clip_high=9.0"]
        return load_config(tmp_path / "run.yaml", overrides)

    return made


@pytest.mark.parametrize("budget", [100_000, 60])
@pytest.mark.parametrize(("name", "ours"), [("Gspo", "gspo"), ("WithMetrics", "gpg")])
def test_a_loss_of_the_users_own_has_the_gradient_of_the_same_loss_of_ours(
    config_of, name, ours, budget
):
    samples = near(forked_groups())
    passes = dict(max_tokens_per_micro_batch=budget, **WIDE)
    found, metrics = gradient(samples, loss=own_loss(config_of(name)), **passes)
    expected, _ = gradient(samples, policy_loss=ours, **passes)
    assert_same_gradient(found, expected)
    assert ("clip_fraction_odd" in metrics) == (name == "WithMetrics")


def test_a_loss_of_the_users_own_is_computed_where_the_advantage_is_0(config_of):
    silent = [sample([1, 2, 3, 4], "0011", advantage=0.0)]
    found, metrics = gradient(silent, loss=own_loss(config_of("likely")))
    assert (metrics["optimizer_steps"], metrics["skipped_samples"]) == (1, 0)
    assert max(grad.abs().max() for grad in found.values()) > 1e-3
    assert gradient(silent, policy_loss="gpg")[1]["optimizer_steps"] == 0


def test_the_policy_that_a_config_names_has_the_loss(config_of):
    loaded = LoadedModel(tiny_model(), None, "tiny")  # pyright: ignore[reportArgumentType]
    learner = assembly.make_learner(config_of("ratio"), loaded)
    assert learner.policy.loss.of_tokens.function.__name__ == "ratio"
    metrics = learner.policy.update(forked_groups())
    assert metrics["optimizer_steps"] == 1 and "clip_fraction_low" not in metrics


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rato", "losses.py has no function or class 'rato'; did you mean 'ratio'?"),
        ("Gsop", "losses.py has no function or class 'Gsop'; did you mean 'Gspo'?"),
        ("number", "name a function or a class"),
        ("Empty", "the class has no of_tokens(self, tokens, settings)"),
        ("raises", "losses.py:35: AttributeError: 'LossInputs' object has no attribute"),
        ("short", "return a tensor of ("),
        ("nothing", "it returned NoneType"),
        ("constant", "its loss has no gradient"),
        ("ShortNumbers", "of_mini_batch's 'x' is float32 of ("),
        ("NoDict", "of_mini_batch returned ndarray, not a dict"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(config_of, name, message):
    with pytest.raises(ConfigError) as error:
        policy = Policy(tiny_model(), UpdateSettings(), loss=own_loss(config_of(name)))
        policy.update(forked_groups())
    text = str(error.value)
    assert text.startswith("ajet.trainer_common.algorithm.policy_loss: ") and message in text
    assert "\n" not in text
