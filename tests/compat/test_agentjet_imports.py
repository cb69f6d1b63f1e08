"""Files in the form of AgentJet's documents import and run: judges, readers, workflows."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ajet
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.judge import make_judge
from ajet.core.run.code_files import code_files
from ajet.core.task.reader import make_reader
from ajet.core.task.workflow_task import WorkflowTask

README = Path(ajet.__file__).parent / "compat" / "agentjet" / "README.md"
JUDGE = """
from ajet.task_judge.base_judge import BaseJudge
from ajet.workflow import WorkflowOutput, WorkflowTask

class MyCustomJudge(BaseJudge):
    def __init__(self, config):
        super().__init__(config)
        self.threshold = 0.8

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple:
        agent_answer = workflow_output.metadata.get("final_answer", "")
        reference_answer = workflow_task.task.metadata.get("answer", "")
        similarity = self._compute_similarity(agent_answer, reference_answer)
        return similarity, similarity >= self.threshold

    def _compute_similarity(self, text1: str, text2: str) -> float:
        return len(set(text1.split()) & set(text2.split())) / max(
            len(text1.split()), len(text2.split()), 1
        )
"""
READER = """
import json
from typing import List

from ajet.schema.task import Task
from ajet.task_reader.task_reader_base import BaseTaskReader

class FinanceReader(BaseTaskReader):
    def __init__(self, reader_config):
        super().__init__(reader_config)
        self.path = reader_config.jsonl_dataset_file.training.file_path

    def get_training_tasks(self) -> List[Task]:
        with open(self.path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [
            Task(main_query=row["main_query"], init_messages=[], task_id=str(number),
                 env_type="no_env", metadata=row)
            for number, row in enumerate(rows)
        ]

    def get_validation_tasks(self) -> List[Task]:
        return [Task(main_query=self.reader_config.type)]
"""
YAML = """
ajet:
  model: {path: embedded:math}
  rollout: {user_workflow: single_turn_agent}
  task_judge:
    judge_type: customized_protocol
    judge_protocol: %s
"""


def paths_of_the_readme() -> list[str]:
    table = README.read_text(encoding="utf-8").partition("A longer")[0]
    found = re.findall(r"`(ajet\.[\w.{},]+)`", table)
    written = [path.partition("{") for path in found if path != "ajet.__path__"]
    paths = [
        head + name for head, _, names in written for name in names.removesuffix("}").split(",")
    ]
    return sorted({path for path in paths if path[5:] not in ajet.__all__})


@pytest.mark.parametrize("path", paths_of_the_readme())
def test_a_path_that_the_readme_lists_is_a_module_of_the_folder(path):
    module = import_module(path)
    assert Path(module.__file__).is_relative_to(README.parent)
    assert all(getattr(module, name) is not None for name in getattr(module, "__all__", ()))


def test_the_classes_are_those_of_ajet():
    names = {
        "ajet.workflow": ("Workflow", "WorkflowTask", "WorkflowOutput"),
        "ajet.schema.task": ("Task", "WorkflowTask", "WorkflowOutput"),
        "ajet.tuner": ("AjetTuner",),
        "ajet.task_judge.base_judge": ("BaseJudge",),
        "ajet.copilot.job": ("AgentJetJob",),
    }
    for module, own in names.items():
        for name in own:
            assert getattr(import_module(module), name) is getattr(ajet, name), (module, name)


def test_a_file_that_imports_agentjets_former_name_says_where_the_names_are(tmp_path):
    (tmp_path / "my_judge.py").write_text(JUDGE.replace("from ajet.", "from astuner."))
    with pytest.raises(ConfigError, match=r"'astuner', .*: import its names from ajet$"):
        judge_of(tmp_path, "my_judge.py->MyCustomJudge")


HELPER = """
from chatlearn.models.agent.graph import BaseAgentGraph, register
from chatlearn.utils.rule_reward_score.math import (
    is_equiv,
)
"""


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        (HELPER, "import its names from ajet"),
        (HELPER.split("register\n")[1], "ajet has no is_equiv: write it yourself"),
        (
            "from chatlearn.x import register, is_equiv",
            "ajet has no is_equiv: write it yourself, and import the others from ajet",
        ),
        ("import chatlearn", "import its names from ajet"),
    ],
)
def test_an_import_line_of_another_system_is_advised_by_the_names_that_ajet_has(
    lines, advice, tmp_path
):
    (tmp_path / "my_judge.py").write_text(lines)
    with pytest.raises(ConfigError) as error:
        judge_of(tmp_path, "my_judge.py->MyCustomJudge")
    assert str(error.value).endswith(f"'chatlearn', which is not installed: {advice}")


def test_importing_a_judge_file_loads_nothing_heavy():
    heavy = ("torch", "ray", "transformers", "agentscope")
    script = f"import sys\n{JUDGE}\n{READER}\nprint([n for n in {heavy} if n in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")


def test_the_launcher_is_the_command_line():
    command = [sys.executable, "-m", "ajet.launcher", "--version"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout.startswith("ajet "), run.stderr


def judge_of(folder: Path, spec: str, *overrides: str):
    (folder / "run.yaml").write_text(YAML % spec)
    return make_judge(load_config(folder / "run.yaml", overrides))


def test_a_judge_of_agentjets_form_rewards(tmp_path):
    (tmp_path / "my_judge.py").write_text(JUDGE)
    judge = judge_of(tmp_path, "my_judge.py->MyCustomJudge")
    task = ajet.Task(task_id="t", main_query="q", metadata={"answer": "a b c d"})
    plan = WorkflowTask(task, "e", "000001-t", 0, 1, "train", 0)
    output = ajet.WorkflowOutput(metadata={"final_answer": "a b c x"})
    assert judge.compute_reward(plan, output) == (0.75, False)
    assert judge.config.ajet.model.path == "embedded:math"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("ajet.task_judge.env_service_as_judge->EnvServiceJudge", "EnvServiceJudge"),
        ("ajet.task_judge.rm_auto_grader_judge->AutoGraderJudge", "RubricsJudge"),
    ],
)
def test_a_judge_of_agentjet_may_be_named_by_its_path(tmp_path, spec, name):
    address = "ajet.task_judge.client.base_url=http://127.0.0.1:1/v1"
    judge = judge_of(tmp_path, spec, "ajet.task_reader.type=env_service", address)
    assert type(judge).__name__ == name


def test_a_reader_is_made_with_the_section_of_the_readers(tmp_path):
    (tmp_path / "finance.py").write_text(READER)
    (tmp_path / "rows.jsonl").write_text('{"main_query": "Why?", "title": "Debt"}\n')
    (tmp_path / "run.yaml").write_text(YAML % "null")
    config = load_config(
        tmp_path / "run.yaml",
        [
            "ajet.task_reader.type=finance.py->FinanceReader",
            f"ajet.task_reader.jsonl_dataset_file.training.file_path={tmp_path}/rows.jsonl",
        ],
    )
    reader = make_reader(config)
    [task] = reader.get_training_tasks()
    assert (task.task_id, task.main_query, task.metadata["title"]) == ("0", "Why?", "Debt")
    [held_out] = reader.get_validation_tasks()
    assert (held_out.task_id, held_out.main_query) == ("validation-0", "finance.py->FinanceReader")
    assert code_files(config) == [tmp_path / "finance.py"]
