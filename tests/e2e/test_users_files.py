"""Files of each of the four systems, as their users write them, train: two steps on `debug`.

The folders of tests/data/users hold a config, and the files that it names, in the other system's
own form. Given here are the model, rows and sizes that a test can afford, under the other system's
own keys. AgentJet's config runs as it is, the others are converted. Import lines are changed as
docs/convert.md says, and nothing else is.
"""

import io
import json
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from ajet.backbones.debug.training import fit_debug
from ajet.convert import convert, yaml_text
from ajet.core.config import load_config
from ajet.core.workflow import registry
from tutorial.example_math_agent.workflow import SYSTEM_PROMPT

USERS = Path(__file__).parents[1] / "data" / "users"
ROWS = Path(registry.__file__).parents[2] / "embedded" / "arithmetic" / "train.jsonl"
IMPORTS = [
    (r"from verl\.[\w.]+ import", "from ajet.compat.verl import"),
    (r"from (?:gem|roll\.[\w.]+) import", "from ajet.compat.roll import"),
    (r"from chatlearn\.[\w.]+ import", "from ajet import"),
]
"""The import lines that change, and what they become."""
THREADS = "ajet.trainer_common.torch_threads=1"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Makes the working folder: the files of one system, with the import lines changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_WORKFLOWS", {})

    def make(system, *, change_imports=True):
        folder = tmp_path / "project"
        shutil.copytree(USERS / system, folder)
        for file in folder.rglob("*.py") if change_imports else ():
            text = file.read_text()
            for old, new in IMPORTS:
                text = re.sub(old, new, text)
            file.write_text(text)
        monkeypatch.chdir(folder)
        return folder

    return make


def questions(number):
    """Rows of the embedded arithmetic: question, answer."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()[:number]]
    return [(row["question"], row["answer"].rpartition("#### ")[2]) for row in rows]


def prompt(question):
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]


def converted(system, source, *given):
    """Writes the YAML that `ajet convert` makes, with these keys of the other system's changed."""
    Path("mine.yaml").write_text(yaml_text(convert(system, source, given)))
    return "mine.yaml"


class Trained:
    """A run that has trained, and what it recorded."""

    def __init__(self, conf, *overrides):
        config = load_config(conf, [THREADS, *overrides], backbone="debug")
        fit_debug(config, Console(file=io.StringIO()))
        [database] = Path.cwd().rglob("episodes.sqlite")
        self.folder = database.parent
        self.steps = json.loads((self.folder / "summary.json").read_text())["steps"]

    def query(self, sql):
        with closing(sqlite3.connect(self.folder / "episodes.sqlite")) as connection:
            return connection.execute(sql).fetchall()

    def values(self, column):
        """Returns the values of a column of the episodes of training, each once."""
        rows = self.query(f"SELECT DISTINCT {column} FROM episodes WHERE mode = 'train'")
        return {row[0] for row in rows}

    @property
    def messages(self):
        """All messages that the model was given, as JSON."""
        return " ".join(row[0] for row in self.query("SELECT messages FROM turns"))

    def weights_change(self):
        folders = sorted((self.folder / "checkpoints").glob("step_*"))
        first, last = (load_file(each / "model.safetensors") for each in (folders[0], folders[-1]))
        return any((first[name] != last[name]).any() for name in first)


def test_agentjets_files_train_unchanged(project):
    folder = project("agentjet", change_imports=False)
    (folder / "math_agent").mkdir()
    for file in folder.glob("*.*"):
        file.rename(folder / "math_agent" / file.name)
    lines = [json.dumps({"question": q, "answer": a}) + "\n" for q, a in questions(12)]
    (folder / "math_agent" / "train.jsonl").write_text("".join(lines[:8]))
    (folder / "math_agent" / "test.jsonl").write_text("".join(lines[8:]))
    run = Trained(
        "math_agent/math_agent.yaml",
        "ajet.model.path=embedded:math",
        "ajet.data.train_batch_size=4",
        "ajet.trainer_common.total_training_steps=2",
        "ajet.trainer_common.save_freq=1",
        "ajet.rollout.temperature=1.0",
        "ajet.trainer_common.optim.lr=1e-3",
    )
    assert run.steps == 2
    assert run.values("status") <= {"ok", "truncated"}  # this model does not know their prompt
    assert "returncode" in run.messages  # its tool answered
    assert {0.1, 1.0} <= run.values("reward") <= {0.0, 0.1, 1.0}  # its judge's
    assert run.weights_change()


VERL = (
    "actor_rollout_ref.model.path=embedded:math",
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.name=in_process",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "data.max_response_length=96",
    "trainer.total_training_steps=2",
    "trainer.save_freq=1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=False",
)


def verl_rows():
    """Rows as verl's script for GSM8K with tools writes them; every second one is the loop's."""
    return [
        {
            "data_source": "openai/gsm8k",
            "agent_name": "tool_agent" if at % 2 else "math_loop",
            "prompt": prompt(question),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {
                "split": "train",
                "index": at,
                "need_tools_kwargs": True,
                "tools_kwargs": {
                    "execute_python_code": {"create_kwargs": {"ground_truth": answer}}
                },
                "interaction_kwargs": {"query": question, "ground_truth": answer},
            },
        }
        for at, (question, answer) in enumerate(questions(8))
    ]


ASKER = """
from ajet.compat.verl import BaseInteraction


class Asker(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        return False, "Please try once more.", 0.0, {}
"""


def test_verls_simulated_user_without_tools_is_asked(project):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = project("verl")
    (folder / "asker.py").write_text(ASKER)
    (folder / "user.yaml").write_text("interaction: [{name: asker, class_name: asker.Asker}]\n")
    rows = [{key: row[key] for key in ("prompt", "reward_model")} for row in verl_rows()]
    for row in rows:
        row["extra_info"] = {"interaction_kwargs": {"name": "asker"}}
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    turns = "actor_rollout_ref.rollout.multi_turn"
    (folder / "run.sh").write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files="
        f"train.parquet {turns}.enable=True {turns}.max_user_turns=1 "
        f"{turns}.interaction_config_path=user.yaml {' '.join(VERL)}\n"
    )
    run = Trained(converted("verl", "run.sh", "trainer.total_training_steps=1"))
    assert (run.steps, run.values("status")) == (1, {"ok"})
    assert "Please try once more." in run.messages
    assert run.values("num_turns") == {2}


def test_verls_tool_interaction_and_agent_loop_train(project):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = project("verl")
    (folder / "data").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.Table.from_pylist(verl_rows()), folder / "data" / f"{split}.parquet")
    run = Trained(converted("verl", "run_math_tool_agent.sh", *VERL))
    assert (run.steps, run.values("status")) == (2, {"ok"})
    assert "returncode" in run.messages  # the tool answered
    assert "Your response is incorrect!" in run.messages  # the simulated user spoke
    metadata = [json.loads(each) for each in run.values("metadata")]
    assert 1.0 in [
        each["tool_rewards"]["execute_python_code"] for each in metadata if "tool_rewards" in each
    ]
    assert {"interaction", "max_user_turns"} <= {each.get("ended_by") for each in metadata}
    assert 4 in [each.get("num_turns") for each in metadata]  # the agent loop's
    assert run.values("reward") == {0.0, 1.0}
    assert run.weights_change()


ROLL = (
    "pretrain=embedded:guess_number",
    "rollout_batch_size=16",
    "max_steps=2",
    "save_steps=1",
    "eval_steps=0",
    "sequence_length=512",
    "train_env_manager.num_env_groups=4",
    "train_env_manager.group_size=4",
    "train_env_manager.num_groups_partition=[4]",
    "actor_train.training_args.learning_rate=1e-3",
    "actor_train.training_args.gradient_accumulation_steps=1",
    "actor_infer.generating_args.max_new_tokens=4",
    "actor_infer.strategy_args.strategy_name=hf_infer",
)


def test_rolls_environment_class_trains(project):
    project("roll")
    run = Trained(converted("roll", "agent_guess.yaml", *ROLL))
    assert (run.steps, run.values("status")) == (2, {"ok"})
    assert "You play a game.\\nFind the number." in run.messages  # its template, then its rules
    metadata = [json.loads(each) for each in run.values("metadata")]
    assert {step["action"] for each in metadata for step in each["trace"]} > {"1", "20"}
    assert len(run.values("reward")) > 2
    assert run.weights_change()


CHATLEARN = (
    "models.policy_trainer.load=embedded:math",
    "models.policy.num_inference_per_prompt=4",
    "runtime_args.sample_per_episode=16",
    "runtime_args.train_global_batch_size=16",
    "runtime_args.num_episode=2",
    "runtime_args.save_episode_interval=1",
    "runtime_args.eval_episode_interval=0",
    "runtime_args.rollout_backend=in_process",
    "models.policy_trainer.optimizer.lr=1e-3",
    "models.policy.max_response_tokens_length=96",
    "+runtime_args.agent_modules=math_code_agent_graph.py",
)


def test_chatlearns_graph_with_its_settings_trains(project):
    folder = project("chatlearn")
    rows = [
        {
            "agent_name": "mathcode_agent",
            "agent_cfg_path": "template/agent/math_code.yaml",
            "data_source": "openai/gsm8k",
            "prompt": prompt(question),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": "train", "index": at},
        }
        for at, (question, answer) in enumerate(questions(8))
    ]
    (folder / "dataset" / "math").mkdir(parents=True)
    for split in ("train", "test"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "dataset" / "math" / f"{split}_agent.json").write_text(text)
    conf = converted("chatlearn", "scripts/train_math_code_agent.sh", *CHATLEARN)
    # The switch of Qwen3's template, which this model's does not have.
    run = Trained(conf, "~ajet.model.chat_template_kwargs.enable_thinking")
    assert (run.steps, run.values("status")) == (2, {"ok"})
    assert "returncode" in run.messages  # its tool answered
    assert run.values("reward") == {0.0, 1.0}
    assert max(run.values("num_turns")) == 2  # max_ai_message_turn of its settings
    assert run.weights_change()
