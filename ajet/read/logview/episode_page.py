"""Data for one episode, and for episodes side by side: the members of a group, or two.

A turn holds only what its base turn does not have (core/record/episode_schema.py): the new messages
and the new prompt ids. The page puts the whole prompt together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from math import exp
from statistics import fmean
from typing import Any

import numpy as np

from ajet.core.task.chat_messages import shown_text
from ajet.core.task.task import ANSWER_FIELDS
from ajet.read.episode_reader import EpisodeReader, EpisodeRecord, TurnRecord
from ajet.read.logview.episode_index import Row
from ajet.read.logview.token_text import TokenText, page_ids

MAX_SIDE_BY_SIDE = 32
MAX_SHARED_TOKENS = 60
MAX_OTHERS = 8


def episode_data(episode: EpisodeRecord, members: Sequence[Row], text: TokenText) -> dict[str, Any]:
    names = ("reward_breakdown", "agent_rewards", "timings", "metadata", "log_metrics", "seed")
    task = episode.task
    return {
        **asdict(episode.row),
        **{name: getattr(episode, name) for name in names},
        "ended_as": episode.outcome,
        "calls": [asdict(call) for call in episode.calls],
        "task": None if task is None else {"task_id": task.task_id, "metadata": task.metadata},
        "expected": _expected(episode),
        "final_answer": _final_answer(episode),
        "members": [
            {
                name: member[name]
                for name in ("episode_id", "reward", "advantage", "status", "rollout_index")
            }
            for member in members
        ],
        "turns": [turn_data(turn, episode.turns, text) for turn in episode.turns],
    }


def turn_data(turn: TurnRecord, turns: Sequence[TurnRecord], text: TokenText) -> dict[str, Any]:
    """Returns one call: the new part of its prompt, and the sampled tokens with their numbers."""
    new_ids = turn.prompt_ids[turn.prompt_kept :].tolist()
    names = ("turn_index", "agent_name", "target_tag", "trainable", "finish_reason")
    return {
        **{name: getattr(turn, name) for name in names},
        "policy_version": turn.policy_version,
        "reward": turn.reward,
        "state_key": turn.state_key,
        "seconds": turn.ended_s - turn.started_s,
        "started_s": turn.started_s,
        "ended_s": turn.ended_s,
        "base_turn": turn.base_turn,
        "prompt_kept": turn.prompt_kept,
        "tools": turn.tools,
        "messages": turn.messages,
        "new_messages": new_messages(turn, turns),
        "reply": turn.reply,
        "notes": turn.notes.as_json(),
        "prompt": {"ids": page_ids(new_ids), "texts": text(new_ids)},
        "sampled": _sampled(turn, text),
    }


def new_messages(turn: TurnRecord, turns: Sequence[TurnRecord]) -> list[dict[str, Any]]:
    """Returns the messages that the base turn did not have, without the base turn's reply, which
    a framework may send back in another form with the same content."""
    if turn.base_turn is None:
        return turn.messages
    base = turns[turn.base_turn]
    kept = 0
    for mine, earlier in zip(turn.messages, base.messages, strict=False):
        if mine != earlier:
            break
        kept += 1
    rest = turn.messages[kept:]
    is_reply = kept == len(base.messages) and rest and _content(rest[0]) == _content(base.reply)
    return rest[1:] if is_reply else rest


def group_data(reader: EpisodeReader, members: Sequence[Row], text: TokenText) -> dict[str, Any]:
    """Returns the members side by side, and where their sampled tokens first differ."""
    lanes = members[:MAX_SIDE_BY_SIDE]
    episodes = [reader.episode(member["episode_id"]) for member in lanes]
    return {
        "members": [
            {**row, "final_answer": _final_answer(episode), "turns": _lane(episode, text)}
            for row, episode in zip(lanes, episodes, strict=True)
        ],
        "num_members": len(members),
        "expected": _expected(episodes[0]) if episodes else None,
        "parting": parting(episodes, text),
    }


def pair_data(reader: EpisodeReader, rows: Sequence[Row], text: TokenText) -> dict[str, Any]:
    """Returns two episodes side by side, as members 0 and 1, and where they first differ."""
    episodes = [reader.episode(row["episode_id"]) for row in rows]
    return {
        "sides": [
            {
                **row,
                "final_answer": _final_answer(episode),
                "turns": _lane(episode, text),
                "asked": [
                    {"role": str(message.get("role")), "text": str(_content(message))}
                    for message in (episode.turns[0].messages if episode.turns else [])
                ],
            }
            for row, episode in zip(rows, episodes, strict=True)
        ],
        "expected": _expected(episodes[0]),
        "parting": parting(episodes, text, [0, 1]),
    }


def parting(
    episodes: Sequence[EpisodeRecord], text: TokenText, numbers: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """Returns the first call and token at which the members differ: the tokens before it that they
    share in this call, and each continuation with its members and their mean reward, the most
    frequent one first. None if fewer than two members called the model, or all are alike to the
    end. `numbers` replace the members' numbers in their group."""
    member_numbers = numbers or [episode.row.rollout_index for episode in episodes]
    number_of = {e.row.episode_id: name for e, name in zip(episodes, member_numbers, strict=True)}
    with_turns = [episode for episode in episodes if episode.turns]
    if len(with_turns) < 2:
        return None
    for number, turns in enumerate(zip_longest(*(episode.turns for episode in with_turns))):
        prompts = [turn.prompt_ids.tolist() if turn else [] for turn in turns]
        sampled = [turn.token_ids.tolist() if turn else [] for turn in turns]
        prompt_index = _first_difference(prompts)
        index = _first_difference(sampled)
        # After different prompts the replies cannot be compared: the environments answered
        # differently, or a member has no such call.
        if prompt_index is not None:
            return {"turn": number, "token": prompt_index, "of": "prompt", "shared": [], "ways": []}
        if index is not None:
            ways: dict[int | None, list[EpisodeRecord]] = {}
            # None stands for a reply that ends before this token.
            for episode, ids in zip(with_turns, sampled, strict=True):
                ways.setdefault(ids[index] if index < len(ids) else None, []).append(episode)
            # The replies are equal up to the index, so any of them gives the shared tokens.
            begin = max(0, index - MAX_SHARED_TOKENS)
            return {
                "turn": number,
                "token": index,
                "of": "reply",
                "shared": text(sampled[0][begin:index]),
                "ways": sorted(
                    (_way(token, members, number_of, text) for token, members in ways.items()),
                    key=lambda way: -len(way["members"]),
                ),
            }
    return None


def same_prefix(
    reader: EpisodeReader,
    episode: EpisodeRecord,
    rows: Sequence[Row],
    turn: int,
    token: int,
    text: TokenText,
) -> dict[str, Any]:
    """Returns for each step and mode of `rows`, episodes of the same task, how many reached the
    text before the token, how many sampled it there and with which mean probability; and the tokens
    that were sampled there, the most frequent first. An episode reaches the same text if the same
    call has the same prompt ids and the same ids before the token. Log-probabilities are the
    recorded ones; for tokens that were not sampled, use `ajet score`."""
    mine = episode.turns[turn]
    prompt, before, chosen = mine.prompt_ids, mine.token_ids[:token], int(mine.token_ids[token])
    steps: dict[tuple[int, str], list[tuple[int, float, str]]] = {}
    for row in rows:
        turns = reader.episode(row["episode_id"]).turns
        # The episode has no such call, or its reply ended before this token.
        if turn >= len(turns) or len(turns[turn].token_ids) <= token:
            continue
        other = turns[turn]
        if np.array_equal(other.prompt_ids, prompt) and np.array_equal(
            other.token_ids[:token], before
        ):
            sampled = (
                int(other.token_ids[token]),
                float(other.logprobs[token]),
                row["episode_id"],
            )
            steps.setdefault((row["step"], row["mode"]), []).append(sampled)
    counts = Counter(choice[0] for choices in steps.values() for choice in choices)
    return {
        "steps": [
            _at_step(step, mode, choices, chosen) for (step, mode), choices in sorted(steps.items())
        ],
        "tokens": [
            {"text": text([id_])[0], "num": num, "is_chosen": id_ == chosen}
            for id_, num in counts.most_common(MAX_OTHERS)
        ],
        "num_tokens": len(counts),
    }


def _at_step(
    step: int, mode: str, choices: Sequence[tuple[int, float, str]], chosen: int
) -> dict[str, Any]:
    same = [(logprob, name) for id_, logprob, name in choices if id_ == chosen]
    return {
        "step": step,
        "mode": mode,
        "num": len(choices),
        "chose": len(same),
        "p": fmean(exp(logprob) for logprob, _ in same) if same else None,
        "episode_id": same[0][1] if same else choices[0][2],
    }


def _way(
    token: int | None,
    episodes: Sequence[EpisodeRecord],
    number_of: Mapping[str, int],
    text: TokenText,
) -> dict[str, Any]:
    rewards = [e.row.reward for e in episodes if e.row.reward is not None]
    advantages = [e.row.advantage for e in episodes if e.row.advantage is not None]
    return {
        "text": None if token is None else text([token])[0],
        "members": [number_of[e.row.episode_id] for e in episodes],
        "reward": fmean(rewards) if rewards else None,
        "advantage": fmean(advantages) if advantages else None,
    }


def _first_difference(sequences: Sequence[Sequence[int]]) -> int | None:
    """Returns the first index at which the sequences differ or one ends; None if they are equal."""
    for index, ids in enumerate(zip_longest(*sequences)):
        if any(token_id != ids[0] for token_id in ids):
            return index
    return None


def _lane(episode: EpisodeRecord, text: TokenText) -> list[dict[str, Any]]:
    """Returns the calls of a member; `given` is the text of new messages before a later call."""
    return [
        {
            "turn_index": turn.turn_index,
            "agent_name": turn.agent_name,
            "finish_reason": turn.finish_reason,
            "given": "\n".join(
                str(_content(message))
                # The first call's messages are the same for all members.
                for message in (new_messages(turn, episode.turns) if turn.turn_index else ())
                if message.get("role") != "system"
            ),
            "sampled": _sampled(turn, text),
        }
        for turn in episode.turns
    ]


def _sampled(turn: TurnRecord, text: TokenText) -> dict[str, Any]:
    """Returns the sampled tokens of a call with their numbers. A kind of number that no token has
    is None, and so is each number that was not computed."""
    numbers = {} if turn.trained is None else turn.trained.numbers
    reference, kl = numbers.get("reference_logprobs"), None
    if reference is not None:
        # log pi - log reference, whose mean estimates the KL. pi is the policy in the update, or
        # the sampler where the update did not compute the token.
        policy = numbers.get("policy_logprobs", turn.logprobs)
        kl = np.where(np.isfinite(policy), policy, turn.logprobs) - reference
    arrays = {
        "logprobs": turn.logprobs,
        "advantages": turn.advantages,
        "mask": turn.loss_mask,
        "policy_logprobs": numbers.get("policy_logprobs"),
        "ratios": numbers.get("ratios"),
        "entropies": numbers.get("entropies"),
        "kl": kl,
    }
    return {
        "ids": turn.token_ids.tolist(),
        "texts": text(turn.token_ids),
        **{name: None if array is None else array.tolist() for name, array in arrays.items()},
        "cuts": {} if turn.trained is None else turn.trained.cuts,
    }


def _expected(episode: EpisodeRecord) -> dict[str, Any] | None:
    """Returns the first of the task's fields with the right answer, by its name, or None."""
    metadata = {} if episode.task is None else episode.task.metadata
    name = next((name for name in ANSWER_FIELDS if metadata.get(name) is not None), None)
    return None if name is None else {"name": name, "value": metadata[name]}


def _final_answer(episode: EpisodeRecord) -> dict[str, Any] | None:
    """Returns the workflow's `final_answer`, else the last reply."""
    if answer := episode.metadata.get("final_answer"):
        return {"name": "final_answer", "value": answer}
    if not episode.turns:
        return None
    return {"name": "last reply", "value": _content(episode.turns[-1].reply)}


def _content(message: dict[str, Any]) -> Any:
    """Returns a message's text, together with its tool calls if there are any."""
    content = message.get("content")
    if isinstance(content, list):
        content = shown_text(content)
    calls = message.get("tool_calls")
    return {"text": content or "", "tool_calls": calls} if calls else content or ""
