"""Agents that misbehave beside a good one: each ends as a status, and the other goes on."""

import asyncio

import httpx
import pytest

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.gateway.gateway import Gateway
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
HI = [{"role": "user", "content": "hi"}]


async def never_calls_the_model(tuner):
    return WorkflowOutput(reward=0.0)


async def calls_a_thousand_times(tuner):
    for _ in range(1000):
        await tuner.chat(HI)


async def goes_on_calling_whatever_it_is_told(tuner):
    base_url, api_key = tuner.as_oai_baseurl_apikey()
    told = []
    async with httpx.AsyncClient(verify=False, timeout=20) as client:
        for _ in range(100):
            answer = await client.post(
                f"{base_url}/chat/completions",
                json={"model": "m", "messages": HI},
                headers={"authorization": f"Bearer {api_key}"},
            )
            told.append(answer.status_code)
    return WorkflowOutput(reward=0.0, metadata={"told": told})


async def calls_after_its_end(tuner):
    async def later():
        await asyncio.sleep(0.05)
        await tuner.chat(HI)

    calls_after_its_end.left = asyncio.create_task(later())
    return WorkflowOutput(reward=0.0)


class Agents(Workflow):
    """Member 0 is good, member 1 is `bad`."""

    async def execute(self, workflow_task, model_tuner):
        if workflow_task.rollout_index:
            return await type(self).bad(model_tuner)
        reply = await model_tuner.chat(HI)
        return WorkflowOutput(reward=1.0, metadata={"said": reply["content"]})


@pytest.mark.parametrize(
    ("bad", "status", "num_turns", "error"),
    [
        (never_calls_the_model, EpisodeStatus.OK, 0, None),
        (calls_a_thousand_times, EpisodeStatus.TRUNCATED, 7, "used its 7 calls"),
        (goes_on_calling_whatever_it_is_told, EpisodeStatus.TRUNCATED, 7, "its 7 calls"),
        (calls_after_its_end, EpisodeStatus.OK, 0, None),
    ],
)
async def test_a_bad_agent_ends_as_a_status_and_the_other_goes_on(bad, status, num_turns, error):
    gateway = Gateway()
    runner = episode_runner(
        type("Agents", (Agents,), {"bad": staticmethod(bad)}),
        ScriptedEndpoint(TOKENIZER, lambda *_: "fine"),
        TOKENIZER,
        gateway=gateway,
        max_steps=7,
    )
    try:
        [group] = await runner.rollout(
            RolloutRequest([Task("t", "q")], step=1, mode="train", num_repeat=2)
        )
    finally:
        gateway.close()
    good, ended = group.trajectories
    assert (good.status, good.output.metadata["said"]) == (EpisodeStatus.OK, "fine")
    assert (ended.status, len(ended.turns)) == (status, num_turns)
    assert (ended.error is None) if error is None else error in ended.error
    if bad is goes_on_calling_whatever_it_is_told:
        assert ended.output.metadata["told"] == [200] * 7 + [400] * 93
    if bad is calls_after_its_end:
        with pytest.raises(Exception, match="is over"):
            await calls_after_its_end.left
