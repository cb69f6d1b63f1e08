"""Whatever an environment service answers, wherever: its episode ends with a status, and what is
read before a run is an error of one line."""

import asyncio
import json
import re

import pytest

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.config import load_config
from ajet.core.environment.live import open_environment
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import AjetError, EnvironmentFault
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.text.error_text import one_line
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.environments.env_service.client import EnvServiceClient
from ajet.environments.env_service.host import EnvServiceHost
from tests.core.rollout.test_hostile_values import ALLOWED, check_everything_after
from tests.env_server import StubService
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
VALUES = {
    "integer that Python refuses": "1" + "0" * 6000,
    "integer too large for a float": "-1" + "0" * 400,
    "infinite by its size": "1e999",
    "nan": "NaN",
    "infinity": "-Infinity",
    "list 90 deep": "[" * 90 + "]" * 90,
    "list 500 deep": "[" * 500 + "]" * 500,
    "object 400 deep": '{"a":' * 400 + "1" + "}" * 400,
    "lone surrogate": '"a\\ud800b"',
    "nul": '"a\\u0000b"',
    "escape": '"\\u001b]0;owned\\u0007\\u001b[2J\\u202e"',
    "long text": json.dumps("x" * 200_000),
    "huge key": json.dumps({"k" * 100_000: 1}),
    "one key twice": '{"a": 1, "a": 2}',
    "cut": '{"a": ',
    "null": "null",
    "true": "true",
    "text": '"text"',
    "number": "3",
    "list": "[1, null]",
    "object": '{"a": {}}',
}
"""By name: a value as it stands in the answer's JSON."""
PLACES = {
    "the answer": "{}",
    "success": '{{"success": {}, "data": {{"state": "x"}}}}',
    "the reason": '{{"success": false, "detail": {}}}',
    "data": '{{"data": {}}}',
    "state": '{{"data": {{"state": {}}}}}',
    "a message": '{{"data": {{"state": [{}]}}}}',
    "content": '{{"data": {{"state": [{{"role": "user", "content": {}}}]}}}}',
    "a block": '{{"data": {{"state": [{{"role": "user", "content": [{}]}}]}}}}',
    "role": '{{"data": {{"state": [{{"role": {}, "content": "x"}}]}}}}',
    "another key": '{{"data": {{"state": [{{"role": "user", "content": "x", "o": {}}}]}}}}',
    "reward": '{{"data": {{"state": "x", "reward": {}}}}}',
    "is_terminated": '{{"data": {{"state": "x", "is_terminated": {}}}}}',
    "info": '{{"data": {{"state": "x", "info": {}}}}}',
    "instance_id": '{{"data": {{"state": "x", "info": {{"instance_id": {}}}}}}}',
    "metrics": '{{"data": {{"state": "x", "info": {{"metrics": {}}}}}}}',
    "a metric": '{{"data": {{"state": "x", "info": {{"metrics": {{"m": {}}}}}}}}}',
    "state_key": '{{"data": {{"state": "x", "info": {{"state_key": {}}}}}}}',
}
GOOD = {"create": {"state": "x"}, "step": {"state": "x"}, "evaluate": 0.5, "get_info": {}}
OTHERS = ("the answer", "success", "the reason", "data")


def hostile_answer(place, name):
    return PLACES[place].format(VALUES[name])


def service():
    """Answers as the task's id says: hostile to this verb, in this place, with this value."""
    told_by_instance = {}

    def answer(verb, body):
        told = body["task_id"] or told_by_instance.get(body["instance_id"])
        told_by_instance[body["instance_id"]] = told
        hostile_to, _, rest = (told or "").partition(": ")
        if verb == hostile_to:
            return 200, hostile_answer(*rest.split(": "))
        return 200, {"data": GOOD.get(verb)}

    return StubService(answer)


class Plays(Workflow):
    async def execute(self, workflow_task, model_tuner):
        env = workflow_task.gym_env
        messages = workflow_task.task.init_messages
        await model_tuner.chat(messages)
        obs, reward, over, info = await env.step("go")
        await model_tuner.chat([*messages, {"role": "user", "content": obs}])
        score = await env.evaluate()
        told = {"info": info, "over": over, "about": await env.get_info()}
        return WorkflowOutput(reward=score, metadata=told, log_metrics={"reward": reward})


@pytest.mark.parametrize(
    ("verb", "places"),
    [("create", PLACES), ("step", PLACES), ("evaluate", OTHERS), ("get_info", OTHERS)],
)
async def test_a_service_may_answer_anything_to_an_episode(verb, places, tmp_path):
    told = [f"{verb}: {place}: {name}" for place in places for name in VALUES]
    with service() as stub:
        runner = episode_runner(
            Plays,
            ScriptedEndpoint(TOKENIZER, lambda *_: "fine"),
            TOKENIZER,
            environments=EnvServiceHost(stub.url, "house", backoff_s=0.001),
            max_failure_rate=1.0,
        )
        tasks = [Task(name, "", env_type="house") for name in told]
        groups = await runner.rollout(RolloutRequest(tasks, step=1, mode="train", num_repeat=1))
    faults = 0
    for what, group in zip(told, groups, strict=True):
        (member,) = group.trajectories
        assert member.status in ALLOWED, (what, member.error)
        faults += member.status is EpisodeStatus.ENV_ERROR
        if member.error is not None:
            assert member.error.isprintable() and len(member.error) < 1000, what
    assert 0 < faults < len(told)
    check_everything_after(groups, tmp_path)


@pytest.mark.parametrize("verb", ["create", "step"])
async def test_a_service_may_answer_anything_to_an_agents_environment(verb, monkeypatch):
    from ajet.environments.env_service import environment

    monkeypatch.setattr(environment, "_task_ids", {})
    now = {}

    def answer(called, body):
        if called == "get_env_profile":
            return 200, {"data": ["t"]}
        return 200, now["said"] if called == verb else {"data": GOOD.get(called)}

    with StubService(answer) as stub:
        settings = {"env_url": stub.url, "env_type": "house"}
        maker = environment_maker("env_service", settings, [], "test")
        async with open_environment(maker, "thread") as played:
            for place in PLACES:
                for name in VALUES:
                    now["said"] = hostile_answer(place, name)
                    try:
                        seen = await played.reset(1, {}), await played.step("go")
                        json.dumps(seen, allow_nan=False)
                    except EnvironmentFault as fault:
                        said = one_line(fault)
                        assert said.isprintable() and len(said) < 1000, (place, name)


@pytest.mark.parametrize("place", [*OTHERS, "an id"])
def test_a_service_may_list_anything_as_its_tasks(place, tmp_path):
    (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}")
    now = {}
    with StubService(lambda verb, body: (200, now["said"])) as stub:
        section = "ajet.task_reader.env_service"
        overrides = [f"{section}.env_url={stub.url}", f"{section}.env_type=house"]
        overrides += ["ajet.task_reader.type=env_service"]
        reader = make_reader(load_config(tmp_path / "run.yaml", overrides))
        for name, value in VALUES.items():
            now["said"] = (PLACES | {"an id": '{{"data": [{}]}}'})[place].format(value)
            try:
                for task in reader.get_training_tasks():
                    assert len(task.task_id) <= 500, name
                    task.task_id.encode()
            except AjetError as error:
                said = str(error)
                assert said.isprintable() and len(said) < 1000, name


def send(raw, timeout_s=5.0):
    """The fault of a client whose service answers with these bytes, and how often it was called."""
    calls = []

    async def call():
        async def handle(reader, writer):
            calls.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(raw)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with (
            server,
            EnvServiceClient(
                f"http://{host}:{port}", "e", timeout_s=timeout_s, backoff_s=0.001
            ) as client,
        ):
            await client.create("t", "i")

    with pytest.raises(EnvironmentFault) as fault:
        asyncio.run(call())
    assert str(fault.value).isprintable() and len(str(fault.value)) < 1000
    return re.sub(r":\d+/", "/", str(fault.value), count=1), len(calls)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status):
    with StubService(lambda verb, body: (200, {"data": GOOD["create"]})) as elsewhere:
        head = f"HTTP/1.1 {status} Moved\r\nlocation: {elsewhere.url}/create\r\n"
        said, num_calls = send(head.encode() + b"content-length: 0\r\n\r\n")
    assert (
        said == f"http://127.0.0.1/create: HTTP {status}: it redirects to {elsewhere.url}/create, "
        "which is not followed; write the service's final address"
    )
    assert num_calls == 1 and elsewhere.calls == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff\xfe",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 999999 x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 10_000_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\xff\xfe{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: a; charset=\xff\r\ncontent-length: 2\r\n\r\n[]",
        b"HTTP/1.1 500 x\r\ncontent-type: a; charset=no\r\ncontent-length: 3\r\n\r\n\xff\x00\x1b",
        b"HTTP/1.1 302 Moved\r\nlocation: http://[\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 302 Moved\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nlocation: x\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_bytes_that_are_no_answer_of_http_are_a_fault(raw):
    said, _ = send(raw)
    assert said.startswith("http://127.0.0.1/create: ")


def test_an_answer_that_never_ends_is_given_up():
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    said, num_calls = send(head + chunk * 17_000, timeout_s=60.0)  # more than 64 MiB of blanks
    assert said == "http://127.0.0.1/create: the answer has more than 67108864 bytes"
    assert num_calls == 1
