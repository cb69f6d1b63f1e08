"""Whatever a user's own reader hands over: a run with it begins, and its episodes end by
themselves, or one line says before it begins which task cannot be had."""

import json
from dataclasses import asdict
from hashlib import sha256

import pytest

from ajet import BaseTaskReader, Task, Workflow, WorkflowOutput
from ajet.assembly import load_workflows, read_tasks
from ajet.cli.preflight import check_agents
from ajet.core.config import load_config
from ajet.core.errors import AjetError
from ajet.core.rollout.request import RolloutRequest
from ajet.core.run.identity import RunIdentity
from ajet.core.run.run_tasks import RunTasks
from tests.core.rollout.test_hostile_values import ALLOWED, check_everything_after
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner
from tests.hostile_values import MAKERS, LyingList, cyclic_list, doubled, nested

TOKENIZER = chat_tokenizer("qwen2_5")
NEVER_TAKEN = ("the list", "a task", "init_messages", "raised")
KEYS = ("x", "tag", "split", "extra_info")  # the first is nobody's, the others are read
PLACES = {
    "the list": lambda value: value,
    "a task": lambda value: [value],
    "task_id": lambda value: [Task(value, "q")],
    "main_query": lambda value: [Task("a", value)],
    "init_messages": lambda value: [Task("a", "q", value)],
    "a message": lambda value: [Task("a", "q", [value])],
    "content": lambda value: [Task("a", "q", [{"role": "user", "content": value}])],
    "env_type": lambda value: [Task("a", "q", [], value)],
    "metadata": lambda value: [Task("a", "q", metadata=value)],
    "inside metadata": lambda value: [Task("a", "q", metadata={"x": [{"y": value}]})],
    "metadata's values": lambda value: [Task("a", "q", metadata=dict.fromkeys(KEYS, value))],
    "agent_name": lambda value: [Task("a", "q", metadata={"agent_name": value})],
    "agent_cfg_path": lambda value: [Task("a", "q", metadata={"agent_cfg_path": value})],
}


class Hostile(BaseTaskReader):
    """Gives, or raises, the value of this name in this place."""

    place, name = "", ""

    def get_training_tasks(self):
        value = MAKERS[self.name]()
        if self.place == "raised":
            raise ValueError(value)
        return PLACES[self.place](value)

    def get_validation_tasks(self):
        return []


class Asks(Workflow):
    async def execute(self, workflow_task, model_tuner):
        task = workflow_task.task
        question = {"role": "user", "content": task.main_query}
        await model_tuner.chat([*task.init_messages, question])
        return WorkflowOutput(reward=1.0)


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}")
    here = f"ajet.task_reader.type={__name__}->Hostile"
    workflow = f"ajet.rollout.user_workflow={__name__}->Asks"
    return load_config(tmp_path / "run.yaml", [here, workflow])


@pytest.fixture
def begin(config, monkeypatch):
    """Takes a run up to its first plans, as the command line does; returns the tasks."""

    def begun(place, name):
        monkeypatch.setattr(Hostile, "place", place)
        monkeypatch.setattr(Hostile, "name", name)
        tasks = read_tasks(config)
        check_agents(config, tasks.workflows, tasks.training)
        RunIdentity.of(config, tasks)
        RolloutRequest(tasks.training, step=1, mode="train", num_repeat=2).plans(1)
        return tasks.training

    return begun


@pytest.mark.parametrize("place", [*PLACES, "raised"])
async def test_a_reader_may_hand_over_anything_anywhere(begin, place, tmp_path):
    taken = {}
    for name in MAKERS:
        try:
            taken[name] = begin(place, name)[0]
        except AjetError as error:
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 5000, name
    if taken:
        runner = episode_runner(
            Asks, ScriptedEndpoint(TOKENIZER, lambda *_: "fine"), TOKENIZER, max_failure_rate=1.0
        )
        request = RolloutRequest(list(taken.values()), step=1, mode="train", num_repeat=1)
        groups = await runner.rollout(request)
        for name, group in zip(taken, groups, strict=True):
            (member,) = group.trajectories
            assert member.status in ALLOWED, name
        check_everything_after(groups, tmp_path)
    assert len(taken) < len(MAKERS) and (taken or place in NEVER_TAKEN)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (nested(200), "are nested more than 100 deep, or hold themselves"),
        (cyclic_list(), "are nested more than 100 deep, or hold themselves"),
        (doubled(60), "hold more than 10000000 values"),
        (LyingList([1]), "hold a LyingList, a list that defines __iter__; give a plain list"),
    ],
)
def test_a_row_without_end_is_named(begin, monkeypatch, value, problem):
    monkeypatch.setitem(MAKERS, "mine", lambda: value)
    with pytest.raises(AjetError) as error:
        begin("metadata's values", "mine")
    said = f"number 1 of the list has init_messages or metadata that {problem}"
    assert str(error.value).endswith(said)


def test_depth_counts_along_every_path_to_a_value(begin, monkeypatch):
    short = nested(60)
    long = [[short]]
    for _ in range(60):
        long = [long]
    monkeypatch.setitem(MAKERS, "mine", lambda: [short, long])
    with pytest.raises(AjetError, match="more than 100 deep"):
        begin("metadata's values", "mine")


def test_an_object_that_cannot_be_copied_is_named_before_the_run(begin):
    with pytest.raises(AjetError, match="number 1 of the list cannot be copied for an episode: "):
        begin("metadata's values", "generator")


def test_texts_of_a_users_own_class_are_texts(begin):
    for place, name in [("task_id", "task_id"), ("main_query", "main_query")]:
        (task,) = begin(place, "lying text")
        assert type(getattr(task, name)) is str and getattr(task, name) == "a"


def test_rows_of_plain_data_have_the_hash_of_their_json(config):
    row = {"answer": 4, "big": 10**30, "x": [1.5, None, True], "y": {"letters": "é\ud800"}}
    task = Task("a", "q", [{"role": "user", "content": "hi"}], metadata=row)
    as_json = json.dumps(asdict(task), sort_keys=True, default=str).encode()
    tasks = RunTasks.of(config, load_workflows(config), [task], [], 0)
    identity = RunIdentity.of(config, tasks)
    assert (identity.rows or {})["training tasks"]["sha256"] == sha256(as_json).hexdigest()
