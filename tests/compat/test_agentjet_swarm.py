"""AgentJet's `SwarmClient` at a server of `ajet serve`."""

import asyncio

import openai
import pytest
from ajet.tuner_lib.experimental.as_swarm_client import SwarmClient as EarlierPath
from ajet.tuner_lib.experimental.swarm_client import SwarmClient

from ajet import AgentJetJob, Task, WorkflowOutput
from ajet.serve.exchange.exchange import EpisodeExchange
from tests.serve.exchange.served import KEY, TASKS, served


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("AJET_SERVE_API_KEY", KEY)


def solve(swarm, task, reward):
    """What AgentJet's documentation has a client do, with the task at the beginning."""
    episode_uuid, api = swarm.begin_episode(discard_episode_timeout=60, task=task)
    client = openai.OpenAI(base_url=api.base_url, api_key=api.api_key)
    question = {"role": "user", "content": task.main_query}
    reply = client.chat.completions.create(model="any", messages=[question])
    assert swarm.can_continue_episode(episode_uuid)
    output = WorkflowOutput(reward=reward, metadata={"said": reply.choices[0].message.content})
    swarm.end_episode(task, episode_uuid, output)
    assert not swarm.can_continue_episode(episode_uuid)


async def test_a_clients_episodes_are_groups_of_its_tasks():
    tasks = [Task("a", "my a"), Task("b", "my b")]
    async with served(exchange=EpisodeExchange(tasks="client")) as server:
        step = server.rollout(TASKS[:2])

        def program():
            swarm = SwarmClient(server.url)
            assert swarm.get_engine_status()[0] == "ENGINE.ROLLING"
            swarm.auto_sync_train_config_and_start_engine(None)
            episode_uuid, _ = swarm.begin_episode(task=tasks[0])
            with pytest.raises(ValueError, match="began with task 'a', not 'b'"):
                swarm.end_episode(tasks[1], episode_uuid, WorkflowOutput(reward=1.0))
            swarm.end_episode(tasks[0], episode_uuid, WorkflowOutput(reward=0.0))
            solve(swarm, tasks[0], 1.0)
            solve(swarm, tasks[1], 0.5)
            aborted, _ = swarm.begin_episode(task=tasks[1])
            swarm.abort_episode(aborted)

        await asyncio.to_thread(program)
        groups = await step
    rewards = [[t.reward for t in group.trajectories] for group in groups]
    assert rewards == [[0.0, 1.0], [0.5, None]]
    assert [group.trajectories[0].workflow_task.task_id for group in groups] == ["a", "b"]


async def test_what_a_server_with_a_config_does_not_do_is_refused_in_one_line():
    job = AgentJetJob()
    async with served(exchange=EpisodeExchange(tasks="client")) as server:

        def program():
            with_config, nobody = SwarmClient(server.url), EarlierPath("http://127.0.0.1:9")
            assert nobody.get_engine_status()[0] == "ENGINE.CANNOT_CONNECT"
            for swarm, reason in ((with_config, "has its own config"), (nobody, "no server is")):
                with pytest.raises(RuntimeError, match="start_engine: call sync_train_config"):
                    swarm.start_engine()
                swarm.sync_train_config(job)
                for call in (swarm.start_engine, swarm.stop_engine):
                    with pytest.raises(RuntimeError, match=reason):
                        call()
            with pytest.raises(RuntimeError, match="no server is reached"):
                nobody.auto_sync_train_config_and_start_engine(job)

        await asyncio.to_thread(program)
    with pytest.raises(TypeError, match="give task=…"):
        SwarmClient(server.url).begin_episode()
