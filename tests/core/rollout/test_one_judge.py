"""A run has one judge, whatever runners it needs."""

import io

import pytest

from ajet import assembly
from ajet.backbones.debug.debugging import debug_episodes
from ajet.backbones.evaluating import Subject, evaluate_subject
from ajet.core.config import load_config
from ajet.core.judge.judge import BaseJudge
from ajet.core.user_code.importing import load_object

FLOW = """
from ajet import BaseJudge, Workflow, WorkflowOutput

class Flow(Workflow):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        return WorkflowOutput()

class Counted(BaseJudge):
    num_made = 0

    def __init__(self, config=None):
        super().__init__(config)
        Counted.num_made += 1
        self.modes = []

    def compute_reward(self, workflow_task, workflow_output):
        self.modes.append(workflow_task.mode)
        return 1.0, True
"""
YAML = """
ajet:
  model: {path: embedded:math}
  data: {max_prompt_length: 256, max_response_length: 64, train_batch_size: 1}
  rollout: {user_workflow: flow.py->Flow, max_response_length_in_one_turn: 2, num_repeat: 2}
  trainer_common: {total_training_steps: 1, val_before_train: true, logger: [console]}
  task_judge: {judge_protocol: flow.py->Counted}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}, validation: {file_path: train.jsonl}}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "run.yaml").write_text(YAML)
    (tmp_path / "train.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    return load_config(tmp_path / "run.yaml", [], backbone="debug")


def judge_kind(config):
    return load_object(
        "flow.py->Counted", base_dirs=config.base_dirs, base=BaseJudge, location="test"
    )


def test_the_users_files_are_found_without_making_the_judge(config):
    files = assembly.user_files(config, assembly.load_workflows(config))
    assert [file.name for file in files] == ["flow.py", "flow.py"]
    assert judge_kind(config).num_made == 0


def test_training_and_validation_share_the_judge(config, tmp_path):

    from rich.console import Console

    from ajet.backbones.debug.training import DebugTraining
    from ajet.core.process.interrupt import Interrupt
    from ajet.core.record.run_folder import RunFolder

    console = Console(file=io.StringIO())
    tasks, folder = assembly.read_tasks(config), RunFolder.open(tmp_path / "run")
    training = DebugTraining(config, tasks, folder, Interrupt(), console)
    judge = training.validator.executor.parts_for("eval").judge
    training.fit()
    assert judge_kind(config).num_made == 1
    assert set(judge.modes) == {"train", "eval"}


def test_evaluating_and_debugging_make_one_judge(config):

    from rich.console import Console

    evaluate_subject(config, Subject())
    assert judge_kind(config).num_made == 1
    debug_episodes(config, Console(file=io.StringIO()), num_tasks=1)
    assert judge_kind(config).num_made == 2
