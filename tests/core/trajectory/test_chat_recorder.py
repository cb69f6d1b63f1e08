"""Episodes of a model that answers chat messages and shows no token ids."""

import pytest

from ajet.core import seeding
from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import ChatCompletion, ContextOverflow, SamplingParams
from ajet.core.rollout.episode import EpisodeParts, EpisodeRunner
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput
from ajet.core.trajectory.base_recorder import SamplingOverrides
from ajet.core.trajectory.chat_recorder import ChatRecorder
from ajet.core.trajectory.limits import (
    EndpointFault,
    EpisodeClosed,
    EpisodeLimits,
    EpisodeTruncated,
    Limit,
    Truncation,
)
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow

HI = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def call(arguments, call_id="x"):
    function = {"name": "add", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


class ChatEndpointFake:
    """Answers with `message`, or raises it; keeps what it was asked."""

    def __init__(self, message):
        self.message = message
        self.asked = []

    async def chat(self, messages, tools, sampling, tool_choice, chat_template_kwargs=None):
        self.asked.append((messages, tools, sampling, tool_choice))
        if isinstance(self.message, Exception):
            raise self.message
        return ChatCompletion(self.message, "stop", 11, 7)


def recorder(message, **limits):
    endpoint = ChatEndpointFake(message)
    return endpoint, ChatRecorder(
        endpoint,
        limits=EpisodeLimits(**limits),
        sampling=SamplingParams(temperature=0.7),
        episode_id="e",
        seed_path=(7, "rollout", 0),
    )


async def test_a_turn_has_words_and_counts_but_no_tokens_to_train_on():
    _, episode = recorder({"role": "assistant", "content": "hello"})
    turn = await episode.chat(HI)
    assert turn.reply == {"role": "assistant", "content": "hello"}
    assert turn.messages == [{"role": "user", "content": "hi"}]
    assert turn.completion.token_ids == () and not turn.trainable
    assert (turn.num_prompt_tokens, turn.num_sampled_tokens) == (11, 7)
    assert episode.turns == (turn,)


async def test_an_agents_settings_and_the_seed_of_the_call_are_sent():
    endpoint, episode = recorder({"content": "a"}, max_response_length_in_one_turn=50)
    await episode.chat(HI, overrides=SamplingOverrides(temperature=0.1, max_tokens=400))
    await episode.chat(HI, [ADD], tool_choice="add")
    (_, _, first, _), (_, tools, second, choice) = endpoint.asked
    assert (first.temperature, first.max_tokens) == (0.1, 50)
    assert (second.temperature, second.seed) == (0.7, seeding.derive(7, "rollout", 0, 1))
    assert tools == [ADD] and choice == "add"


async def test_messages_are_sent_as_an_api_takes_them():
    endpoint, episode = recorder({"content": "a"})
    silent = {"role": "assistant", "content": [{"text": None}], "tool_calls": [call({"a": 1})]}
    await episode.chat([*HI, silent])
    sent = endpoint.asked[0][0][1]
    assert sent["content"] == ""
    assert sent["tool_calls"] == [call('{"a": 1}')]


async def test_calls_are_checked_and_what_is_no_json_object_is_text():
    calls = [call('{"a": 1}'), call("[1]"), call('{"a": ')]
    _, episode = recorder({"content": "so", "tool_calls": calls})
    reply = (await episode.chat(HI, [ADD])).reply
    assert reply["tool_calls"] == [call('{"a": 1}')]
    assert reply["content"].splitlines()[0] == "so"
    assert '"[1]"' in reply["content"] and len(reply["content"].splitlines()) == 3


@pytest.mark.parametrize("nothing", ["", None, " ", "null"])
async def test_a_call_without_arguments_is_a_call(nothing):
    _, episode = recorder({"content": "", "tool_calls": [call(nothing)]})
    [made] = (await episode.chat(HI, [ADD])).reply["tool_calls"]
    assert made["function"]["arguments"] == "{}"


async def test_calls_are_limited_and_refused_when_the_episode_is_over():
    _, episode = recorder({"content": "a"}, max_steps=1)
    await episode.chat(HI)
    with pytest.raises(EpisodeTruncated):
        await episode.chat(HI)
    _, closed = recorder({"content": "a"})
    closed.close()
    with pytest.raises(EpisodeClosed):
        await closed.chat(HI)


async def test_the_endpoints_failures_are_the_episodes():
    _, full = recorder(ContextOverflow("too long"))
    with pytest.raises(EpisodeTruncated):
        await full.chat(HI)
    assert full.truncation == Truncation(Limit.ENGINE, "too long")
    _, down = recorder(RuntimeError("503"))
    with pytest.raises(EndpointFault):
        await down.chat(HI)
    assert down.endpoint_fault == "RuntimeError: 503"


async def test_token_ids_cannot_be_given_to_it():
    _, episode = recorder({"content": "a"})
    with pytest.raises(ConfigError, match="takes token ids"):
        await ModelTuner(episode).generate([1, 2])


async def test_it_serves_as_an_agentscope_model():
    _, episode = recorder({"content": None, "tool_calls": [call('{"a": 1}')]})
    response = await ModelTuner(episode)(HI, [ADD])
    assert [block["type"] for block in response.content] == ["tool_use"]
    assert response.content[0]["input"] == {"a": 1}
    assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7)


class Says(Workflow):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat(HI)
        return WorkflowOutput(reward=1.0, is_success=True)


async def test_an_episode_is_evaluated_and_refused_in_training():
    runner = GroupRunner.from_episode_runner(
        EpisodeRunner(
            endpoint=ChatEndpointFake({"content": "a"}),
            parts_for=lambda mode: EpisodeParts(lambda task: Says(), None, SamplingParams()),
            limits=RolloutLimits(),
            run_seed=0,
        )
    )
    tasks = [Task("t", "?")]
    (group,) = await runner.rollout(RolloutRequest(tasks, step=0, mode="eval", num_repeat=2))
    assert [t.status for t in group.trajectories] == [EpisodeStatus.OK] * 2
    with pytest.raises(ConfigError, match="cannot train"):
        await runner.rollout(RolloutRequest(tasks, step=0, mode="train", num_repeat=2))


async def test_a_call_that_is_no_json_is_named_to_the_agent_and_not_sent_back():
    endpoint, episode = recorder({"role": "assistant", "tool_calls": [call("{oops")]})
    tuner = ModelTuner(episode)
    reply = await tuner.chat(HI, [ADD])
    [malformed] = reply["malformed_tool_calls"]
    assert malformed == reply["content"] and "{oops" in malformed
    await tuner.chat([*HI, reply], [ADD])
    assert "malformed_tool_calls" not in endpoint.asked[-1][0][-1]


async def test_the_token_level_methods_say_that_there_are_no_tokens():
    tuner = ModelTuner(recorder({"content": "hello"})[1])
    for use in (lambda: tuner.encode("a"), lambda: tuner.decode([1]), lambda: tuner.prompt_ids(HI)):
        with pytest.raises(ConfigError, match="a chat endpoint shows no token ids"):
            use()
