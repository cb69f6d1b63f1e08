import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer
from update_fixtures import forked_groups, save_checkpoint, tiny_model

from ajet.core.errors import CheckpointError, ConfigError
from ajet.core.model.load import LoadedModel
from ajet.core.update.export import export_model
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings
from tests.fakes import chat_tokenizer

LORA = LoraSettings(rank=4, alpha=8, targets=("q_proj", "down_proj"))
IDS = torch.tensor([[1, 2, 3, 4]])


def learnt(tmp_path, **settings):
    """What a policy gives after an update, and its checkpoint."""
    policy = Policy(tiny_model(), UpdateSettings(lr=1e-2, **settings))
    policy.update(forked_groups())
    path = save_checkpoint(tmp_path / "checkpoints", 1, *policy.state_dict())
    return policy.model(IDS).logits.detach(), path


def begun_with():
    return LoadedModel(tiny_model(), chat_tokenizer("qwen2_5"), "tiny")


def test_transformers_loads_what_the_policy_has_learnt(tmp_path):
    logits, path = learnt(tmp_path)
    export_model(begun_with(), path, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model(IDS).logits, logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == chat_tokenizer("qwen2_5").chat_template


def test_adapters_are_merged_or_written_alone(tmp_path):
    from peft import PeftModel

    logits, path = learnt(tmp_path, lora=LORA)
    export_model(begun_with(), path, tmp_path / "merged", lora=LORA)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged(IDS).logits, logits, rtol=1e-4, atol=1e-5)
    assert not any("lora" in name for name, _ in merged.named_parameters())
    export_model(begun_with(), path, tmp_path / "alone", lora=LORA, adapter=True)
    assert (tmp_path / "alone" / "adapter_config.json").is_file()
    adapted = PeftModel.from_pretrained(tiny_model(), str(tmp_path / "alone"))
    torch.testing.assert_close(adapted(IDS).logits, logits, rtol=1e-4, atol=1e-5)


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    _, path = learnt(tmp_path)
    with pytest.raises(CheckpointError, match="exists already"):
        export_model(begun_with(), path, tmp_path)


def test_adapters_of_a_run_without_them_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match="has no adapters"):
        export_model(begun_with(), tmp_path, tmp_path / "out", adapter=True)


def test_a_checkpoint_of_another_model_is_one_line_and_leaves_nothing(tmp_path):
    _, path = learnt(tmp_path)
    other = LoadedModel(tiny_model(num_hidden_layers=3), chat_tokenizer("qwen2_5"), "other")
    with pytest.raises(CheckpointError, match=f"{path} does not fit the model: model.layers"):
        export_model(other, path, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoints"]


class FullDisk:
    """A tokenizer whose files do not fit any more."""

    def __init__(self, error):
        self.error = error

    def save_pretrained(self, folder):
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")]
)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, error):
    _, path = learnt(tmp_path)
    loaded = LoadedModel(tiny_model(), FullDisk(error), "tiny")
    with pytest.raises(CheckpointError, match=r"out was not written: No space left on device$"):
        export_model(loaded, path, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoints"]
