"""Makes rows of chat messages from recorded episodes (`ajet data distill`). A row is one
conversation of an episode: the last call's messages and its reply. Replies that the model sampled
keep their `token_ids`, so a supervised run with the same tokenizer trains exactly these; a
tokenizer with another vocabulary encodes the messages again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ajet.core.inference.session import TokenSession
from ajet.read.episode_reader import EpisodeFilter, EpisodeReader, EpisodeRecord, TurnRecord

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate

Row = dict[str, Any]


@dataclass(slots=True)
class RecordedRows:
    """The rows, and counts: `num_exact` conversations whose messages give the recorded prompt ids
    again, episodes without messages, and for pairs episodes of several conversations and groups
    whose episodes were asked otherwise."""

    rows: list[Row] = field(default_factory=list)
    num_exact: int = 0
    num_without_messages: int = 0
    num_of_several: int = 0
    num_asked_otherwise: int = 0


def recorded_rows(
    reader: EpisodeReader, template: ChatTemplate, *, min_reward: float, per_task: int | None
) -> RecordedRows:
    """Returns the rows of the training episodes that earned `min_reward` (rejection sampling), in
    the record's order. `per_task` keeps that many episodes of a task, the newest ones whose replies
    differ."""
    recorded = RecordedRows()
    kept: Counter[str] = Counter()
    seen: set[tuple[Any, ...]] = set()
    rows: list[list[Row]] = []
    which = EpisodeFilter(mode="train", status="ok", min_reward=min_reward)
    for episode in reader.walk(which):
        if not _has_messages(episode):
            recorded.num_without_messages += 1
            continue
        task = episode.row.task_id
        replies = (task, *(tuple(turn.token_ids.tolist()) for turn in episode.turns))
        if per_task is not None and (kept[task] == per_task or replies in seen):
            continue
        kept[task] += 1
        seen.add(replies)
        of_episode = list(_rows_of(episode, template))
        recorded.num_exact += sum(is_exact for _, is_exact in of_episode)
        rows.append([row for row, _ in of_episode])
    # The reader goes from the newest episode to the oldest.
    recorded.rows = [row for of_episode in reversed(rows) for row in of_episode]
    return recorded


def recorded_pairs(
    reader: EpisodeReader, template: ChatTemplate, *, min_reward: float, per_task: int | None
) -> RecordedRows:
    """Returns a row for each group whose best training episode earned `min_reward` and more than
    its worst, in the record's order. `per_task` keeps so many pairs of a task, the newest ones.
    Messages that a pair begins with are not trained: a fork and its original part at the forked
    turn."""
    recorded = RecordedRows()
    groups: defaultdict[str, list[tuple[str, Row, bool]]] = defaultdict(list)
    for episode in reader.walk(EpisodeFilter(mode="train", status="ok")):
        if episode.row.reward is None:
            continue
        if not _has_messages(episode):
            recorded.num_without_messages += 1
            continue
        conversations = list(_rows_of(episode, template))
        if len(conversations) == 1:
            groups[episode.row.group_id].append((episode.row.task_id, *conversations[0]))
        else:
            recorded.num_of_several += 1
    kept: Counter[str] = Counter()
    for members in groups.values():  # the reader goes from the newest group to the oldest
        ordered = sorted(members, key=lambda member: member[1]["reward"])
        (_, worst, _), (task, best, _) = ordered[0], ordered[-1]
        if not best["reward"] >= min_reward or best["reward"] == worst["reward"]:
            continue
        if _asked(best) != _asked(worst):
            recorded.num_asked_otherwise += 1
            continue
        if per_task is not None and kept[task] == per_task:
            continue
        kept[task] += 1
        recorded.num_exact += ordered[0][2] + ordered[-1][2]
        row = {"task_id": best["task_id"], "chosen": best["messages"]}
        row |= {"rejected": worst["messages"], "rewards": [best["reward"], worst["reward"]]}
        recorded.rows.append(row | {name: best[name] for name in ("tools", "vocabulary")})
    recorded.rows.reverse()
    return recorded


def _asked(row: Row) -> tuple[Any, ...]:
    """Returns the tools of a conversation and its messages before the first reply."""
    roles = [message.get("role") for message in row["messages"]]
    return row["tools"], row["messages"][: roles.index("assistant")]


def _has_messages(episode: EpisodeRecord) -> bool:
    """Returns False for an episode with calls by token ids (`model_tuner.generate`) or replies with
    a forced beginning (`tool_choice`): no messages stand for them."""
    return all(turn.messages and not turn.notes.opening for turn in episode.turns)


def _rows_of(episode: EpisodeRecord, template: ChatTemplate) -> Iterator[tuple[Row, bool]]:
    """Yields a row for each conversation that trains a reply, and whether its ids are exact."""
    turns, done = episode.turns, set[int]()
    parents = {turn.turn_index: _parent(turn, turns) for turn in turns}
    continued = {parent.turn_index for parent in parents.values() if parent is not None}
    # Each call that no other call continues ends a conversation; calls before it are in its prompt.
    for number, leaf in enumerate(turn for turn in turns if turn.turn_index not in continued):
        chain = [leaf]
        while (parent := parents[chain[-1].turn_index]) is not None:
            chain.append(parent)
        # Replies have weight 0 unless they are trained in this row: a reply in two conversations
        # must be trained once.
        messages = [
            {**message, "weight": 0} if message.get("role") == "assistant" else dict(message)
            for message in (*leaf.messages, leaf.reply)
        ]
        trained = {t.turn_index for t in chain if t.trainable} - done
        done |= trained
        for turn in chain:
            message = messages[len(turn.messages)]
            message["token_ids"] = turn.token_ids.tolist()
            if turn.turn_index in trained:
                del message["weight"]
        if trained:
            name = episode.row.episode_id if not number else f"{episode.row.episode_id}-{number}"
            row = {
                "task_id": name,
                "messages": messages,
                "tools": leaf.tools,
                "reward": episode.row.reward,
                "vocabulary": template.vocabulary_hash,
            }
            yield row, _is_exact(chain[::-1], messages, template)


def _parent(turn: TurnRecord, turns: Sequence[TurnRecord]) -> TurnRecord | None:
    """Returns the longest call whose ids and reply this one continues."""
    ids = turn.prompt_ids.tolist()
    parent: TurnRecord | None = None
    for candidate in turns:
        path = [*candidate.prompt_ids.tolist(), *candidate.token_ids.tolist()]
        at = len(candidate.messages)
        is_reply = at < len(turn.messages) and turn.messages[at].get("role") == "assistant"
        is_longer = parent is None or at > len(parent.messages)
        if is_reply and is_longer and ids[: len(path)] == path and candidate.tools == turn.tools:
            parent = candidate
    return parent


def _is_exact(
    chain: Sequence[TurnRecord], messages: Sequence[dict[str, Any]], template: ChatTemplate
) -> bool:
    """Tells whether the row's messages give the prompt ids that were recorded."""
    session = TokenSession(template)
    for turn in chain:
        at = len(turn.messages)
        if session.prompt_for(messages[:at], turn.tools).ids != turn.prompt_ids.tolist():
            return False
        session.record(messages[:at], turn.tools, messages[at], turn.completion)
    return True
