"""Compacted conversations: what the model is shown, what is recorded and what is trained."""

import json

import pytest

from ajet import ModelTuner, Task, Workflow, WorkflowOutput
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.chat_recorder import ChatRecorder
from ajet.core.trajectory.limits import EpisodeLimits
from ajet.core.trajectory.samples import timelines
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.workflow.compaction import Conversations
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
REQUEST = "Sum up."
LIMIT = 700
"""Tokens of the context; a letter of these texts is about a token."""


def config_in(folder, **compaction):
    ajet = {
        "model": {"path": "m"},
        "data": {"max_prompt_length": LIMIT, "max_response_length": LIMIT},
        "rollout": {
            "max_model_len": LIMIT,
            "max_response_length_in_one_turn": 60,
            "compaction": {
                "enable": True,
                "prompt": REQUEST,
                "max_summary_tokens": 40,
                **compaction,
            },
        },
    }
    (folder / "run.yaml").write_text(json.dumps({"ajet": ajet}))
    return load_config(folder / "run.yaml")


def walker(observations, shown):
    """An agent that is told each observation in turn; `shown` gets what each call was shown."""

    class Walker(Workflow):
        async def execute(self, workflow_task, model_tuner: ModelTuner):
            compaction = model_tuner.compaction()
            messages = [{"role": "system", "content": "You walk."}]
            for number, text in enumerate(observations):
                messages.append({"role": "user", "content": text})
                now = await compaction.shown(messages)
                shown.append(now)
                messages.append(await model_tuner.chat(now))
                model_tuner.credit_turn(0.0, str(number))
            return WorkflowOutput(reward=1.0, metadata={"num": len(messages)})

    return Walker


async def play(workflow, endpoint, config, num=1, **limits):
    """Runs a group of `num` episodes, and returns the first."""
    limits = {
        "max_model_len": LIMIT,
        "max_prompt_length": LIMIT,
        "max_response_length": LIMIT,
        "max_response_length_in_one_turn": 60,
        **limits,
    }
    runner = episode_runner(workflow, endpoint, TOKENIZER, None, config=config, **limits)
    request = RolloutRequest([Task("t0", "walk")], step=1, mode="train", num_repeat=num)
    [group] = await runner.rollout(request)
    return group.trajectories[0]


async def run(config, observations, reply, num=1, **limits):
    """Returns the episode of one walker, and what its calls were shown."""
    shown = []
    endpoint = ScriptedEndpoint(TOKENIZER, reply)
    limits = {"check_drift": "all", **limits}
    workflow = walker(observations, shown)
    return await play(workflow, endpoint, config, num, **limits), shown


def says(prompt, request_id):
    """Sums up when it is asked to, and walks on otherwise."""
    return "The code is 7." if prompt.rstrip().endswith("assistant") and asked(prompt) else "on"


def asked(prompt):
    return REQUEST in prompt.rpartition("user\n")[2]


def texts(messages):
    return [(each["role"], each["content"][:14]) for each in messages]


ROOMS = [f"Room {number}. {'x' * 95}" for number in range(6)]


async def test_the_model_goes_on_with_its_first_prompt_its_summary_and_the_newest_message(tmp_path):
    episode, shown = await run(config_in(tmp_path), ROOMS, says)
    assert episode.status is EpisodeStatus.OK
    before = [len(messages) for messages in shown]
    assert before == [2, 4, 6, 4, 6, 4]
    start = [("system", "You walk."), ("user", f"Room 0. {'x' * 6}")]
    summary = ("assistant", "The code is 7.")
    assert texts(shown[3]) == [*start, summary, ("user", f"Room 3. {'x' * 6}")]
    assert texts(shown[5]) == [*start, summary, ("user", f"Room 5. {'x' * 6}")]
    assert episode.output.metadata["num"] == 13  # the agent's own list has everything


async def test_summaries_are_trained_once_on_the_branch_that_they_end(tmp_path):
    episode, _ = await run(config_in(tmp_path), ROOMS, says)
    is_summary = [turn.notes.is_summary for turn in episode.turns]
    assert is_summary == [False, False, False, True, False, False, True, False]
    assert all(turn.trainable for turn in episode.turns)
    paths = timelines(episode.turns)
    assert [[span.turn_index for span in path.spans] for path in paths] == [
        [0, 1, 2, 3],
        [4, 5, 6],
        [7],
    ]
    sampled = sum(len(turn.completion.token_ids) for turn in episode.turns)
    assert sum(int(path.loss_mask.sum()) for path in paths) == sampled


async def test_the_summary_has_its_sampled_ids_in_the_new_branch(tmp_path):
    """``theory`` is sampled letter by letter; encoded again it would begin with a merged token."""

    class LetterByLetter(ScriptedEndpoint):
        async def generate(self, prompt_ids, sampling, request_id):
            from dataclasses import replace

            completion = await super().generate(prompt_ids, sampling, request_id)
            if not asked(self.tokenizer.decode(prompt_ids)):
                return completion
            ids = (*b"theory", self.tokenizer.eos_token_id)
            return replace(completion, token_ids=ids, logprobs=(-0.5,) * len(ids))

    endpoint = LetterByLetter(TOKENIZER, says)
    episode = await play(walker(ROOMS, []), endpoint, config_in(tmp_path))
    turn = episode.turns[4]
    ids = list(turn.completion.prompt_ids)
    assert TOKENIZER.encode("theory", add_special_tokens=False) != list(b"theory")
    letters = [*b"theory", TOKENIZER.eos_token_id]
    assert letters in [ids[at : at + len(letters)] for at in range(len(ids))]
    assert turn.notes.reason == "the conversation was compacted"
    assert not turn.notes.continues


async def test_a_teacher_is_shown_its_hint_where_the_conversation_begins_and_after_each_summary(
    tmp_path,
):
    episode, _ = await run(config_in(tmp_path), ROOMS, says, hint="The code is 7, surely.")
    is_hinted = [bool(turn.notes.hinted_prompt) for turn in episode.turns]
    assert is_hinted == [True, False, False, False, True, False, False, True]
    text = TOKENIZER.decode(episode.turns[4].notes.hinted_prompt)
    assert "surely" in text and "The code is 7.<|im_end|>" in text


async def test_no_state_and_no_reward_is_credited_to_a_summary(tmp_path):
    episode, _ = await run(config_in(tmp_path), ROOMS, says)
    keys = [turn.state_key for turn in episode.turns]
    assert keys == ["0", "1", "2", None, "3", "4", None, "5"]


async def test_without_enable_a_long_conversation_is_truncated(tmp_path):
    config = config_in(tmp_path, enable=False)
    episode, _ = await run(config, ROOMS, says)
    assert episode.status is EpisodeStatus.TRUNCATED
    assert len(episode.turns) == 5


async def test_at_compacts_earlier(tmp_path):
    _, by_share = await run(config_in(tmp_path, at=0.3), ROOMS, says)
    _, by_tokens = await run(config_in(tmp_path, at=210), ROOMS, says)
    assert [len(messages) for messages in by_share] == [2, 4, 4, 4, 4, 4]
    assert by_share == by_tokens


async def test_keep_last_messages_stay_word_for_word_beside_the_summary(tmp_path):
    rooms = [f"Room {number}. {'x' * 20}" for number in range(7)]
    _, shown = await run(config_in(tmp_path, at=300, keep_last_messages=3), rooms, says)
    compacted = next(each for each in shown if ("assistant", "The code is 7.") in texts(each))
    roles = [message["role"] for message in compacted]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    last = int(compacted[-1]["content"].split()[1].rstrip("."))
    assert compacted[3]["content"] == rooms[last - 1]
    assert compacted[4]["content"] == "on"


async def test_a_summary_is_cut_at_its_limit_and_the_episode_goes_on(tmp_path):
    def chatters(prompt, request_id):
        return "word " * 100 if asked(prompt) else "on"

    episode, _ = await run(config_in(tmp_path), ROOMS, chatters)
    summaries = [turn for turn in episode.turns if turn.notes.is_summary]
    assert episode.status is EpisodeStatus.OK
    assert [len(turn.completion.token_ids) for turn in summaries] == [40, 40]
    assert summaries[0].completion.finish_reason == "length"


async def test_an_empty_summary_leaves_the_first_prompt_and_the_newest_message(tmp_path):
    episode, shown = await run(
        config_in(tmp_path), ROOMS, lambda prompt, _id: "" if asked(prompt) else "on"
    )
    assert episode.status is EpisodeStatus.OK
    assert texts(shown[3])[2] == ("assistant", "")


async def test_a_message_that_no_summary_makes_room_for_truncates_without_a_call(tmp_path):
    rooms = [*ROOMS[:2], "y" * 600]
    episode, _ = await run(config_in(tmp_path), rooms, says)
    assert episode.status is EpisodeStatus.TRUNCATED
    assert [turn.notes.is_summary for turn in episode.turns] == [False, False]


async def test_the_last_call_is_never_spent_on_a_summary(tmp_path):
    episode, shown = await run(config_in(tmp_path), ROOMS[:4], says, max_steps=4)
    assert episode.status is EpisodeStatus.OK
    assert [turn.notes.is_summary for turn in episode.turns] == [False] * 4
    assert len(shown[3]) == 8


async def summaries_of(workflow, folder):
    """Runs one episode of a workflow, and returns its turns that are summaries."""
    episode = await play(workflow, ScriptedEndpoint(TOKENIZER, says), config_in(folder))
    return [turn for turn in episode.turns if turn.notes.is_summary]


async def test_agents_of_one_episode_compact_each_their_own_conversation(tmp_path):
    class Two(Workflow):
        trainable_targets = ("left",)

        async def execute(self, workflow_task, model_tuner):
            from ajet.core.workflow.tuner import ModelTuner

            for name in ("left", "right"):
                own = ModelTuner(model_tuner._recorder, agent_name=name, config=model_tuner.config)
                compaction, messages = own.compaction(), []
                for text in ROOMS[:4]:
                    messages.append({"role": "user", "content": f"{name}: {text}"})
                    messages.append(await own.chat(await compaction.shown(messages)))
            return WorkflowOutput(reward=1.0)

    summaries = await summaries_of(Two, tmp_path)
    assert [(turn.agent_name, turn.trainable) for turn in summaries] == [
        ("left", True),
        ("right", False),
    ]


def test_a_context_without_room_for_a_summary_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="more than a reply may have"):
        config_in(tmp_path, max_summary_tokens=61)
    rollout = {"max_model_len": 100, "max_response_length_in_one_turn": 60}
    rollout["compaction"] = {"enable": True, "max_summary_tokens": 40}
    (tmp_path / "run.yaml").write_text(
        json.dumps({"ajet": {"model": {"path": "m"}, "rollout": rollout}})
    )
    with pytest.raises(ConfigError, match="leave no prompt in a context of 100"):
        load_config(tmp_path / "run.yaml")


def test_a_check_that_takes_summaries_for_malformed_replies_is_refused(tmp_path):
    rollout = {"compaction": {"enable": True}, "compute_madness_checklist": ["format_type_1"]}
    (tmp_path / "run.yaml").write_text(
        json.dumps({"ajet": {"model": {"path": "m"}, "rollout": rollout}})
    )
    with pytest.raises(ConfigError, match="format_type_1 takes each summary as malformed"):
        load_config(tmp_path / "run.yaml")


def test_a_model_that_shows_no_token_ids_is_refused():
    recorder = ChatRecorder(
        None, limits=EpisodeLimits(), sampling=SamplingParams(), episode_id="e", seed_path=(0,)
    )
    with pytest.raises(ConfigError, match=r"write ajet\.rollout\.compaction\.enable=false"):
        recorder.num_prompt_tokens([])


async def test_conversations_of_a_framework_are_told_apart_and_one_that_it_changed_begins_anew(
    tmp_path,
):
    called = []

    class Framework(Workflow):
        async def execute(self, workflow_task, model_tuner):
            settings = model_tuner.config.ajet.rollout.compaction
            conversations = Conversations(model_tuner._recorder, settings)
            said = {"left": [], "right": []}
            for room in ROOMS[:4]:
                for name, messages in said.items():
                    messages.append({"role": "user", "content": f"{name}: {room}"})
                    agent = {"agent_name": name, "target_tag": name}
                    shown = await conversations.shown(messages, **agent)
                    called.append((name, len(shown)))
                    messages.append(await model_tuner.chat(shown, agent_name=name))
            changed = [*said["left"][2:], {"role": "user", "content": "And?"}]
            called.append(("changed", len(await conversations.shown(changed, **agent))))
            return WorkflowOutput(reward=1.0)

    summaries = await summaries_of(Framework, tmp_path)
    assert [turn.agent_name for turn in summaries] == ["left", "right"]
    assert called == [
        *[(name, number) for number in (1, 3, 5) for name in ("left", "right")],
        ("left", 3),
        ("right", 3),
        ("changed", 7),
    ]
