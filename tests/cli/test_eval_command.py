"""`ajet eval`: a run's own figures again from its checkpoint, models as they are, and endpoints."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.record.evaluation import wilson
from ajet.environments.frozen_lake import FrozenLake
from tests.cli.chat_server import ChatServer, message

# Whether an episode succeeds hangs on every character that was sampled.
FLOW = """\
import json

from ajet import Workflow, WorkflowOutput

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


class Parity(Workflow):
    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages)
        odd = sum(map(ord, reply["content"])) % 2
        return WorkflowOutput(reward=float(odd), is_success=bool(odd))


class Adds(Workflow):
    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages, [ADD])
        while reply.get("tool_calls"):
            call = reply["tool_calls"][0]
            given = json.loads(call["function"]["arguments"])
            total = str(sum(given.values()))
            messages += [reply, {"role": "tool", "tool_call_id": call["id"], "content": total}]
            reply = await model_tuner.chat(messages, [ADD])
        return WorkflowOutput(metadata={"final_answer": reply["content"]})
"""
YAML = """
ajet:
  experiment_name: run
  model: {path: embedded:math}
  data: {train_batch_size: 2, max_prompt_length: 256, max_response_length: 64, val_max_tasks: 8}
  rollout:
    user_workflow: flow.py->Parity
    num_repeat: 4
    temperature: 1.0
    max_response_length_in_one_turn: 8
    val_kwargs: {temperature: null}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}, validation: {file_path: test.jsonl}}
  trainer_common:
    total_training_steps: 2
    val_before_train: true
    val_pass_n: 2
    logger: [console]
    use_kl_loss: false
    optim: {lr: 0.01}
"""
ADDS = ("ajet.rollout.user_workflow=flow.py->Adds", "ajet.task_judge.judge_protocol=math")


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "run.yaml").write_text(YAML)
    for name, shift in (("train", 0), ("test", 100)):
        rows = (
            json.dumps({"question": f"What is {n} + {shift} ?", "answer": f"#### {n + shift}"})
            for n in range(10)
        )
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    return tmp_path


def run(*args: str):
    return CliRunner().invoke(app, args, terminal_width=200)


def evaluate(*args: str) -> dict:
    result = run("eval", "--conf", "run.yaml", "--out", "-", *args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def shares(report: dict) -> dict[str, float]:
    tasks = report["tasks"].items()
    return {name: sum(task["success"]) / len(task["success"]) for name, task in tasks}


@pytest.mark.parametrize("rank", [0, 4])
def test_a_checkpoint_gives_the_figures_that_its_run_recorded(project, rank):
    lora = f"ajet.trainer_common.lora.rank={rank}"
    trained = run("--conf", "run.yaml", lora)
    assert trained.exit_code == 0, trained.output
    summary = json.loads(Path("launcher_record/run/summary.json").read_text())
    recorded = summary["held_out"]
    assert recorded["before"] != recorded["after"]  # the weights do matter

    of_run = evaluate("--checkpoint", "launcher_record/run", lora)
    assert shares(of_run) == recorded["after"]
    assert of_run["success"]["value"] == pytest.approx(summary["success_after"])
    assert of_run["subject"].endswith("launcher_record/run/checkpoints/step_000002")
    assert shares(evaluate(lora)) == recorded["before"]


def test_settings_without_effect_are_listed_with_the_result(project):
    command = ("eval", "--conf", "run.yaml", "--out", "-", "--num-tasks", "1", "-k", "1")
    result = run(*command, "ajet.trainer_common.nnodes=2")
    assert result.stderr.startswith("notice: ignored by backbone debug: ajet.trainer_common.nnodes")
    assert json.loads(result.stdout)["num_tasks"] == 1


def test_a_checkpoint_that_does_not_fit_or_is_not_there_is_one_line(project):
    assert run("--conf", "run.yaml", "ajet.trainer_common.total_training_steps=1").exit_code == 0
    checkpoint = Path("launcher_record/run/checkpoints/step_000001")
    command = ("eval", "--conf", "run.yaml", "--checkpoint")
    wrong = run(*command, str(checkpoint), "ajet.trainer_common.lora.rank=4")
    assert wrong.exit_code == 1
    assert f"error: checkpoint {checkpoint} does not fit the model: " in wrong.stderr
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(bytes([255]))
    damaged = run(*command, str(checkpoint))
    assert damaged.exit_code == 1
    assert "model.safetensors does not match its checksum" in damaged.stderr
    shutil.rmtree(checkpoint)
    absent = run(*command, "launcher_record/run")
    assert absent.exit_code == 1
    assert absent.stderr == (
        "error: no checkpoint in launcher_record/run; give a run folder or its checkpoints/step_N "
        "[AJ-RUN-006]\n"
    )


def test_split_tasks_and_repeats_can_be_chosen(project):
    report = evaluate("--split", "training", "--num-tasks", "3", "-k", "4")
    assert sorted(report["tasks"]) == ["train-0", "train-1", "train-2"]
    assert report["num_repeat"] == 4 and list(report["pass_at_k"]) == ["1", "2", "4"]
    assert report["sampling"]["temperature"] == 1.0  # null: as in training
    wins = [sum(task["success"]) for task in report["tasks"].values()]
    assert report["success"]["value"] == pytest.approx(sum(wins) / 12)


def test_greedy_validation_gives_every_repeat_the_same(project):
    report = evaluate("ajet.rollout.val_kwargs.temperature=0", "--num-tasks", "4")
    assert all(len(set(task["reward"])) == 1 for task in report["tasks"].values())


def test_an_endpoint_is_evaluated_with_its_tool_calls_and_no_model_in_the_config(
    project, monkeypatch
):
    monkeypatch.setenv("AJET_ENDPOINT_API_KEY", "sk-test")
    with ChatServer() as server:
        report = evaluate(
            "--endpoint", server.url, "--endpoint-model", "m", "ajet.model.path=null", *ADDS
        )
    assert report["subject"] == f"m at {server.url}"
    expected = wilson(8, 8)
    assert report["success"] == {"value": 1.0, "low": expected.low, "high": expected.high}
    assert len(server.requests) == 2 * 8 * 2
    assert server.keys == {"Bearer sk-test"}
    first = next(r for r in server.requests if len(r["messages"]) == 1)
    assert first["model"] == "m" and first["max_tokens"] == 8 and first["temperature"] == 1.0
    assert first["tools"][0]["function"]["name"] == "add" and "tool_choice" not in first
    second = next(r for r in server.requests if len(r["messages"]) == 3)["messages"]
    assert second[1]["tool_calls"][0]["id"] == second[2]["tool_call_id"] == "id0"
    seeds = [r["seed"] for r in server.requests]
    assert len(set(seeds)) == len(seeds)


def test_the_table_has_the_figures_and_out_the_json(project):
    with ChatServer() as server:
        options = ("--endpoint", server.url, "--endpoint-model", "m", "--out", "result.json")
        result = run("eval", "--conf", "run.yaml", *options, *ADDS)
    assert result.exit_code == 0, result.output
    for text in ("success", "mean@2 (reward)", "pass@1", "pass@2", "0.676 to 1.000", "16 ok"):
        assert text in result.stdout
    assert "written: result.json" in result.stdout
    assert json.loads(Path("result.json").read_text())["num_tasks"] == 8


def test_arguments_that_are_no_json_object_are_text_for_the_agent(project):
    with ChatServer(lambda body: (200, message("so:", [("add", '{"a": ')]))) as server:
        report = evaluate("--endpoint", server.url, "--endpoint-model", "m", *ADDS)
    assert report["statuses"] == {"ok": 16} and report["success"]["value"] == 0.0
    assert len(server.requests) == 16


def test_a_prompt_that_is_too_long_for_the_endpoint_truncates_the_episode(project):
    refusal = {"error": {"message": "maximum context length is 8", "code": None}}
    with ChatServer(lambda body: (400, refusal)) as server:
        report = evaluate("--endpoint", server.url, "--endpoint-model", "m", *ADDS)
    assert report["statuses"] == {"truncated": 16}


def test_an_endpoint_that_refuses_the_key_ends_the_command_in_one_line(project):
    refusal = {"error": {"message": "bad key", "code": "invalid_api_key"}}
    with ChatServer(lambda body: (401, refusal)) as server:
        options = ("--endpoint", server.url, "--endpoint-model", "m")
        result = run("eval", "--conf", "run.yaml", *options, *ADDS)
    assert result.exit_code == 1
    assert "env_error" in result.stderr and "bad key" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "options",
    [
        ("--endpoint", "http://127.0.0.1:1/v1"),
        ("--endpoint-model", "m"),
        ("--model", "embedded:math", "--checkpoint", "run"),
        ("--out", "no/such/folder/result.json"),
        ("--split", "test"),
    ],
)
def test_options_that_contradict_each_other_are_wrong_usage(project, options):
    assert run("eval", "--conf", "run.yaml", *options).exit_code == 2


def test_an_address_without_a_scheme_is_one_line(project):
    result = run(
        "eval", "--conf", "run.yaml", "--endpoint", "localhost:80", "--endpoint-model", "m"
    )
    assert result.exit_code == 1
    assert "begins with http:// or https://" in result.stderr


LAKE = """
ajet:
  experiment_name: lake
  model: {path: "embedded:frozen_lake"}
  task_reader: {type: environment}
  environment:
    custom_envs:
      Lake:
        env_type: frozen_lake
        env_config: {show_position: true}
        env_manager_cls: step_env_agent
        max_steps: 1
        max_tokens_per_step: 4
        agent_system_template: ""
        agent_template: "{observation}"
        action_pattern: null
    val_env_manager: {num_env_groups: 2}
    render_save_dir: frames
  data: {train_batch_size: 2, max_prompt_length: 128, max_response_length: 64}
  rollout: {max_response_length_in_one_turn: 4, max_model_len: 256}
  trainer_common: {torch_threads: 1}
"""


@pytest.mark.parametrize("split", ["training", "validation"])
def test_environments_play_the_instances_of_the_split_and_leave_a_runs_pictures(
    tmp_path, monkeypatch, split
):
    played = []

    class Watched(FrozenLake):
        def reset(self, seed=None, options=None):
            played.append(options["split"])
            return super().reset(seed, options)

    monkeypatch.setattr("ajet.environments.frozen_lake.FrozenLake", Watched)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake.yaml").write_text(LAKE)
    ended = CliRunner().invoke(app, ["eval", "--conf", "lake.yaml", "--split", split])
    assert ended.exit_code == 0, ended.output
    assert set(played[-2:]) == {"train" if split == "training" else "validation"}
    [frames] = tmp_path.rglob("frames")
    pictures = [str(path.relative_to(frames)) for path in frames.rglob("*.png")]
    assert sorted(pictures) == [f"eval/step_000000/Lake-000{i}.png" for i in (0, 1)]


def test_prompts_that_do_not_fit_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake.yaml").write_text(LAKE)
    ended = CliRunner().invoke(
        app, ["eval", "--conf", "lake.yaml", "ajet.data.max_prompt_length=2"]
    )
    assert ended.exit_code == 0 and "2 truncated" in ended.output
    assert "no token was sampled" in ended.output and "max_prompt_length" in ended.output
