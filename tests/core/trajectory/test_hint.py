"""A hint is in the prompt that a teacher is shown, and in nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.errors import DataError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.hint import HintedSample, hint_for, with_hint
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.turn import Turn, TurnNotes
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TEMPLATE = ChatTemplate(TOKENIZER)
SYSTEM = {"role": "system", "content": "You are an agent."}


def user(text):
    return {"role": "user", "content": text}


def test_a_hint_has_the_fields_of_the_tasks_row():
    task = Task("t", "6*7?", metadata={"answer": 42, "by": "{answer}"})
    assert hint_for("It is {answer}, by {by}; {main_query} {{}}", task) == (
        "It is 42, by {answer}; 6*7? {{}}"
    )
    with pytest.raises(DataError, match=r"task t: its row has no 'why', named in ajet\.dist"):
        hint_for("{answer} {why}", task)


def test_it_is_at_the_end_of_the_first_user_message():
    chat = [SYSTEM, user("6*7?"), {"role": "assistant", "content": "41"}, user("sure?")]
    assert with_hint(chat, "42") == [SYSTEM, user("6*7?\n\n42"), *chat[2:]]
    parts = [{"type": "text", "text": "6*7?"}]
    added = {"type": "text", "text": "\n\n42"}
    assert with_hint([user(parts)], "42") == [user([*parts, added])]
    assert chat[1] == user("6*7?") and len(parts) == 1
    with pytest.raises(DataError, match="no user message"):
        with_hint([SYSTEM], "42")


class TwoChats(Workflow):
    async def execute(self, workflow_task, model_tuner):
        chat = [SYSTEM, user(workflow_task.task.main_query)]
        reply = await model_tuner.chat(chat)
        await model_tuner.chat([*chat, reply, user("sure?")])
        await model_tuner.chat([user("another chat")])
        return WorkflowOutput(reward=1.0)


async def group_of(mode="train", workflow=TwoChats, **limits):
    scripted = ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: "41")
    runner = episode_runner(workflow, scripted, TOKENIZER, **limits)
    task = Task("t", "6*7?", metadata={"answer": 42})
    [group] = await runner.rollout(RolloutRequest([task], step=1, mode=mode, num_repeat=1))
    return group


async def test_each_conversation_of_an_episode_has_a_second_beginning_with_the_hint():
    group, plain = await group_of(hint="It is {answer}."), await group_of()
    [episode], [without] = group.trajectories, plain.trajectories
    assert [turn.completion for turn in episode.turns] == [t.completion for t in without.turns]
    chats = ([SYSTEM, user("6*7?\n\nIt is 42.")], None, [user("another chat\n\nIt is 42.")])
    expected = [[] if chat is None else TEMPLATE.prompt_ids(chat) for chat in chats]
    assert [turn.notes.hinted_prompt for turn in episode.turns] == expected
    assert not any(turn.notes.hinted_prompt for turn in without.turns)


async def test_a_validation_is_played_without_hints():
    group = await group_of("eval", hint="It is {answer}.")
    assert not any(turn.notes.hinted_prompt for turn in group.trajectories[0].turns)


async def test_the_teachers_sample_has_the_replies_after_the_hint_at_the_same_ids():
    group = await group_of(hint="It is {answer}.")
    [episode] = group.trajectories
    zeros = {"000001-train-0000-00": [np.zeros(3, np.float32)] * 3}
    first, second = to_samples([group], zeros)
    for sample, root in ((first, 0), (second, 2)):
        hinted = HintedSample(sample, episode.turns).sample
        prompt = episode.turns[root].completion.prompt_ids
        with_it = episode.turns[root].notes.hinted_prompt
        assert hinted.token_ids.tolist() == [*with_it, *sample.token_ids[len(prompt) :]]
        assert hinted.token_ids[hinted.loss_mask].tolist() == (
            sample.token_ids[sample.loss_mask].tolist()
        )


def by_hand():
    """A prompt of two tokens, or of four with the hint; then two sampled, one of a tool, one."""
    mask = np.array([0, 0, 1, 1, 0, 1], bool)
    numbers = np.where(mask, -1.0, 0.0).astype(np.float32)
    ids = np.array([1, 2, 5, 6, 3, 7])
    sample = TrainingSample("e", "g", ids, mask, numbers, numbers, (), 0, 0)
    reply = {"role": "assistant", "content": ""}
    turns = [
        Turn(Completion((1, 2), (5, 6), (-1.0,) * 2, "stop", 0), [], None, reply),
        Turn(Completion((1, 2, 5, 6, 3), (7,), (-1.0,), "stop", 0), [], None, reply),
    ]
    return sample, [replace(turns[0], notes=TurnNotes(hinted_prompt=[1, 8, 9, 2])), turns[1]]


def test_ids_and_scores_by_hand():
    hinted = HintedSample(*by_hand())
    assert hinted.sample.token_ids.tolist() == [1, 8, 9, 2, 5, 6, 3, 7]
    assert hinted.sample.loss_mask.tolist() == [0, 0, 0, 0, 1, 1, 0, 1]
    scores = np.array([0, 0, 0, 0, -0.5, -0.25, 0, -2], np.float32)
    assert hinted.scores(scores).tolist() == [0, 0, -0.5, -0.25, 0, -2]


def test_a_conversation_that_began_with_ids_is_one_line():
    sample, turns = by_hand()
    with pytest.raises(DataError, match=r"episode e: .* this conversation began with token ids"):
        HintedSample(sample, [replace(turns[0], notes=TurnNotes()), turns[1]])
