"""A learner's checkpoint is a model that loads by itself, unless it holds adapters alone."""

import pytest
import torch

from ajet.core.advantage import EstimatorSettings
from ajet.core.advantage.kl_controller import AdaptiveKLController
from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.errors import CheckpointError
from ajet.core.learning.checkpoints import LearnerCheckpoints
from ajet.core.learning.learner import Learner, LearnerSettings
from ajet.core.model.load import LoadedModel
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings
from tests.core.update.update_fixtures import save_checkpoint, tiny_model
from tests.fakes import chat_tokenizer


def checkpoints(seed=0, keep=2, **update):
    model = tiny_model(seed)
    loaded = LoadedModel(model, chat_tokenizer("qwen2_5"), "tiny")
    policy = Policy(model, UpdateSettings(**update))
    controller = AdaptiveKLController(0.5, 0.1, 9)
    learner = Learner(policy, None, controller, LearnerSettings(EstimatorSettings()))
    return learner, LearnerCheckpoints(learner, loaded, keep=keep)


def weights(learner):
    return {name: tensor.clone() for name, tensor in learner.policy.state_dict().tensors.items()}


def test_weights_and_states_come_back_with_the_runs_own(tmp_path):
    learner, kept = checkpoints()
    learner.kl.coef = 0.75
    kept.save(tmp_path, 4, {"step": 4})
    (path,) = tmp_path.glob("step_*")
    assert path.name == "step_000004" and read_state(path)["run"] == {"step": 4}
    other, there = checkpoints(seed=1)
    there.load(path)
    assert other.kl.coef == 0.75
    assert all(torch.equal(weights(other)[n], w) for n, w in weights(learner).items())


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": 5},
        {"policy": {}},
        {"policy": {"num_steps": -1, "num_skipped": 0}},
        {"policy": {"num_steps": "x", "num_skipped": 0}},
        {"kl": {"coef": "x"}},
        {"kl": 5},
    ],
)
def test_a_state_of_another_shape_is_one_line_and_nothing_is_loaded(tmp_path, changes):
    learner, _ = checkpoints()
    tensors, state = learner.state_dict()
    path = save_checkpoint(tmp_path, 1, tensors, state | changes)
    other, there = checkpoints(seed=1)
    before = weights(other)
    with pytest.raises(CheckpointError, match=f"{path} cannot be used: state.json: ") as caught:
        there.load(path)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(weights(other)[n], w) for n, w in before.items())


def test_a_checkpoint_loads_as_a_model_by_itself(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    learner, kept = checkpoints()
    kept.save(tmp_path, 1, {})
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "step_000001")
    assert torch.equal(found.lm_head.weight, learner.policy.model.lm_head.weight)
    assert AutoTokenizer.from_pretrained(tmp_path / "step_000001").chat_template


def test_adapters_alone_have_no_files_of_a_model_beside_them(tmp_path):
    pytest.importorskip("peft")
    _, kept = checkpoints(lora=LoraSettings(rank=2))
    kept.save(tmp_path, 1, {})
    assert not (tmp_path / "step_000001" / "config.json").exists()


def test_in_the_background_a_checkpoint_holds_what_it_was_prepared_with(tmp_path):
    learner, kept = checkpoints()
    before, run = weights(learner), {"step": 1, "cursor": {"epoch": 0}}
    write = kept.prepare(tmp_path, 1, run, copies=True)
    with torch.no_grad():
        for weight in learner.policy.model.parameters():
            weight.add_(1.0)
    learner.kl.coef, run["cursor"]["epoch"] = 0.75, 1
    other, there = checkpoints(seed=1)
    there.load(write())
    assert all(torch.equal(weights(other)[n], w) for n, w in before.items())
    assert other.kl.coef == 0.5
    assert read_state(tmp_path / "step_000001")["run"]["cursor"] == {"epoch": 0}


def test_so_many_checkpoints_are_kept(tmp_path):
    _, kept = checkpoints(keep=3)
    for step in range(1, 6):
        kept.save(tmp_path, step, {})
    assert sorted(path.name[-1] for path in tmp_path.glob("step_*")) == ["3", "4", "5"]
