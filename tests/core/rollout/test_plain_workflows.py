"""Workflows that block: a plain `execute` has a thread of its own, and says so where it must."""

import asyncio
import threading
import time

import httpx
import openai
import pytest
from loguru import logger

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.gateway.gateway import Gateway
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def gateway(request):
    gateway = Gateway(**getattr(request, "param", {}))
    yield gateway
    gateway.close()


async def episodes(workflow, gateway, num=1, **limits):
    endpoint = ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: request_id)
    runner = episode_runner(
        workflow, endpoint, TOKENIZER, gateway=gateway, max_env_worker=num, **limits
    )
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "q")], step=1, mode="train", num_repeat=num)
    )
    return group.trajectories


def blocking_answer(tuner, messages=HI):
    """The model's answer by a client that knows no event loop, over HTTP."""
    base_url, api_key = tuner.as_oai_baseurl_apikey()
    answer = httpx.post(
        f"{base_url}/chat/completions",
        json={"model": "m", "messages": messages},
        headers={"authorization": f"Bearer {api_key}"},
        timeout=20,
    )
    return answer.status_code, answer.json()


class Plain(Workflow):
    def execute(self, workflow_task, model_tuner):
        assert threading.current_thread() is not threading.main_thread()
        status, body = blocking_answer(model_tuner)
        client = model_tuner.as_raw_openai_sdk_client(sync=True)
        again = client.chat.completions.create(HI)
        said = [body["choices"][0]["message"]["content"], again.choices[0].message.content]
        return WorkflowOutput(reward=1.0, metadata={"said": said, "status": status})


async def test_plain_workflows_block_without_holding_each_other_up(gateway):
    trajectories = await episodes(Plain, gateway, num=40)
    for trajectory in trajectories:
        assert trajectory.status is EpisodeStatus.OK, trajectory.error
        name = trajectory.episode_id
        assert trajectory.output.metadata["said"] == [f"{name}/0000", f"{name}/0001"]


class Blocking(Workflow):
    async def execute(self, workflow_task, model_tuner):
        status, body = blocking_answer(model_tuner)
        said = body["choices"][0]["message"]["content"] if status == 200 else None
        await model_tuner.chat(HI)
        return WorkflowOutput(reward=1.0, metadata={"status": status, "said": said})


@pytest.fixture
def said():
    lines = []
    handle = logger.add(lines.append, format="{message}", level="WARNING")
    yield lines
    logger.remove(handle)


@pytest.mark.parametrize("gateway", [{"stall_s": 0.2}], indirect=True)
async def test_an_async_workflow_that_blocks_the_event_loop_gets_a_thread(gateway, said):
    trajectories = await episodes(Blocking, gateway, num=4)
    for trajectory in trajectories:
        assert trajectory.status is EpisodeStatus.OK, trajectory.error
        name = trajectory.episode_id
        assert trajectory.output.metadata == {"status": 200, "said": f"{name}/0000"}
        assert len(trajectory.turns) == 2
    [line] = [line for line in said if "in a thread of its own" in line]
    assert "Blocking.execute is async and waits without await" in line


class BlockingClient(Workflow):
    async def execute(self, workflow_task, model_tuner):
        client = model_tuner.as_raw_openai_sdk_client(sync=True)
        reply = client.chat.completions.create(model="m", messages=HI)
        return WorkflowOutput(reward=1.0, metadata={"said": reply.choices[0].message.content})


async def test_a_blocking_client_in_an_async_workflow_gets_a_thread(gateway, said):
    trajectories = await episodes(BlockingClient, gateway, num=3)
    for trajectory in trajectories:
        assert trajectory.status is EpisodeStatus.OK, trajectory.error
        assert trajectory.output.metadata == {"said": f"{trajectory.episode_id}/0000"}
    assert len([line for line in said if "in a thread of its own" in line]) == 1


class BlockingOnce(BlockingClient):
    num_attempts = 0

    async def execute(self, workflow_task, model_tuner):
        BlockingOnce.num_attempts += 1
        await super().execute(workflow_task, model_tuner)
        raise ValueError("bad")


async def test_a_workflow_that_also_fails_in_its_thread_is_not_run_a_third_time(gateway):
    [trajectory] = await episodes(BlockingOnce, gateway, max_failure_rate=1.0)
    assert trajectory.status is EpisodeStatus.AGENT_ERROR
    assert "ValueError: bad" in trajectory.error
    assert BlockingOnce.num_attempts == 2


class Sleeping(Workflow):
    ended = threading.Event()

    def execute(self, workflow_task, model_tuner):
        if workflow_task.rollout_index:
            return WorkflowOutput(reward=1.0)
        self.ended.wait(20)
        with pytest.raises(openai.AuthenticationError):
            model_tuner.as_raw_openai_sdk_client(sync=True).chat.completions.create(
                model="m", messages=HI
            )
        Sleeping.is_refused = True


async def test_a_thread_that_outlives_its_deadline_is_left_behind_and_refused(gateway):
    trajectories = await episodes(Sleeping, gateway, num=2, episode_timeout_s=0.2)
    assert [t.status for t in trajectories] == [EpisodeStatus.TIMEOUT, EpisodeStatus.OK]
    Sleeping.ended.set()
    from asyncio import sleep

    deadline = time.monotonic() + 10
    while not getattr(Sleeping, "is_refused", False) and time.monotonic() < deadline:
        await sleep(0.01)
    assert Sleeping.is_refused


class OwnLoop(Workflow):
    def execute(self, workflow_task, model_tuner):
        async def agent():
            reply = await model_tuner.chat(HI)
            await model_tuner.generate([1, 2])
            again = await model_tuner.as_langchain_model().ainvoke("hi")
            return [reply["content"], str(again.content)]

        return WorkflowOutput(reward=1.0, metadata={"said": asyncio.run(agent())})


async def test_a_workflow_with_a_loop_of_its_own_calls_the_model_on_the_episodes(gateway):
    threads = set()

    class Endpoint(ScriptedEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            threads.add(threading.current_thread())
            return await super().generate(prompt_ids, sampling, request_id)

    endpoint = Endpoint(TOKENIZER, lambda prompt, request_id: request_id)
    runner = episode_runner(OwnLoop, endpoint, TOKENIZER, gateway=gateway)
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "q")], step=1, mode="train", num_repeat=2)
    )
    for trajectory in group.trajectories:
        name = trajectory.episode_id
        assert trajectory.output.metadata["said"] == [f"{name}/0000", f"{name}/0002"]
    assert threads == {threading.current_thread()}


class WithoutMessages(Workflow):
    def execute(self, workflow_task, model_tuner):
        _, body = blocking_answer(model_tuner, messages=[])
        return WorkflowOutput(reward=1.0, metadata={"said": body["choices"]})


async def test_an_error_over_the_gateways_answer_says_what_the_gateway_answered(gateway):
    [trajectory] = await episodes(WithoutMessages, gateway, max_failure_rate=1.0)
    assert trajectory.status is EpisodeStatus.AGENT_ERROR
    assert trajectory.error.startswith("KeyError: 'choices'")
    assert "; the gateway answered 400, messages must be a list of at least" in trajectory.error
