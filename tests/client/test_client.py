"""The clients of `ajet serve`: they wait, repeat what got no answer, and give up what fails."""

import asyncio
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest

from ajet.client import (
    AsyncEpisodeClient,
    EpisodeClient,
    EpisodeOver,
    RunOver,
    ServeError,
    ServerUnreachable,
)
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.serve.exchange.exchange import EpisodeExchange
from tests.serve.exchange.served import KEY, TASKS, served


def in_thread(function, *arguments):
    return asyncio.create_task(asyncio.to_thread(function, *arguments))


async def test_a_decorated_function_plays_episodes_until_the_run_is_over():
    async with served() as server:

        def program():
            with EpisodeClient(server.url, KEY) as client:

                @client.episode
                def solve(episode):
                    agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key)
                    question = {"role": "user", "content": episode.task["main_query"]}
                    reply = agent.chat.completions.create(model="any", messages=[question])
                    return {"reward": 1.0, "metadata": {"said": reply.choices[0].message.content}}

                return client.run(solve, parallel=3)

        playing = in_thread(program)
        groups = await server.rollout()
        server.exchange.close("the run has ended")
        assert await playing == 6
    said = [t.output.metadata["said"] for group in groups for t in group.trajectories]
    assert said == ["ok"] * 6


async def test_the_asynchronous_client_does_the_same():
    followed = []
    async with served() as server, AsyncEpisodeClient(server.url, KEY) as client:

        @client.episode
        async def solve(episode):
            agent = openai.AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key)
            question = {"role": "user", "content": episode.task["main_query"]}
            await agent.chat.completions.create(model="any", messages=[question])
            followed.append(episode)
            return 0.5

        playing = asyncio.create_task(client.run(solve, parallel=3))
        groups = await server.rollout()
        assert (await client.status())["num_ended"] == {"ok": 6}
        assert (await followed[0].outcome()).state == "waiting"
        server.exchange.step_trained(1, groups)
        found = await followed[0].outcome(wait_s=30)
        assert (found.state, found.trained_step, found.reward) == ("trained", 1, 0.5)
        server.exchange.close("the run has ended")
        assert await playing == 6
    assert [t.reward for group in groups for t in group.trajectories] == [0.5] * 6


async def test_an_exception_gives_the_episode_up_and_is_raised():
    async with served() as server:
        step = server.rollout(TASKS[:1], num_repeat=1)

        def program():
            with EpisodeClient(server.url, KEY) as client, client.begin() as episode:
                raise KeyError(episode.task["task_id"])

        with pytest.raises(KeyError):
            await in_thread(program)
        [group] = await step
    assert group.trajectories[0].status is EpisodeStatus.AGENT_ERROR
    assert "KeyError: 't0'" in group.trajectories[0].error


async def test_a_client_within_its_block_sends_heartbeats():
    class Counting(EpisodeExchange):
        def __init__(self):
            super().__init__(heartbeat_s=0.03, clock=lambda: 0.0)
            self.num_seen, self.has_seen_two = 0, threading.Event()

        def seen(self, claim_id):
            self.num_seen += 1
            if self.num_seen == 2:
                self.has_seen_two.set()
            return super().seen(claim_id)

    exchange = Counting()
    async with served(exchange=exchange) as server:
        server.rollout(TASKS[:1], num_repeat=1)

        def program():
            with EpisodeClient(server.url, KEY) as client, client.begin() as episode:
                exchange.has_seen_two.wait()
                return episode.end(1.0)

        assert (await in_thread(program)).status == "ok"


async def test_an_episode_that_is_over_raises_its_reason():
    async with served(episode_timeout_s=0.2) as server:
        step = server.rollout(TASKS[:1], num_repeat=1)
        async with AsyncEpisodeClient(server.url, KEY) as client:
            episode = await client.begin(task_id="t0", agents=["solver"], mode="train")
            await step
            with pytest.raises(EpisodeOver, match=r"not finished within 0\.2 s"):
                await episode.end(1.0)
            server.exchange.close("the run has ended")
            with pytest.raises(RunOver, match="the run has ended"):
                await client.begin()


async def test_a_wrong_key_and_no_server_are_errors_of_one_line():
    async with served() as server, AsyncEpisodeClient(server.url, "wrong") as client:
        with pytest.raises(ServeError, match="unknown key"):
            await client.begin()
    async with AsyncEpisodeClient(server.url, KEY, patience_s=0) as client:
        with pytest.raises(ServerUnreachable, match="is not reached: ConnectError"):
            await client.begin()


async def test_a_clients_pause_is_for_all_clients():
    async with served() as server:
        server.rollout()
        async with AsyncEpisodeClient(server.url, KEY) as client:
            assert (await client.pause())["state"] == "paused"
            waiting = asyncio.create_task(client.begin())
            assert len(await client.tasks()) == 3
            assert (await client.resume())["state"] == "running"
            await (await waiting).end(1.0)


class HangsUpOnce(BaseHTTPRequestHandler):
    """Reads each request, and closes the connection of the first without an answer."""

    bodies = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        type(self).bodies.append((self.path, body))
        if len(self.bodies) == 1:
            self.close_connection = True
            return
        answer = b'{"status": "ok", "reward": 1.0}'
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_an_end_without_an_answer_is_sent_again():
    from ajet.client import protocol

    with ThreadingHTTPServer(("127.0.0.1", 0), HangsUpOnce) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with EpisodeClient(f"http://127.0.0.1:{server.server_address[1]}", KEY) as client:
            outcome = client.do(
                protocol.end(
                    "c1",
                    reward=1.0,
                    is_success=None,
                    metadata=None,
                    metrics=None,
                    agent_rewards=None,
                    patience_s=5.0,
                )
            )
        server.shutdown()
    assert (outcome.status, outcome.reward) == ("ok", 1.0)
    assert len(HangsUpOnce.bodies) == 2
    assert HangsUpOnce.bodies[0] == HangsUpOnce.bodies[1]


@pytest.mark.parametrize(
    ("status", "content", "kind", "said"),
    [
        (502, b"<html>Bad Gateway</html>", ServerUnreachable, "not reached: status 502, and no"),
        (200, b"<html>Welcome</html>", ServerUnreachable, "not reached: status 200, and no JSON"),
        (200, b"[1]", ServerUnreachable, "not reached: status 200, and no JSON object"),
        (404, b"<html>Not Found</html>", ServeError, "status 404, and no JSON object"),
    ],
)
def test_the_page_of_a_proxy_or_of_another_server_is_an_error_of_one_line(
    status, content, kind, said
):
    from ajet.client import protocol

    beginning = protocol.begin(task=None, task_id=None, agents=["a"], mode=None, patience_s=0.0)
    next(beginning)
    with pytest.raises(kind, match=said) as raised:
        beginning.send(protocol.answer_of(status, content))
    assert "\n" not in str(raised.value)


def test_the_client_loads_neither_torch_nor_the_rest_of_ajet():
    code = (
        "import sys, ajet.client; "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('torch', 'pydantic') "
        "or name.startswith(('ajet.core', 'ajet.serve.exchange'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
