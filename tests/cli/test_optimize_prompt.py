"""`ajet optimize-prompt` with a model that adds only when its prompt says so."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.read.episode_reader import EpisodeFilter, EpisodeReader
from tests.cli.chat_server import ChatServer, message

YAML = """
ajet:
  experiment_name: sums
  data: {max_prompt_length: 1000, max_response_length: 100, val_max_tasks: 8}
  task_judge: {judge_protocol: math}
  rollout: {multi_turn: {system_prompt: Answer.}}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}, validation: {file_path: test.jsonl}}
  trainer_common: {val_pass_n: 1}
"""
FLOW = """\
from ajet import Workflow, WorkflowOutput

class Own(Workflow):
    async def execute(self, workflow_task, model_tuner):
        system = {"role": "system", "content": model_tuner.config.my_agent.prompt}
        user = {"role": "user", "content": workflow_task.task.main_query}
        reply = await model_tuner.chat([system, user])
        return WorkflowOutput(metadata={"final_answer": reply["content"]})
"""


class Model:
    """Adds where its system prompt says ``add``; as ``reflector`` it writes the next of `texts`,
    over and over."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.reflections: list[str] = []

    def __call__(self, body):
        said = body["messages"]
        if body["model"] == "reflector":
            self.reflections.append(said[0]["content"])
            text = self.texts[(len(self.reflections) - 1) % len(self.texts)]
            return 200, message(f"A new one:\n```\n{text}\n```")
        a, b = (int(word) for word in said[-1]["content"].split() if word.isdigit())
        adds = said[0]["role"] == "system" and "add" in said[0]["content"]
        return 200, message(f"It is \\boxed{{{a + b if adds else 0}}}.")


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "run.yaml").write_text(YAML)
    (tmp_path / "flow.py").write_text(FLOW)
    for name, shift in (("train", 1), ("test", 100)):
        rows = (
            json.dumps({"question": f"What is {n} + {shift} ?", "answer": f"#### {n + shift}"})
            for n in range(8)
        )
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    return tmp_path


def search(server: ChatServer, *args: str):
    given = ("--endpoint", server.url, "--endpoint-model", "m")
    given += ("--reflection-endpoint", server.url, "--reflection-model", "reflector")
    given += ("--num-tasks", "4", "--episodes", "20")
    return CliRunner().invoke(app, ("optimize-prompt", "--conf", "run.yaml", *given, *args))


def test_a_prompt_that_helps_is_found_and_measured_on_held_out_tasks(project):
    model = Model("Be brief.", "Always add the two numbers.")
    with ChatServer(model) as server:
        result = search(server)
    assert result.exit_code == 0, result.output
    written = yaml.safe_load((project / "run_prompt.yaml").read_text())
    assert written["ajet"]["rollout"]["multi_turn"]["system_prompt"] == model.texts[1]
    assert written["ajet"]["task_reader"] == yaml.safe_load(YAML)["ajet"]["task_reader"]
    [found] = (project / "launcher_record").iterdir()
    prompts = json.loads((found / "prompts.json").read_text())
    [part] = prompts["held_out"]["parts"]
    assert part["success"]["a"]["value"] == 0.0
    assert part["success"]["b"]["value"] == 1.0
    assert part["success"]["difference"]["value"] == 1.0
    assert [each["mean_reward"] for each in prompts["candidates"]] == [0.0, 1.0]
    assert prompts["num_episodes"] <= 8 + 20 + 8 + 6  # a round that began within the budget ends


def test_all_episodes_are_in_the_record_and_held_out_tasks_are_none_of_the_search(project):
    with ChatServer(Model("Always add.")) as server:
        search(server)
    [found] = (project / "launcher_record").iterdir()
    prompts = json.loads((found / "prompts.json").read_text())
    with EpisodeReader(found / "episodes.sqlite") as reader:
        rows = [episode.row for episode in reader.walk(EpisodeFilter())]
    assert len(rows) == prompts["num_episodes"]
    last = max(row.step for row in rows)
    held_out = {row.step for row in rows if "+ 100" in row.query}
    assert held_out == {0, last}
    best = prompts["candidates"][1]
    assert set(best["steps"]) <= set(range(1, last + 1))


def test_the_reflection_model_is_shown_answers_rewards_and_what_was_expected(project):
    model = Model("Always add.")
    with ChatServer(model) as server:
        search(server)
    shown = model.reflections[0]
    assert "Answer." in shown
    assert "It is \\boxed{0}." in shown
    assert "reward 0, no success" in shown
    assert "expected: " in shown


def test_the_same_seed_searches_alike(project):
    texts = ("Be brief.", "Be kind.", "Always add.")
    shown = []
    for _ in range(2):
        model = Model(*texts)
        with ChatServer(model) as server:
            search(server, "--out", f"found{len(shown)}.yaml")
        shown.append(model.reflections)
    assert shown[0] == shown[1]
    assert len(list((project / "launcher_record").iterdir())) == 2


def test_a_config_without_the_key_gets_the_text(project):
    without = YAML.replace("  rollout: {multi_turn: {system_prompt: Answer.}}\n", "")
    (project / "run.yaml").write_text(without)
    with ChatServer(Model("Always add.")) as server:
        result = search(server)
    assert result.exit_code == 0, result.output
    written = yaml.safe_load((project / "run_prompt.yaml").read_text())
    assert written["ajet"]["rollout"]["multi_turn"] == {"system_prompt": "Always add."}


def test_where_nothing_helps_the_config_stays_and_no_file_is_written(project):
    with ChatServer(Model("Be brief.")) as server:
        result = search(server)
    assert result.exit_code == 0, result.output
    assert "no better text in" in result.stdout
    assert not (project / "run_prompt.yaml").exists()


def test_a_text_of_the_users_own_section_is_searched_by_its_key(project):
    own = "\nmy_agent: {prompt: Answer., other: 1}\n"
    (project / "run.yaml").write_text(YAML + own)
    with ChatServer(Model("Always add.")) as server:
        args = ("--text", "my_agent.prompt", "ajet.rollout.user_workflow=flow.py->Own")
        result = search(server, *args)
    assert result.exit_code == 0, result.output
    written = yaml.safe_load((project / "run_prompt.yaml").read_text())
    assert written["my_agent"] == {"prompt": "Always add.", "other": 1}


def test_a_text_with_which_every_episode_fails_earns_nothing_and_the_search_goes_on(project):
    (project / "run.yaml").write_text(YAML + "\nmy_agent: {prompt: Answer.}\n")
    fails = FLOW.replace(
        "        user =", "        assert 'no' not in system['content']\n        user ="
    )
    (project / "flow.py").write_text(fails)
    model = Model("Say no.", "Always add.")
    with ChatServer(model) as server:
        args = ("--text", "my_agent.prompt", "ajet.rollout.user_workflow=flow.py->Own")
        result = search(server, *args)
    assert result.exit_code == 0, result.output
    written = yaml.safe_load((project / "run_prompt.yaml").read_text())
    assert written["my_agent"] == {"prompt": "Always add."}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("my_agent.promt", "the config has no 'my_agent' there"),
        ("ajet.seed", "--text ajet.seed: not a text"),
        ("ajet.task_judge.judge_protocol", "the judge measures the texts"),
    ],
)
def test_a_key_that_holds_no_text_to_search_is_refused_in_one_line(project, key, said):
    with ChatServer(Model("x")) as server:
        result = search(server, "--text", key)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not server.requests


def test_a_text_that_the_agent_refuses_earns_nothing_and_the_search_goes_on(project):
    environment = {
        "custom_envs": {
            "Guess": {"env_type": "guess_number", "agent_system_template": "Guess a number."}
        },
        "train_env_manager": {},
        "val_env_manager": {"num_env_groups": 2},
    }
    ajet = yaml.safe_load(YAML)["ajet"] | {"environment": environment}
    ajet |= {"task_reader": {"type": "environment"}, "task_judge": {"judge_protocol": None}}
    (project / "run.yaml").write_text(yaml.safe_dump({"ajet": ajet}))
    key = "ajet.environment.custom_envs.Guess.agent_system_template"
    model = Model("Guess {nothing}.")

    def guesses(body):
        if body["model"] == "reflector":
            return model(body)
        return 200, message("<answer>8</answer>")

    with ChatServer(guesses) as server:
        result = search(server, "--text", key)
    assert result.exit_code == 0, result.output
    assert "no better text" in result.stdout


def test_the_model_itself_reflects_where_no_other_is_named(project):
    args = ("optimize-prompt", "--conf", "run.yaml", "--num-tasks", "2", "--episodes", "6")
    args += ("--num-held-out", "2", "ajet.model.path=embedded:math")
    limits = ("max_model_len=1000", "max_response_length_in_one_turn=8")
    result = CliRunner().invoke(app, (*args, *(f"ajet.rollout.{each}" for each in limits)))
    assert result.exit_code == 0, result.output
    assert "launcher_record" in result.stdout
