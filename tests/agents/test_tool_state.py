"""Tools with state, and the simulated user: what they are given, when they end, what they give."""

import json

import pytest

from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.rollout.failure import RunFailed
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.agents.agent_runs import call, config_in, run, texts

COUNTER = """
from ajet import BaseTool, ToolResponse

LOG = []


class Counter(BaseTool):
    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self.counts = {}

    async def create(self, instance_id, start=0, **kwargs):
        LOG.append(("create", instance_id, start, kwargs["create_kwargs"]))
        self.counts[instance_id] = start

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["by"] < 0:
            raise ValueError("only upwards")
        self.counts[instance_id] += parameters["by"] * self.config["factor"]
        return ToolResponse(str(self.counts[instance_id])), 0.25, {"by": parameters["by"]}

    async def calc_reward(self, instance_id, **kwargs):
        return self.counts[instance_id] / 10

    def release(self, instance_id, **kwargs):
        LOG.append(("release", instance_id, self.counts.pop(instance_id)))


class OwnId(BaseTool):
    def get_openai_tool_schema(self):
        return {"type": "function", "function": {"name": "own_id"}}

    def create(self, instance_id, **kwargs):
        return f"mine-{instance_id}", ToolResponse("hello")

    def execute(self, instance_id, parameters, **kwargs):
        return instance_id
"""
SCHEMA = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Counts.",
        "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}},
    },
}
ENTRY = {"class_name": "counter.py->Counter", "config": {"factor": 2}, "tool_schema": SCHEMA}
ROW = {"extra_info": {"tools_kwargs": {"count": {"create_kwargs": {"start": 1}}, "own_id": None}}}


@pytest.fixture
def config(tmp_path):
    def make(judge=None, **settings):
        tools = {"tools": [ENTRY, {"class_name": "counter.OwnId"}]}
        files = {"counter.py": COUNTER, "tools.yaml": json.dumps(tools)}
        return config_in(tmp_path, files, judge, tool_config_path="tools.yaml", **settings)

    return make


def log_of(config):
    from ajet.core.user_code.importing import load_module

    return load_module("counter.py", base_dirs=config.base_dirs, location="test").LOG


async def test_each_episode_has_its_own_instance_with_the_rows_arguments(config):
    made = config()
    one, two = await run(made, call("count", by=2), call("own_id"), "done", row=ROW, num=2)
    assert texts(one) == [texts(two)[0], f"mine-{one.episode_id}"]
    assert texts(one)[0] == "5"
    created = [entry for entry in log_of(made) if entry[0] == "create"]
    assert created == [("create", t.episode_id, 1, {"start": 1}) for t in (one, two)]
    released = sorted(entry for entry in log_of(made) if entry[0] == "release")
    assert released == [("release", t.episode_id, 5) for t in (one, two)]


async def test_without_a_judge_the_tools_give_the_reward_and_with_one_they_are_told(config):
    t = await run(config(), call("count", by=2), "done", row=ROW)
    assert (t.status, t.reward) == (EpisodeStatus.OK, 0.5)
    assert t.output.metadata["tool_rewards"] == {"count": 0.5}
    assert t.output.metadata["tool_steps"] == [
        {"tool": "count", "reward": 0.25, "metrics": {"by": 2}}
    ]
    t = await run(config(judge="math"), call("count", by=2), "done", row=ROW)
    assert (t.reward, t.output.metadata["tool_rewards"]) == (0.0, {"count": 0.5})


async def test_a_truncated_episode_keeps_its_tools_reward(config):
    t = await run(config(), call("count", by=2), "never", row=ROW, max_steps=1)
    assert (t.status, t.reward) == (EpisodeStatus.TRUNCATED, 0.5)


@pytest.mark.parametrize("settings", [{"max_assistant_turns": 1}, {}])
async def test_tool_state_is_released_however_the_episode_ends(config, settings):
    made = config(**settings)
    t = await run(made, call("count", by=-1), "done")
    assert texts(t) == ([] if settings else ["Error: ValueError: only upwards"])
    assert log_of(made)[-1] == ("release", t.episode_id, 0)


async def test_a_cancelled_episode_releases_what_it_created(config, tmp_path):
    made = config()

    class Hangs(ModelEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            import asyncio

            await asyncio.sleep(3600)

    limits = {"episode_timeout_s": 0.2, "max_failure_rate": 1.0}
    t = await run(made, endpoint=Hangs(), row=ROW, **limits)
    assert t.status is EpisodeStatus.TIMEOUT
    assert log_of(made) == [
        ("create", t.episode_id, 1, {"start": 1}),
        ("release", t.episode_id, 1),
    ]


USER = """
from ajet import BaseInteraction

LOG = []


class Examiner(BaseInteraction):
    async def start_interaction(self, instance_id, truth=None, **kwargs):
        LOG.append(("start", instance_id, truth))
        self.truth = {instance_id: truth}

    async def generate_response(self, instance_id, messages, truth=None, **kwargs):
        right = messages[-1]["content"] == truth
        return right, "Wrong." + self.config["hint"], float(right), {"right": right}

    def calculate_score(self, instance_id, **kwargs):
        return 0.75

    def finalize_interaction(self, instance_id, **kwargs):
        LOG.append(("end", instance_id))


class Mute(BaseInteraction):
    def generate_response(self, instance_id, messages, **kwargs):
        return "no tuple"
"""
USERS = {
    "interaction": [
        {"name": "examiner", "class_name": "user.py->Examiner", "config": {"hint": " Again."}},
        {"name": "mute", "class_name": "user.Mute"},
    ]
}


def with_user(folder, **settings):
    files = {"user.py": USER, "user.yaml": json.dumps(USERS)}
    return config_in(folder, files, None, interaction_config_path="user.yaml", **settings)


def row_for(name):
    return {"extra_info": {"interaction_kwargs": {"name": name, "truth": "20"}}}


async def test_the_simulated_user_answers_until_it_has_heard_enough(tmp_path):
    t = await run(with_user(tmp_path), "18", "20", row=row_for("examiner"))
    assert texts(t, "user") == ["Wrong. Again."]
    assert t.output.metadata["ended_by"] == "interaction"
    assert t.output.metadata["interaction"] == {
        "score": 0.75,
        "rewards": [0.0, 1.0],
        "notes": [{"right": False}, {"right": True}],
    }
    assert (t.reward, t.output.log_metrics["user_turns"]) == (0.75, 1)
    assert [turn.reply["content"] for turn in t.turns] == ["18", "20"]


@pytest.mark.parametrize(
    ("limit", "num_calls"), [("max_user_turns", 3), ("max_assistant_turns", 2)]
)
async def test_the_conversation_with_the_user_has_limits(tmp_path, limit, num_calls):
    t = await run(with_user(tmp_path, **{limit: 2}), *"1234", row=row_for("examiner"))
    assert (len(t.turns), t.output.metadata["ended_by"]) == (num_calls, limit)


async def test_a_user_that_says_nothing_usable_fails_the_episode_in_one_line(tmp_path):
    with pytest.raises(RunFailed, match=r"Mute\.generate_response\(\) returned str: return \(sho"):
        await run(with_user(tmp_path), "18", row=row_for("mute"))


async def test_a_row_that_names_no_user_says_which_there_are(tmp_path):
    with pytest.raises(RunFailed, match=r"name is 'exam'; .* has examiner, mute"):
        await run(with_user(tmp_path), "18", row=row_for("exam"))


MISTAKES = [
    ({"class": "a.py->A"}, r"tools\[0\]: a tool is one of function, class_name, mcp"),
    ({"class_name": "counter.py->Counter", "conf": 1}, "conf: no such key; did you mean 'config'"),
    ({"class_name": "counter.py->Counter"}, "Counter has no schema: give tool_schema in"),
    ({"class_name": "counter.py->Nobody"}, "has no class 'Nobody'"),
    ({"function": "counter.py->Counter"}, "'Counter' is a class, not a function"),
    ({"function": "counter.py->count"}, r"counter\.py has no function 'count'"),
    ({"mcp": {"args": ["a"]}}, "give either a command .* or a url"),
    ({"mcp": {"command": "no-such-program"}}, "does not start: .*No such file or directory"),
]


@pytest.mark.parametrize(("entry", "message"), MISTAKES)
def test_a_mistake_in_the_tools_file_is_one_line_before_a_launch(config, tmp_path, entry, message):
    from ajet.cli.preflight import check_classes

    made = config()
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [entry]}))
    with pytest.raises(ConfigError, match=message) as error:
        check_classes(made)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("tools.yaml: tools[0]")


def named(name, parameters=None):
    function = {"name": name} | ({} if parameters is None else {"parameters": parameters})
    schema = {"type": "function", "function": function}
    return {"class_name": "counter.py->Counter", "tool_schema": schema}


NO_TOOLS = [
    ([named(5)], r"tools\[0\].* tool_schema has no name that is text"),
    ([named("a"), named("a")], "tool_config_path: two tools are called 'a'"),
    ([named("a", [1])], "tool 'a': its parameters are not a JSON schema: not an object"),
    ([named("a", {"type": 12})], "tool 'a': its parameters are not a JSON schema: 12 is not"),
    ([named("a", {"properties": {"x": {"pattern": "("}}})], "a JSON schema: '\\(' is not a 'reg"),
    ([named("a", {"$schema": 5})], "tool 'a': its parameters are not a JSON schema"),
    ([named("a", {"properties": {"x": {"$ref": "#/no"}}})], "parameters refer to '/no'"),
    ([named("a", {"$ref": "#"})], "tool 'a': its parameters refer to themselves"),
    ([named("a", {"items": {"$ref": "http://127.0.0.1:1/x"}})], "refer to 'http://127.0.0.1:1/x'"),
]


@pytest.mark.parametrize(("entries", "message"), NO_TOOLS)
def test_tools_that_no_model_could_call_are_one_line_before_a_launch(
    config, tmp_path, entries, message
):
    from ajet.cli.preflight import check_classes

    made = config()
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": entries}))
    with pytest.raises(ConfigError, match=message) as error:
        check_classes(made)
    assert "\n" not in str(error.value)


def test_a_schema_may_refer_to_its_own_parts_and_name_its_dialect(config, tmp_path):
    from ajet.cli.preflight import check_classes

    made = config()
    parts = {"$defs": {"n": {"$anchor": "n"}}, "properties": {"x": {"$ref": "#n"}, "$ref": {}}}
    old = {"definitions": {"n": {"$id": "#n"}}, "properties": {"x": {"$ref": "#n"}}}
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", **old}
    entries = [named("new", parts), named("old", draft_7)]
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": entries}))
    check_classes(made)
