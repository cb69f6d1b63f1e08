"""A script that configures and starts a run with `AgentJetJob`, as in AgentJet's documents."""

import subprocess
from pathlib import Path

import pytest
import yaml

from ajet import AgentJetJob
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from tests.e2e.toy_run import environment
from tests.warm_start import warm_run

WORKFLOW = """
from ajet import AjetTuner, Workflow, WorkflowOutput, WorkflowTask


class MathToolWorkflow(Workflow):
    name: str = "math_tool_workflow"

    async def execute(self, workflow_task: WorkflowTask, tuner: AjetTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await client.chat.completions.create(messages=messages, model="agentjet-model")
        text = reply.choices[0].message.content
        return WorkflowOutput(reward=float(len(text) % 3), metadata={"final_answer": text})
"""
SCRIPT = """
from ajet import AgentJetJob
from math_agent_simplify import MathToolWorkflow

job = AgentJetJob(
    backbone="debug", algorithm="grpo", model="embedded:math", experiment_name="simple",
    batch_size=2, num_repeat=2, total_training_steps=1, max_response_length_in_one_turn=8,
)
job.set_workflow(MathToolWorkflow, ensure_reward_in_workflow=True)
job.set_data(type="dummy")
job.config.ajet.trainer_common.test_freq = 0
job.tune()
print("tuned")
"""


def written(job: AgentJetJob, folder: Path) -> dict:
    return yaml.safe_load(Path(job.dump_job_as_yaml(folder / "dumped.yaml")).read_text())


def test_the_yaml_has_what_was_asked_for_and_loads(tmp_path):
    job = AgentJetJob(n_gpu=8, algorithm="grpo", model="m", experiment_name="e", lora_rank=4, lr=1)
    job.set_workflow("flow.py->Flow").set_data(type="hf", dataset_path="openai/gsm8k")
    job.config.ajet.rollout.temperature = 0.5
    assert written(job, tmp_path) == {
        "ajet": {
            "backbone": "verl",
            "experiment_name": "e",
            "model": {"path": "m"},
            "rollout": {"user_workflow": "flow.py->Flow", "temperature": 0.5},
            "task_reader": {"huggingface_dat_repo": {"dataset_path": "openai/gsm8k"}},
            "trainer_common": {"n_gpus_per_node": 8, "lora": {"rank": 4}, "optim": {"lr": 1}},
        }
    }
    job._set("ajet.trainer_common.optim.lr", 1e-4)
    config = load_config(job.dump_job_as_yaml(tmp_path / "dumped.yaml"))
    assert (config.ajet.trainer_common.optim.lr, config.ajet.rollout.num_repeat) == (1e-4, 4)


def test_arguments_come_before_the_base_yaml_and_old_keys_are_under_their_present_name(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "ajet:\n  backbone: trinity\n  model: {path: m}\n  rollout: {num_repeat: 8}\n"
        "  trainer_common: {trinity_only__n_vllm_engine: 2}\nfrozen_lake: {size: 4}\n"
    )
    job = AgentJetJob(base_yaml_config=tmp_path / "base.yaml", num_repeat=6, model=None)
    assert (job.config.ajet.rollout.n_vllm_engine, job.config.frozen_lake.size) == (2, 4)
    assert written(job, tmp_path) == {
        "ajet": {
            "backbone": "trinity",
            "experiment_name": "base",
            "model": {"path": "m"},
            "rollout": {"num_repeat": 6, "n_vllm_engine": 2},
        },
        "frozen_lake": {"size": 4},
    }


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batchsize": 4}, TypeError, "no argument 'batchsize'; did you mean 'batch_size'"),
        (
            {"tinkerscript_mode": True},
            ConfigError,
            "tinkerscript_mode is refused: clients run the episodes of",
        ),
        ({"kl_penalty_type": "mse"}, ConfigError, "the KL in the reward is log p - log q"),
    ],
)
def test_an_argument_that_cannot_be_honoured_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        AgentJetJob(**arguments)
    AgentJetJob(swarm_mode=True)


def test_data_that_only_a_yaml_can_describe_is_refused():
    with pytest.raises(ConfigError, match=r"set job\.config\.ajet\.task_reader"):
        AgentJetJob().set_data("env_service", "appworld")


def test_a_class_inside_a_function_is_refused():
    class Inner:
        pass

    with pytest.raises(ConfigError, match="is not a class of a module"):
        AgentJetJob().set_workflow(Inner)


@pytest.fixture
def project(tmp_path):
    (tmp_path / "math_agent_simplify.py").write_text(WORKFLOW)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def start(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "import runpy; runpy.run_path('train.py', run_name='__main__')"
    return warm_run(["-c", code], cwd=folder, env=environment())


def test_tune_trains_and_returns(project):
    run = start(project)
    assert run.stdout.endswith("tuned\n"), run.stdout + run.stderr
    assert (project / "launcher_record" / "simple" / "checkpoints" / "step_000001").is_dir()
    assert (project / "launcher_record" / "simple.yaml").is_file()


def test_a_run_that_fails_says_why_and_raises(project):
    script = SCRIPT.replace("embedded:math", "embedded:nothing")
    (project / "train.py").write_text(script)
    run = start(project)
    assert "tuned" not in run.stdout
    assert "embedded:nothing" in run.stderr
    assert "the run simple ended with exit code 1" in run.stderr


def test_a_script_that_holds_its_workflow_starts_one_run_alone(project):
    script = SCRIPT.replace("from math_agent_simplify import MathToolWorkflow", WORKFLOW)
    (project / "train.py").write_text(script)
    run = start(project)
    assert "job.tune() is called while a run loads this file" in run.stderr
    assert run.stderr.count("ended with exit code 1") == 1
