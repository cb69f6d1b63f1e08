"""Audits the record of a run: renders every call again and compares it with what was recorded, and
looks for violations of what must always hold.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.errors import ModelError
from ajet.core.inference.chat_template import MARK, ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.inference.session import COMPACTED
from ajet.core.trajectory.reply_reader import ReplyReader
from ajet.core.trajectory.samples import num_timelines
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.trajectory.turn import Turn
from ajet.engines.replay import first_difference
from ajet.read.episode_reader import EpisodeRecord, TurnRecord

if TYPE_CHECKING:
    from ajet.core.inference.tool_parser import ToolParser

ROUNDING = 1e-5
"""A log-probability in float32 may be this far above 0."""
SHOWN_FAULTS = 100
KEPT_PIECES = 512
TOGETHER = 32  # episodes that are rendered together
TRAINED_STATUSES = (EpisodeStatus.OK, EpisodeStatus.TRUNCATED)


@dataclass
class AuditFigures:
    """Sums over the episodes. Token counts are of sampled tokens; `drift_at` has the first
    differing position in the prompt of each call that drifted."""

    episodes: int = 0
    episodes_rendered: int = 0
    calls: int = 0
    calls_without_ids: int = 0  # calls of a chat endpoint
    calls_with_ids_alone: int = 0  # model_tuner.generate, which has no messages to render
    continued: int = 0
    timelines: int = 0
    rendered: int = 0
    same: int = 0
    drift: Counter[str] = field(default_factory=Counter)
    drift_at: list[int] = field(default_factory=list)
    not_rendered: Counter[str] = field(default_factory=Counter)
    branches: Counter[str] = field(default_factory=Counter)
    sampled: Counter[str] = field(default_factory=Counter)  # tokens of trainable agents, by status
    trained: Counter[str] = field(default_factory=Counter)
    untrained: Counter[str] = field(default_factory=Counter)
    replies: int = 0
    replies_read_otherwise: int = 0
    num_faults: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, more: AuditFigures) -> None:
        """Adds the figures of episodes that come after these."""
        for figure in fields(self):
            mine, theirs = getattr(self, figure.name), getattr(more, figure.name)
            if isinstance(mine, Counter):
                mine.update(theirs)  # unlike +=, this keeps counts of 0
            elif isinstance(mine, list):
                mine += theirs
            else:
                setattr(self, figure.name, mine + theirs)
        del self.faults[SHOWN_FAULTS:]


class PromptPieces:
    """Encodes renders as `ChatTemplate.encode` does, piece by piece: most pieces occur again.

    The `tokenizers` library cuts a text at its added tokens and encodes each piece between two of
    them alone, so the ids of a piece depend only on the piece and these two tokens (which may strip
    white space from it). Renders that break this rule are encoded as a whole: those by other
    tokenizers, with added tokens that only match whole words, or with messages that spell out a
    special token."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        added = template.tokenizer.added_tokens_decoder
        cuts = {t.content: number for number, t in added.items() if not t.normalized}
        can_cut = template.tokenizer.is_fast and not any(t.single_word for t in added.values())
        # At each position the library takes the longest added token.
        longest_first = sorted(cuts, key=len, reverse=True) if can_cut else ()
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._ids = cuts
        self._between = lru_cache(KEPT_PIECES)(self._encode_between)

    def encode(self, marked_text: str) -> Iterator[tuple[int, ...]]:
        """Yields the ids of the text's pieces: joined, those of `ChatTemplate.encode`."""
        if re.search(MARK, marked_text):
            yield tuple(self._template.encode(marked_text))
            return
        before, start = "", 0
        for match in self._cut.finditer(marked_text):
            yield self._between(before, marked_text[start : match.start()], match[0])
            before, start = match[0], match.end()
            yield (self._ids[before],)
        yield self._between(before, marked_text[start:], "")

    def _encode_between(self, before: str, piece: str, after: str) -> tuple[int, ...]:
        if not piece:
            return ()
        ids = self._template.encode(before + piece + after)
        return tuple(ids[bool(before) : len(ids) - bool(after)])


class Audit:
    """Adds up the figures of episodes. Of every `render_every`-th episode, by the number of its
    row, the prompts are rendered and the replies parsed again; that is three quarters of the time.

    Drift, a render with other ids than recorded, is not a fault: the token session avoids it by
    sending recorded ids. Faults are: a prompt recorded as the continuation of a call that does not
    begin with it, or continues it differently from the template; a trained token that was not
    sampled by a trained agent in a valid episode, or such a token that was not trained; a
    log-probability above 0 or not finite. Whether log-probabilities are the model's is not checked:
    that needs its weights."""

    def __init__(
        self, template: ChatTemplate, parser: ToolParser, *, render_every: int = 1
    ) -> None:
        self.figures = AuditFigures()
        self._render_every = render_every
        self._template = template
        self._reader = ReplyReader(template, parser)
        self._pieces = PromptPieces(template)
        self._rendered: dict[int, str] = {}  # by the id of a turn of this batch

    def add_all(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Adds up the episodes, holding a batch of them in memory at a time."""
        waiting = iter(episodes)
        while batch := list(islice(waiting, TOGETHER)):
            self._render_together([each for each in batch if self._is_rendered(each)])
            for episode in batch:
                self._add(episode)

    def _is_rendered(self, episode: EpisodeRecord) -> bool:
        return episode.row.id % self._render_every == 0

    def _add(self, episode: EpisodeRecord) -> None:
        figures, turns = self.figures, episode.turns
        figures.episodes += 1
        figures.episodes_rendered += self._is_rendered(episode)
        figures.calls += len(turns)
        completions = [_completion(turn) for turn in turns]
        for turn, completion in zip(turns, completions, strict=True):
            self._check_logprobs(episode, turn)
            self._count_trained(episode, turn)
            if not len(turn.prompt_ids):
                figures.calls_without_ids += 1
                continue
            parent = _parent(turn, turns)
            if turn.notes.continues:
                figures.continued += 1
                if parent is None:
                    self._fault(episode, turn, "should continue a call, but begins with none")
            elif turn.messages:
                figures.branches[turn.notes.reason or "a conversation begins"] += 1
            if not turn.messages:
                figures.calls_with_ids_alone += 1
            if not self._is_rendered(episode):
                continue
            self._read_again(turn, completion)
            if turn.messages:
                self._render_again(episode, turn, completion, parent)
        figures.timelines += num_timelines(
            [
                Turn(completion, turn.messages, turn.tools, turn.reply, trainable=turn.trainable)
                for turn, completion in zip(turns, completions, strict=True)
                if _why_not_trained(episode, turn) is None
            ]
        )

    def _fault(self, episode: EpisodeRecord, turn: TurnRecord, problem: str) -> None:
        self.figures.num_faults += 1
        if len(self.figures.faults) < SHOWN_FAULTS:
            location = f"episode {episode.row.episode_id}, turn {turn.turn_index}"
            self.figures.faults.append(f"{location}: {problem}")

    def _check_logprobs(self, episode: EpisodeRecord, turn: TurnRecord) -> None:
        num, logprobs = len(turn.token_ids), turn.logprobs
        if len(logprobs) != num:
            self._fault(episode, turn, f"{num} tokens have {len(logprobs)} log-probabilities")
        wrong = int((~np.isfinite(logprobs) | (logprobs > ROUNDING)).sum())
        if num and wrong:
            self._fault(episode, turn, f"{wrong} log-probabilities are above 0 or not finite")

    def _count_trained(self, episode: EpisodeRecord, turn: TurnRecord) -> None:
        num, status = len(turn.token_ids), episode.outcome
        mask = np.zeros(num, np.uint8) if turn.loss_mask is None else turn.loss_mask
        if len(mask) != num:
            self._fault(episode, turn, f"{num} tokens have a loss mask of {len(mask)}")
            return
        num_trained = int(mask.sum())
        self.figures.sampled[status] += num if turn.trainable else 0
        self.figures.trained[status] += num_trained
        reason = _why_not_trained(episode, turn)
        if reason is None and num_trained < num:
            self._fault(episode, turn, f"{num - num_trained} tokens should be trained and are not")
            reason = "for no recorded reason"
        elif reason is not None and num_trained:
            self._fault(episode, turn, f"{num_trained} tokens are trained ({reason})")
        if num > num_trained:
            self.figures.untrained[str(reason)] += num - num_trained

    def _read_again(self, turn: TurnRecord, completion: Completion) -> None:
        """Counts a reply that today's parser reads differently from the same sampled ids."""
        if turn.messages:
            read = self._reader.read(turn.turn_index, completion, turn.tools, turn.notes).message
        else:
            text = self._reader.plain_text(completion, turn.notes.stopped_at)
            read = {"role": "assistant", "content": text}
        self.figures.replies += 1
        self.figures.replies_read_otherwise += _without_ids(read) != _without_ids(turn.reply)

    def _render_again(
        self,
        episode: EpisodeRecord,
        turn: TurnRecord,
        completion: Completion,
        parent: TurnRecord | None,
    ) -> None:
        text = self._rendered.get(id(turn))
        if text is None:
            try:
                template = self._template.with_kwargs(turn.notes.chat_template_kwargs)
                text = template.render_marked(turn.messages, turn.tools)
            except ModelError as error:
                self.figures.not_rendered[str(error)] += 1
                return
        self.figures.rendered += 1
        opening = self._opening(turn)
        at = _first_difference(
            completion.prompt_ids, chain(self._pieces.encode(text), [tuple(opening)])
        )
        if at is None:
            self.figures.same += 1
            return
        fresh: list[int] = []
        if turn.notes.continues:  # only then can the difference lie in sampled tokens
            fresh = [i for ids in self._pieces.encode(text) for i in ids] + opening
            if parent is not None:
                # The session appends what the template writes after the parent's reply, so a
                # fresh render must end in the same ids even if it differs before.
                new = turn.prompt_ids[len(parent.prompt_ids) + len(parent.token_ids) :].tolist()
                if new and fresh[-len(new) :] != new:
                    self._fault(episode, turn, "continues differently from the template")
        self.figures.drift[self._cause(turn, episode.turns, at, fresh)] += 1
        self.figures.drift_at.append(at)

    def _render_together(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Renders the episodes' messages: equal ones once, and all with the same tools together.
        Those of calls with other variables of the template are left to `_render_again`."""
        self._rendered.clear()
        turns = [
            turn
            for episode in episodes
            for turn in episode.turns
            if turn.messages and not turn.notes.chat_template_kwargs
        ]
        for tools in {id(turn.tools): turn.tools for turn in turns}.values():
            same: dict[str, list[TurnRecord]] = {}
            for turn in turns:
                if turn.tools is tools:
                    # repr, as equal messages may render differently: 1 == True
                    same.setdefault(repr(turn.messages), []).append(turn)
            messages = [some[0].messages for some in same.values()]
            try:
                renders = self._template.render_marked_all(messages, tools)
            except ModelError:
                continue  # each turn is rendered alone later, which shows which one fails
            for some, text in zip(same.values(), renders, strict=True):
                self._rendered |= {id(turn): text for turn in some}

    def _opening(self, turn: TurnRecord) -> list[int]:
        """Returns the ids that end the prompt of a forced call. They belong to no message, so a
        fresh render does not contain them."""
        return self._template.encode(turn.notes.opening)

    def _cause(
        self, turn: TurnRecord, turns: Sequence[TurnRecord], at: int, fresh: list[int]
    ) -> str:
        before: list[TurnRecord] = []  # the calls that this prompt continues, newest first
        parent = _parent(turn, turns) if turn.notes.continues else None
        while parent is not None:
            before.append(parent)
            parent = _parent(parent, turns)
        if any(self._is_in_opening(at, call) for call in before):
            return "opening of a forced call"
        reply_call = next((call for call in before if self._is_in_reply(at, call)), None)
        if reply_call is None:  # the difference lies in what no call sampled
            if any(call.notes.reason == COMPACTED for call in (turn, *before)):
                return "ids of a reply in a compacted conversation"
            return "the template renders otherwise than in the run"
        if at > len(reply_call.prompt_ids) + len(reply_call.token_ids):
            return "other"
        if reply_call.finish_reason != "stop":
            return "cut reply"
        # From here on texts are compared: the tokens differ by definition.
        start, stops = min(at, len(reply_call.prompt_ids)), self._template.stop_token_ids
        ids = [*reply_call.prompt_ids[start:].tolist(), *reply_call.token_ids.tolist()]
        text = self._template.text_of([i for i in ids if i not in stops])
        return _cause_in(reply_call, text, self._template.text_of(fresh[start:]))

    def _is_in_reply(self, at: int, call: TurnRecord) -> bool:
        """Tells whether this position is in or after what the call sampled. White space before the
        reply counts as part of it: in a fresh render it may be one token with the first sampled
        characters."""
        return not self._template.text_of(call.prompt_ids[at:].tolist()).strip()

    def _is_in_opening(self, at: int, call: TurnRecord) -> bool:
        """Tells whether this position is in the opening at the end of the call's prompt, or
        directly before it, in thinking that the template began and the opening closed."""
        opening, end = self._opening(call), len(call.prompt_ids)
        before = call.prompt_ids[at : end - len(opening)].tolist()
        return bool(opening) and at < end and self._template.text_of(before).strip() in _NO_WORDS


_NO_WORDS = ("", "<think>")


def _cause_in(reply_call: TurnRecord, text: str, fresh: str) -> str:
    """Returns the cause of drift within a reply. `text` is what was sampled, `fresh` what the
    template writes from there on."""
    if fresh.startswith(text):
        return "reply re-tokenized"
    thinking = str(reply_call.reply.get("reasoning_content") or text.partition("</think>")[0])
    if "</think>" in text and thinking.strip() not in fresh[: len(text) + len(thinking)]:
        return "thinking stripped"
    content = str(reply_call.reply.get("content") or "").strip()
    first_difference_at = len(os.path.commonprefix([text, fresh]))  # noqa: RUF071 - of characters
    if reply_call.reply.get("tool_calls") and first_difference_at >= len(content):
        return "tool call re-serialised"
    if "".join(fresh.split()).startswith("".join(text.split())):
        return "white space trimmed"
    return "other"


def _parent(turn: TurnRecord, turns: Sequence[TurnRecord]) -> TurnRecord | None:
    """Returns the longest earlier call whose prompt and reply begin this prompt, if any."""
    prompt, before = turn.prompt_ids, list[TurnRecord]()
    for earlier in turns[: turn.turn_index]:
        start = len(earlier.prompt_ids)
        stop = start + len(earlier.token_ids)
        if (
            len(prompt) >= stop > 0
            and _equal(prompt[start:stop], earlier.token_ids)
            and _equal(prompt[:start], earlier.prompt_ids)
        ):
            before.append(earlier)
    return max(before, key=lambda call: len(call.prompt_ids), default=None)


def _equal(ids: NDArray[Any], others: NDArray[Any]) -> bool:
    # Bytes compare fastest; prompts with images have wider ids.
    if ids.dtype == others.dtype:
        return ids.tobytes() == others.tobytes()
    return np.array_equal(ids, others)


def _why_not_trained(episode: EpisodeRecord, turn: TurnRecord) -> str | None:
    """Returns why the turn's tokens must not be trained, or None if they must."""
    row = episode.row
    if row.mode != "train":
        return "a greedy baseline" if row.mode == "baseline" else "evaluation"
    if not turn.trainable:
        return "an agent that is not trained"
    if row.status == EpisodeStatus.ABORTED and episode.outcome != row.status:
        return "a selection left it out"
    if row.status not in TRAINED_STATUSES:
        return f"the episode ended as {row.status}"
    return "the episode has no reward" if row.reward is None else None


def _completion(turn: TurnRecord) -> Completion:
    """Returns the recorded completion; its log-probabilities, checked elsewhere, are zeros."""
    prompt_ids, token_ids = tuple(turn.prompt_ids.tolist()), tuple(turn.token_ids.tolist())
    logprobs, reason = (0.0,) * len(token_ids), turn.finish_reason
    return Completion(prompt_ids, token_ids, logprobs, reason, turn.policy_version)  # type: ignore[arg-type]


def _first_difference(ids: tuple[int, ...], pieces: Iterable[tuple[int, ...]]) -> int | None:
    """Returns the first position at which `ids` differ from the concatenated pieces, or None. Takes
    no more pieces than it needs: encoding them is the expensive part."""
    at = 0
    for piece in pieces:
        before, at = at, at + len(piece)
        if ids[before:at] != piece:
            return before + (first_difference(ids[before:at], piece) or 0)
    return None if at == len(ids) else at


def _without_ids(reply: dict[str, Any]) -> dict[str, Any]:
    """Returns the reply without the ids of its calls: a parser numbers every call that begins, but
    the record has only complete ones, so the ids may differ."""
    calls = [{**call, "id": None} for call in reply.get("tool_calls") or ()]
    return {**reply, "tool_calls": calls}
