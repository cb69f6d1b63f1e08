"""Episodes that clients own on backbones verl and trinity: one process, one exchange, any number of
attempts of the run. No Ray runs here: the endpoint is scripted."""

import asyncio
from contextlib import asynccontextmanager
from datetime import datetime

from ajet.cluster.rollout_worker import TokenizerSpec
from ajet.cluster.run_processes import DriverRollout
from ajet.core.config import load_config
from ajet.serve.exchange.setup import make_exchange_gateway
from tests.fakes import ScriptedEndpoint
from tests.serve.exchange.served import KEY, TASKS, TOKENIZER, MemoryJournal, Server

YAML = """
ajet:
  model: {path: 'embedded:math'}
  rollout: {user_workflow: client_owned, max_env_worker: 3, temperature: 0.75}
  task_judge: {judge_protocol: null}
  serve: {port: auto, tasks: client}
"""
SPEC = TokenizerSpec(TOKENIZER, (TOKENIZER.eos_token_id,), datetime(2026, 1, 1))
MINE, OTHER = ({"task_id": name, "main_query": f"{name}?"} for name in ("mine", "other"))


@asynccontextmanager
async def run_of(tmp_path, *overrides):
    """Yields a function that begins an attempt of a run and returns a server over it, and the
    scripted endpoint."""
    (tmp_path / "run.yaml").write_text(YAML)
    config = load_config(tmp_path / "run.yaml", overrides, backbone="verl")
    gateway = make_exchange_gateway(config, KEY)
    rollout = DriverRollout(config, gateway)
    endpoint, servers = ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: "ok"), []

    async def attempt(journal=None):
        runner = await rollout.start(lambda: endpoint, SPEC)
        runner = gateway.acknowledging(runner, journal)
        servers.append(Server(gateway.exchange, gateway, runner))
        return servers[-1]

    try:
        yield attempt, endpoint
    finally:
        for server in servers:
            server.runner.stop()
            await server.http.aclose()
        rollout.close()
        await asyncio.to_thread(gateway.close)


async def test_episodes_of_a_step_and_of_a_validation_are_sampled_as_their_mode_says(tmp_path):
    async with run_of(tmp_path, "ajet.serve.tasks=config") as (attempt, endpoint):
        server = await attempt()
        for mode in ("train", "eval"):
            step = server.rollout(TASKS[:2], mode=mode)
            played = [await server.play(mode=mode) for _ in range(4)]
            assert [claim["mode"] for claim, _ in played] == [mode] * 4
            assert {outcome["status"] for _, outcome in played} == {"ok"}
            await step
        assert server.runner.admission.free_slots == 3
    temperatures = [sampling.temperature for sampling in endpoint.sampling.values()]
    assert temperatures == [0.75] * 4 + [0.0] * 4
    left = [name for kind, name in endpoint.events if kind == "leave"]
    assert len(left) == len(set(left)) == 8


async def test_an_attempt_that_goes_on_asks_for_what_its_journal_lacks(tmp_path):
    journal = MemoryJournal()
    async with run_of(tmp_path) as (attempt, _):
        server = await attempt(journal)
        lost = server.rollout(TASKS[:1])
        claim, outcome = await server.play(0.5, task=MINE)
        open_then = await server.begin(task=MINE)
        server.runner.stop()  # a process of the run was lost
        await lost

        server = await attempt(journal)
        step = server.rollout(TASKS[:2], num_repeat=2)
        others = [(await server.play(0.25, task=OTHER))[0] for _ in range(2)]
        again, late = await server.end(claim), await server.end(open_then)
        await server.play(0.75, task=MINE)
        groups = await step
    assert (again.status_code, again.json()) == (200, outcome)
    assert late.status_code == 410
    assert {each["group_id"] for each in others} == {"000000-train-0001"}
    rewards = [sorted(t.reward for t in group.trajectories) for group in groups]
    assert rewards == [[0.5, 0.75], [0.25, 0.25]]


async def test_an_attempt_without_a_journal_has_none_of_the_clients_tasks(tmp_path):
    async with run_of(tmp_path) as (attempt, _):
        server = await attempt()
        lost = server.rollout(TASKS[:1])
        await server.begin(task=MINE)
        server.runner.stop()
        await lost

        server = await attempt()
        step = server.rollout(TASKS[:1])
        claims = [(await server.play(task=OTHER))[0] for _ in range(2)]
        await step
    assert {claim["group_id"] for claim in claims} == {"000000-train-0000"}
