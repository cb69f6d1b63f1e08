"""The report of a replay: the transcript, marked where it differs from the record. Calls and
messages count from 0, as in the run folder; positions are in the recorded prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from ajet.core.inference.chat_template import normalised
from ajet.core.inference.endpoint import Completion
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.engines.replay import ReplayedCall, ReplayEngine
from ajet.read.episode_reader import EpisodeRecord, TurnRecord
from ajet.read.reports.transcript import transcript

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate

UNFINISHED = (EpisodeStatus.TIMEOUT, EpisodeStatus.ABORTED, EpisodeStatus.ENV_ERROR)
"""Episodes of these statuses may have ended within a call, which then left no record."""
JUDGED = (EpisodeStatus.OK, EpisodeStatus.TRUNCATED)
ALONE = "not compared (the judge sees the whole group, and here one episode)"
TOKENS_BEFORE, TOKENS_AFTER = 8, 16


@dataclass(frozen=True)
class CallDifference:
    """One call that differs from the record: a description in one line, the texts on both sides,
    and the completion that the call received, if any."""

    call: int
    description: str
    completion: Completion | None = None
    recorded: str = ""
    replayed: str = ""

    def shown(self) -> Text:
        text = Text(f"call {self.call}: {self.description}", style="bold red")
        if self.recorded or self.replayed:
            sides = f"\n  recorded  {self.recorded}\n  replayed  {self.replayed}"
            text.append(sides, "not bold")
        return text


@dataclass(frozen=True)
class ReplayReport:
    record: EpisodeRecord
    trajectory: Trajectory
    engine: ReplayEngine
    template: ChatTemplate
    judges_groups: bool = False
    """Whether the judge sees whole groups: in the replay the group is this episode alone."""

    @cached_property
    def differences(self) -> list[CallDifference]:
        """The calls that differ, in order, then the recorded calls that were not made."""
        differences: list[CallDifference] = []
        for n, call in enumerate(self.engine.calls):
            differences += self._differences_of(n, call)
        if not self.engine.stopped:
            differences += [
                CallDifference(n, "recorded, and not made") for n in self.engine.missing_calls
            ]
        return differences

    @cached_property
    def other_outcome(self) -> list[str]:
        """Texts about differences in the outcome. A replay that was stopped has no outcome."""
        if self.engine.stopped:
            return []
        then, now = self.record, self.trajectory
        if self.is_judged_alone and EpisodeStatus.JUDGE_ERROR in (then.outcome, now.outcome):
            return []
        pairs = [("status", str(now.outcome), then.outcome)]
        if then.outcome in JUDGED and not self.is_judged_alone:
            pairs.append(("reward", _number(now.reward), _number(then.row.reward)))
            pairs.append(("is_success", str(now.is_success), str(then.row.is_success)))
        return [f"{name} {new} instead of {old}" for name, new, old in pairs if new != old]

    @property
    def is_judged_alone(self) -> bool:
        """True if a judge of groups gave both rewards, so that they cannot be compared."""
        if self.engine.stopped or not self.judges_groups:
            return False
        return _is_by_judge(self.record) and _is_by_judge(self.trajectory)

    @property
    def is_same(self) -> bool:
        return not self.differences and not self.other_outcome

    def shown(self) -> RenderableType:
        # Marks are by turn of the replay; calls without a turn come after all turns. A turn and its
        # call hold the same completion object; their numbers differ where a call failed.
        turns = self.trajectory.turns
        numbers = {id(turn.completion): number for number, turn in enumerate(turns)}
        by_turn: dict[int, list[Text]] = {}
        for difference in self.differences:
            number = numbers.get(id(difference.completion), len(turns) + difference.call)
            by_turn.setdefault(number, []).append(difference.shown())
        marks = {number: Text("\n").join(texts) for number, texts in by_turn.items()}
        return transcript(self.trajectory, marks)

    def summary(self) -> Text:
        """Returns one line: that the replay is the same, or where it differs."""
        return Text(self._summary_text(), style="bold green" if self.is_same else "bold red")

    def _summary_text(self) -> str:
        if self.is_same:
            calls = [call for call in self.engine.calls if call.completion is not None]
            num, num_ids = len(calls), sum(len(call.prompt_ids) for call in calls)
            return f"the same: {num} call{'s' * (num != 1)}, {num_ids} prompt ids, {self._end()}"
        reasons = []
        if self.differences:
            first = self.differences[0]
            reasons.append(f"call {first.call}: {first.description}")
            if num_others := len({difference.call for difference in self.differences}) - 1:
                reasons.append(f"{num_others} other call{'s' * (num_others > 1)}")
        reasons += self.other_outcome
        if self.is_judged_alone:
            reasons.append(f"reward {ALONE}")
        return f"departs: {'; '.join(reasons)}"

    def _differences_of(self, number: int, call: ReplayedCall) -> Iterator[CallDifference]:
        if call.recorded is None:
            if self.engine.stopped and self.record.outcome not in UNFINISHED:
                yield CallDifference(number, f"one more than the {len(self.record.turns)} recorded")
            return
        turn = self.record.turns[call.recorded]
        if call.departs_at is not None:
            position_text = describe_position(turn, call.departs_at, self.template)
            yield CallDifference(
                call.recorded,
                f"the prompt departs at position {call.departs_at}, in {position_text}",
                call.completion,
                self._window(turn.prompt_ids.tolist(), call.departs_at),
                self._window(call.prompt_ids, call.departs_at),
            )
        if call.exceeds_max_tokens:
            limit = f"asks for at most {call.max_tokens} tokens"
            have = f"the recorded reply has {len(turn.token_ids)}"
            yield CallDifference(call.recorded, f"{limit}; {have}", call.completion)
        for now in self.trajectory.turns:
            if now.completion is call.completion and _who(now) != _who(turn):
                who = f"it is a call of {_who(now)}, and was one of {_who(turn)}"
                yield CallDifference(call.recorded, who, call.completion)

    def _window(self, ids: Sequence[int], at: int) -> str:
        before = self.template.text_of(ids[max(0, at - TOKENS_BEFORE) : at])
        after = self.template.text_of(ids[at : at + TOKENS_AFTER]) or "(it ends here)"
        more = "…" if len(ids) > at + TOKENS_AFTER else ""
        return f"…{before}⟦{after}{more}".replace("\n", "⏎")

    def _end(self) -> str:
        if self.engine.stopped:
            return f"and there the record ends ({self.record.outcome})"
        reward = ALONE if self.is_judged_alone else _number(self.trajectory.reward)
        return f"{self.trajectory.outcome}, reward {reward}"


def _is_by_judge(episode: EpisodeRecord | Trajectory) -> bool:
    """Tells whether the judge gave the reward, not the workflow or a rule about malformed
    replies."""
    if episode.outcome == EpisodeStatus.JUDGE_ERROR:
        return True
    return episode.outcome in JUDGED and "judge" in episode.reward_breakdown


def _who(turn: Turn | TurnRecord) -> str:
    trained = "trained" if turn.trainable else "not trained"
    return f"agent {turn.agent_name} ({turn.target_tag}, {trained})"


def _number(value: float | None) -> str:
    return "none" if value is None else repr(float(value))


def describe_position(turn: TurnRecord, position: int, template: ChatTemplate) -> str:
    """Returns the part of the recorded prompt at this position, such as ``message 3 (tool)``. A
    message that has only tool calls counts as part of the message that follows."""
    if not turn.messages:
        return "the ids that the workflow gave"
    ids = turn.prompt_ids.tolist()
    text, at = template.text_of(ids), len(template.text_of(ids[:position]))
    end = 0
    for number, message in enumerate(turn.messages):
        content = str(normalised(message)["content"]).strip()
        # Searching from the end of the previous message keeps the order of equal messages.
        start = text.find(content, end) if content else -1
        if start < 0:
            continue
        if at < start and _offers(text[end:start], turn.tools):
            return "the tools"
        if at <= start + len(content):
            return f"message {number} ({message.get('role')})"
        end = start + len(content)
    return "the tools" if _offers(text[end:], turn.tools) else "what follows the last message"


def _offers(gap: str, tools: list[dict[str, Any]] | None) -> bool:
    names = [str(tool.get("function", tool).get("name")) for tool in tools or ()]
    return bool(names) and all(name in gap for name in names)
