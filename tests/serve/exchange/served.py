"""A server of episodes in the test's process: a scripted model, the real gateway and rollout."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx

from ajet import Task
from ajet.core.rollout.request import RolloutRequest
from ajet.serve.exchange.exchange import EpisodeExchange
from ajet.serve.exchange.gateway import ExchangeGateway
from ajet.serve.exchange.workflow import ClientOwned
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASKS = [Task(f"t{n}", f"question {n}", metadata={"answer": str(n)}) for n in range(3)]
KEY = "the server's key"
API = "/ajet/v1"


class MemoryJournal:
    """Keeps what is put; `on_put` is called with each episode first."""

    keeps_calls = False

    def __init__(self, on_put=lambda trajectory: None):
        self.finished, self.on_put = {}, on_put

    def take(self, group_id):
        return dict(self.finished.pop(group_id, {}))

    def answered(self, group_id):
        return {}

    def put_call(self, plan, call):
        pass

    def put(self, trajectory):
        self.on_put(trajectory)
        if trajectory.output is not None:
            number = trajectory.workflow_task.rollout_index
            group = self.finished.setdefault(trajectory.group_id, {})
            group[f"{trajectory.group_id}-{number:02d}"] = trajectory


class Server:
    """The parts of a server. `rollout` runs groups as a step does."""

    def __init__(self, exchange, gateway, runner):
        self.exchange, self.gateway, self.runner = exchange, gateway, runner
        self.url = gateway.listen().removesuffix("/v1")
        self.http = httpx.AsyncClient(base_url=self.url, timeout=60)

    def rollout(self, tasks=TASKS, num_repeat=2, step=0, mode="train"):
        request = RolloutRequest(tasks, step=step, mode=mode, num_repeat=num_repeat)
        return asyncio.create_task(self.runner.rollout(request))

    async def post(self, path, body=None, key=KEY, **headers):
        headers = {"authorization": f"Bearer {key}"} | headers
        content = json.dumps({} if body is None else body)
        return await self.http.post(API + path, content=content, headers=headers)

    async def get(self, path):
        headers = {"authorization": f"Bearer {KEY}"}
        return (await self.http.get(API + path, headers=headers)).json()

    async def begin(self, **body):
        answer = await self.post("/episodes", {"wait_s": 30} | body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def end(self, claim, reward=1.0, **body):
        return await self.post(f"/episodes/{claim['id']}/end", {"reward": reward} | body)

    async def chat(self, claim, text="hi", agent=None):
        key = claim["api_key"] if agent is None else claim["api_keys"][agent]
        return await self.http.post(
            "/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": text}]},
            headers={"authorization": f"Bearer {key}"},
        )

    async def play(self, reward=1.0, **begin):
        """Runs one episode as a client does."""
        claim = await self.begin(**begin)
        assert (await self.chat(claim, claim["task"]["main_query"])).status_code == 200
        return claim, (await self.end(claim, reward)).json()


@asynccontextmanager
async def served(judge=None, endpoint=None, journal=None, exchange=None, **limits):
    """A server that is closed at the end of the block, with the rollouts that are still there. Its
    judge's plain methods run in a thread, as those of `ajet serve` do."""
    if judge is not None:
        judge.thread_lock = asyncio.Lock()
    exchange = exchange or EpisodeExchange()
    gateway = ExchangeGateway(exchange, KEY)
    runner = episode_runner(
        ClientOwned.of(exchange),
        endpoint or ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: "ok"),
        TOKENIZER,
        judge,
        gateway=gateway,
        max_failure_rate=1.0,
        **limits,
    )
    journal = MemoryJournal() if journal is None else journal
    server = Server(exchange, gateway, gateway.acknowledging(runner, journal))
    try:
        yield server
    finally:
        server.runner.stop()
        await server.http.aclose()
        await asyncio.to_thread(gateway.close)
