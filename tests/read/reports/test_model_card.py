"""The card of an exported model says what was measured, and nothing of this machine."""

import pytest
import yaml

from ajet.core.config import load_config
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.record.summary import RunSummary
from ajet.read.folders import without_folders
from ajet.read.reports.model_card import model_card

CONFIG = """
ajet:
  model: {path: Qwen/Qwen2.5-0.5B-Instruct}
  seed: 7
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: /home/ada/secret_client/train.jsonl}}
  rollout: {user_workflow: solver.py->Solver, num_repeat: 8}
  task_judge: {judge_protocol: math}
  trainer_common: {total_training_steps: 40, lora: {rank: 16}}
my_agent:
  api_key: swordfish-42-x
  tool_path: ~/tools/search.py
  server_url: https://host.example/v1/search
"""


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "solver") as folder:
        RunOrigin(None, None, str(tmp_path), "2026-03-01T09:30:00", []).write(folder.origin_json)
    return folder


@pytest.fixture
def config(tmp_path):
    (tmp_path / "solver.yaml").write_text(CONFIG)
    return load_config(tmp_path / "solver.yaml", backbone="debug")


def card(config, folder, step=40, **options):
    return model_card(config, folder.checkpoints / f"step_{step:06d}", folder, **options)


def measured(folder, **rates):
    numbers = {"num_held_out": 200, "num_held_out_available": 900}
    summary = RunSummary(40, 1280, 7, 60.0, 0, success_by_decoding=rates, **numbers)
    summary.write(folder.summary_json)


def test_it_has_the_figures_with_intervals_and_says_what_was_trained(config, folder):
    measured(
        folder,
        sampled={"before": 0.25, "after": 0.5},
        greedy={"before": 0.3, "after": None},
    )
    text = card(config, folder)
    # Wilson's intervals of 50, 100 and 60 of 200.
    assert "| sampled | 25.0% (19.5% to 31.4%) | 50.0% (43.1% to 56.9%) |" in text
    assert "| greedy | 30.0% (24.1% to 36.7%) | not measured |" in text
    assert "On 200 of 900 held-out tasks, with 95 % intervals; after step 40." in text
    assert "which were not measured" not in text
    assert "| judge | `math` |" in text and "| agent | `solver.py->Solver` |" in text
    assert "| adapters | LoRA of rank 16 |" in text
    assert "The run began on 2026-03-01." in text
    assert "ajet --conf solver.yaml --backbone debug" in text
    assert "## What is not claimed" in text
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert head["library_name"] == "transformers"


def test_it_has_no_secret_and_no_place_of_this_machine(config, folder, tmp_path):
    text = card(config, folder)
    for word in ("swordfish", "/home/ada", "secret_client", "~/tools", str(tmp_path)):
        assert word not in text, word
    values = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert values["my_agent"] == {
        "api_key": "***",
        "tool_path": "search.py",
        "server_url": "https://host.example/v1/search",
    }
    files = values["ajet"]["task_reader"]["jsonl_dataset_file"]
    assert files == {"training": {"file_path": "train.jsonl"}}


def test_weights_that_were_not_measured_are_said_to_be_so(config, folder):
    assert "Not measured: the run was not complete" in card(config, folder)
    measured(folder, sampled={"before": 0.25, "after": 0.5})
    assert "those of step 20, which were not measured" in card(config, folder, step=20)


def test_a_model_of_this_machine_is_no_base_model_of_the_hub(config, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen2.5-0.5B-Instruct").mkdir(parents=True)
    assert "base_model" not in yaml.safe_load(card(config, folder).split("---\n")[1])


def test_adapters_are_of_peft_and_a_clients_checkpoint_has_neither_figures_nor_command(
    config, folder
):
    assert "library_name: peft" in card(config, folder, adapter=True)
    text = model_card(config, folder.checkpoints / "step_000003")
    assert "# Qwen/Qwen2.5-0.5B-Instruct" in text and "step 3" in text
    assert "```" not in text and "Held-out" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/models/qwen", "qwen"),
        ("~/qwen", "qwen"),
        ("../../clients/x/data.jsonl", "data.jsonl"),
        ("python /opt/tools/run.py --in '/srv/a b.txt'", "python run.py --in 'a b.txt'"),
        ("data/train.jsonl", "data/train.jsonl"),
        ("./train.jsonl", "./train.jsonl"),
        ("https://host/v1/x", "https://host/v1/x"),
        ("solver.py->Solver", "solver.py->Solver"),
        ("either/or, 3/4", "either/or, 3/4"),
        ("<answer>(.*)</answer>", "<answer>(.*)</answer>"),  # closing tags are no paths
    ],
)
def test_only_the_last_name_of_a_path_stays(text, expected):
    assert without_folders(text) == expected
