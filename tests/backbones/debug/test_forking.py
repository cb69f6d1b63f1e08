"""A fork comes to its turn as the original did, in every id and state, or it is refused; from there
on it is another episode."""

import random
from dataclasses import replace

import pytest

from ajet import Workflow, WorkflowOutput, assembly
from ajet.backbones.debug.forking import Forking, ForkPoint
from ajet.core.config import AjetConfig, load_config
from ajet.core.errors import DataError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import Group
from ajet.core.trajectory.turn import TurnNotes
from ajet.read.episode_reader import EpisodeReader
from ajet.read.fork_folder import recorded_trajectory
from tests.agents.agent_runs import call, config_in
from tests.fakes import ScriptedEndpoint, chat_tokenizer

TOKENIZER = chat_tokenizer("qwen2_5")
TEMPLATE = ChatTemplate(TOKENIZER)
GAMES = {
    "frozen_lake": ({"is_slippery": True}, ("Left", "Down", "Right", "Up")),
    "countdown": ({"max_tries": 4}, ("1+1", "2*3", "7-2", "no")),
    "guess_number": ({}, tuple(map(str, range(1, 17)))),
}


def game_config(name, agent="traj_env_agent", **env_config):
    given, _ = GAMES[name]
    custom = {
        "env_type": name,
        "env_config": given | env_config,
        "env_manager_cls": agent,
        "max_steps": 6,
        "action_pattern": None,
    }
    ajet = {
        "task_reader": {"type": "environment"},
        "environment": {"custom_envs": {"Game": custom}},
        "data": {"train_batch_size": 3, "max_prompt_length": 2048, "max_response_length": 2048},
        "rollout": {"max_model_len": 4096},
        "task_judge": {"judge_protocol": None},
    }
    return AjetConfig.model_validate({"ajet": ajet})


def player(actions):
    """A model whose replies depend on the sampling seed alone, as a real one's draws do."""

    def reply(_prompt, request_id):
        return random.Random(endpoint.sampling[request_id].seed).choice(actions)

    endpoint = ScriptedEndpoint(TOKENIZER, reply)
    return endpoint


async def recorded(folder, config, endpoint, tasks=None):
    """The records of one episode of each task, by way of the database."""
    runner = assembly.make_runner(config, endpoint, TEMPLATE, judge=None)
    tasks = tasks or make_reader(config).get_training_tasks()
    groups = await runner.rollout(RolloutRequest(tasks, step=2, mode="train", num_repeat=1))
    with EpisodeStore(folder / "episodes.sqlite") as store:
        store.write(2, groups)
    with EpisodeReader(folder / "episodes.sqlite") as reader:
        return [reader.episode(g.trajectories[0].episode_id) for g in groups]


def forking(config, **options):
    return Forking(config, TEMPLATE, None, SamplingParams(), **options)


async def forks_of(config, record, turn, endpoint, num=3, **options):
    point = ForkPoint.of(record, turn, config)
    return await forking(config, **options).run(point, endpoint, num)


@pytest.mark.parametrize("agent", ["traj_env_agent", "step_env_agent"])
@pytest.mark.parametrize("name", GAMES)
async def test_forks_of_a_game_come_to_their_turn_in_the_recorded_ids_and_states(
    tmp_path, name, agent
):
    config, actions = game_config(name, agent), GAMES[name][1]
    num_departed = 0
    for record in await recorded(tmp_path, config, player(actions)):
        for turn in range(len(record.turns)):
            forks = await forks_of(config, record, turn, player(actions))
            for fork in forks:
                for now, then in zip(fork.turns[: turn + 1], record.turns, strict=False):
                    assert now.completion.prompt_ids == tuple(then.prompt_ids.tolist())
                    assert now.state_key == then.state_key
                    if then.turn_index < turn:
                        assert (now.completion, now.reward) == (then.completion, then.reward)
            assert len({fork.episode_id for fork in forks}) == 3
            replies = [fork.turns[turn].reply["content"] for fork in forks]
            num_departed += sum(each != record.turns[turn].reply["content"] for each in replies)
            again = await forks_of(config, record, turn, player(actions))
            assert [f.reward for f in again] == [f.reward for f in forks]
    assert num_departed > 5


async def test_an_environment_that_is_another_is_refused_by_turn_position_and_tokens(tmp_path):
    config = game_config("guess_number")
    record = (await recorded(tmp_path, config, player(("3", "12"))))[0]
    other = game_config("guess_number", high=17)
    endpoint = player(("3", "12"))
    with pytest.raises(DataError) as refused:
        await forks_of(other, record, 1, endpoint)
    prompt = record.turns[0].prompt_ids.tolist()
    at = next(n for n in range(len(prompt)) if TOKENIZER.decode(prompt[:n]).endswith("from 1 to 1"))
    assert str(refused.value) == (
        f"turn 0: the prompt departs from the record at position {at}, in message 0 (system): "
        "recorded is token 54 ('6'), now it is token 55 ('7'); `ajet inspect replay` shows both"
    )
    assert not endpoint.prompts


async def test_a_state_that_the_prompt_does_not_show_is_compared_too(tmp_path):
    config = game_config("frozen_lake", show_neighbours=False, show_position=True, view="none")
    [record, *_] = await recorded(tmp_path, config, player(("Left",)))
    other = game_config(
        "frozen_lake", show_neighbours=False, show_position=True, view="none", p=0.99
    )
    with pytest.raises(DataError, match="turn 0: the state departs from the record: recorded is"):
        await forks_of(other, record, 1, player(("Left",)))


class Asks(Workflow):
    """Asks three times, then one time fewer."""

    times = 3

    async def execute(self, workflow_task, model_tuner):
        for _ in range(Asks.times):
            await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        Asks.times -= 1
        return WorkflowOutput(reward=1.0)


async def test_an_episode_that_ends_before_the_turn_is_refused_with_its_end(tmp_path):
    config = config_in(tmp_path, judge=None)
    asks = "tests.backbones.debug.test_forking->Asks"
    config = load_config(tmp_path / "run.yaml", [f"ajet.rollout.user_workflow={asks}"])
    [record] = await recorded(tmp_path, config, player(("1",)), [Task("t", "Count.")])
    with pytest.raises(DataError) as refused:
        await forks_of(config, record, 2, player(("1",)), num=1)
    assert str(refused.value) == (
        "turn 2 was recorded, and 000002-train-0000-00-turn-2-00 did not make it; it ended as ok"
    )


async def test_a_turn_that_the_episode_has_not_and_given_replies_are_refused(tmp_path):
    config = game_config("guess_number")
    record = (await recorded(tmp_path, config, player(("1",))))[0]
    with pytest.raises(DataError, match=r"--turn 4: episode 000002-train-0000-00 has turns 0 to 3"):
        ForkPoint.of(record, 4, config)
    first, *others = record.turns
    record = replace(record, turns=(replace(first, notes=TurnNotes(is_given=True)), *others))
    with pytest.raises(DataError, match="its replies were not sampled"):
        ForkPoint.of(record, 1, config)


TOOLS = """
CALLS = []


def count(what: str) -> str:
    CALLS.append(what)
    return f"{what} {len(CALLS)} " + "x" * 400


class Basket:
    def __init__(self, config, tool_schema):
        self.sizes = {}

    def get_openai_tool_schema(self):
        parameters = {"type": "object", "properties": {"what": {"type": "string"}}}
        function = {"name": "put", "description": "Puts.", "parameters": parameters}
        return {"type": "function", "function": function}

    async def create(self, instance_id=None, **kwargs):
        self.sizes[instance_id] = 0
        return instance_id

    async def execute(self, instance_id, parameters, **kwargs):
        self.sizes[instance_id] += 1
        return f"{self.sizes[instance_id]} in it"

    async def calc_reward(self, instance_id, **kwargs):
        return float(self.sizes[instance_id])

    async def release(self, instance_id, **kwargs):
        del self.sizes[instance_id]
"""
TOOL_FILES = {
    "counting.py": TOOLS,
    "tools.yaml": "tools:\n  - function: counting.py->count\n"
    "  - class_name: counting.py->Basket\n    config: {}\n",
}


def caller(last):
    """Counts twice, puts once, then says `last`."""

    def reply(_prompt, request_id):
        number = int(request_id.rpartition("/")[2])
        calls = [call("count", what="a") + call("put", what="b"), call("count", what="c")]
        return calls[number] if number < 2 else last

    return ScriptedEndpoint(TOKENIZER, reply)


@pytest.fixture
def tools(tmp_path):
    return config_in(
        tmp_path,
        TOOL_FILES,
        judge=None,
        tool_config_path="tools.yaml",
        max_tool_response_length=40,
    )


async def test_before_the_turn_tools_give_their_recorded_answers_and_those_with_rewards_are_called(
    tmp_path, tools
):
    [record] = await recorded(tmp_path, tools, caller("done"), [Task("t", "Count.")])
    assert "characters cut" in record.turns[2].messages[2]["content"]
    forks = await forks_of(tools, record, 2, caller("other"))
    for fork in forks:  # `count` answers otherwise each time it is called
        assert fork.turns[2].completion.prompt_ids == tuple(record.turns[2].prompt_ids.tolist())
        assert fork.turns[2].reply["content"] == "other"
        assert fork.reward == record.row.reward == 1.0
    [fork] = await forks_of(tools, record, 1, caller("done"), num=1)
    told = [m["content"] for m in fork.turns[2].messages if m["role"] == "tool"]
    assert told[0].startswith("a 1 ") and told[1] == "1 in it"
    assert told[2].startswith("c 3 ")  # after the turn it is called: twice before, for the record


async def test_tools_that_are_called_again_depart_where_they_answer_otherwise(tmp_path, tools):
    [record] = await recorded(tmp_path, tools, caller("done"), [Task("t", "Count.")])
    with pytest.raises(DataError, match=r"turn 1: the prompt departs .* in message 2 \(tool\): "):
        await forks_of(tools, record, 2, caller("other"), runs_tools=True)


async def test_a_recorded_episode_is_written_beside_its_forks_as_it_was(tmp_path):
    config = game_config("guess_number")
    record = (await recorded(tmp_path, config, player(("3", "12", "8"))))[0]
    trajectory = recorded_trajectory(record, ForkPoint.of(record, 0, config).plan)
    with EpisodeStore(tmp_path / "copy.sqlite") as store:
        group = Group(record.row.group_id, (trajectory,), trajectory.workflow_task.task)
        store.write(record.row.step, [group])
    with EpisodeReader(tmp_path / "copy.sqlite") as reader:
        copy = reader.episode(record.row.episode_id)
    assert copy.row == record.row and copy.metadata == record.metadata
    assert copy.began_unix_s == record.began_unix_s and copy.calls == record.calls
    assert [t.messages for t in copy.turns] == [t.messages for t in record.turns]
    assert [t.completion for t in copy.turns] == [t.completion for t in record.turns]


class Divides(Workflow):
    """Two agents play, and each earns its own reward."""

    async def execute(self, workflow_task, model_tuner):
        for name in ("pro", "con"):
            await model_tuner.chat([{"role": "user", "content": "Play."}], agent_name=name)
        return WorkflowOutput(reward=0.5, agent_rewards={"pro": 1.0, "con": -1.0})


async def test_a_recorded_episode_has_the_rewards_of_its_agents(tmp_path):
    config_in(tmp_path, judge=None)
    divides = "tests.backbones.debug.test_forking->Divides"
    config = load_config(tmp_path / "run.yaml", [f"ajet.rollout.user_workflow={divides}"])
    [record] = await recorded(tmp_path, config, player(("a",)), [Task("t", "Play.")])
    trajectory = recorded_trajectory(record, ForkPoint.of(record, 0, config).plan)
    assert trajectory.agent_rewards == {"pro": 1.0, "con": -1.0}
    assert trajectory.earned == (0.5, -1.0, 1.0)
