"""One call of the model within an episode, and the notes that are recorded with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ajet.core.inference.endpoint import Completion

_STORED_AS = {"is_given": "given", "is_summary": "summary"}
"""The keys of the stored form that are not the names of their fields."""


@dataclass(frozen=True, slots=True)
class TurnNotes:
    """Holds what is known of a call besides its text and its ids.

    The default of a field means that there is nothing to note. Such a field has no key in the
    stored form (`as_json`), whose keys are in the order of the fields.
    """

    is_given: bool = False
    """The reply was given, to be learnt, and not sampled."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """The sampling settings that the agent asked for and got, by name."""
    sampling_not_taken: dict[str, Any] = field(default_factory=dict)
    """Those that it asked for and did not get, because it is trained."""
    adapter: str = ""
    """The adapter that sampled the reply, where a run has several."""
    stopped_at: str | None = None
    """The stop string that ended the reply. The reply's ids may hold it, its text does not."""
    cut_by_agent: bool = False
    """The `max_tokens` that the agent asked for cut the reply."""
    opening: str = ""
    """The beginning of a forced tool call. It ends the prompt, and the reply's text starts with
    it."""
    calls_are_text: bool = False
    """Tool calls in the reply stay text (``tool_choice: none``)."""
    one_call: bool = False
    """The agent is shown only the first tool call of the reply."""
    continues: bool | None = None
    """Whether the prompt begins with the ids of a recorded call; None where nobody looked."""
    reason: str | None = None
    """Why a recorded call with the same messages was not continued."""
    drift: int | None = None
    """The first position of the prompt where a fresh render has another id."""
    drift_checked: bool = False
    """The prompt was compared with a fresh render."""
    hinted_prompt: list[int] = field(default_factory=list)
    """The ids of a conversation's first prompt as a teacher is shown it (hint.py)."""
    prompt_tokens: int | None = None
    """The length of the prompt as a chat endpoint reports it."""
    sampled_tokens: int | None = None
    """The length of the reply as a chat endpoint reports it."""
    malformed_calls: list[str] = field(default_factory=list)
    """The tool calls in the reply that could not be read, as they were written."""
    other_form: str | None = None
    """The tool parser that would have read calls of offered tools in the reply, where the run's
    read none."""
    malformed: dict[str, str] = field(default_factory=dict)
    """The run's checks that the reply failed, each with its reason (malformed.py)."""
    is_summary: bool = False
    """The reply is the summary of a compacted conversation."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """The variables of the chat template that the agent set for this call."""
    grammar: str = ""
    """The grammar that the reply was sampled under (inference/grammar.py)."""
    versions: list[list[int]] = field(default_factory=list)
    """The pieces of a reply during which the weights changed: numbers of tokens and versions."""
    old_keys: int = 0
    """The tokens before it whose keys and values older weights had computed."""

    def as_json(self) -> dict[str, Any]:
        """Returns the form in which records store the notes."""
        notes = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            _STORED_AS.get(name, name): value
            for name, value in notes.items()
            if value != getattr(_NO_NOTES, name)
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Reads the stored form; keys of other versions are left out."""
        keys = {f.name: _STORED_AS.get(f.name, f.name) for f in fields(cls)}
        return cls(**{name: content[key] for name, key in keys.items() if key in content})


_NO_NOTES = TurnNotes()


@dataclass(frozen=True, slots=True)
class Turn:
    """Holds one completion and what it was for.

    `messages` and `tools` are what the agent sent (for people to read: training uses only the ids
    in `completion`); `reply` is the assistant message parsed from the completion. `reward` is the
    reward of this turn alone (None: unknown) and `state_key` the state of the environment in which
    it was taken; both are for step-wise credit.
    """

    completion: Completion
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    reply: dict[str, Any]
    agent_name: str = "default"
    target_tag: str = "default"
    trainable: bool = True
    reward: float | None = None
    state_key: str | None = None
    started_s: float = 0.0
    ended_s: float = 0.0
    notes: TurnNotes = field(default_factory=TurnNotes)

    @property
    def adapter(self) -> str:
        """Returns the adapter that sampled it; empty where the run has one for all calls."""
        return self.notes.adapter

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Returns how many tokens each version of the weights sampled, in their order."""
        num_left, pieces = len(self.completion.token_ids), []
        for number, version in self.notes.versions or [[num_left, self.completion.policy_version]]:
            # A reply may have been cut at a stop string.
            if num_left:
                pieces.append((min(number, num_left), version))
                num_left -= pieces[-1][0]
        return pieces

    @property
    def is_given(self) -> bool:
        """Tells whether its reply was given to be learnt, not sampled (`EpisodeRecorder.give`)."""
        return self.notes.is_given

    @property
    def is_cut(self) -> bool:
        """Tells whether a limit cut the reply."""
        return self.completion.finish_reason == "length"

    @property
    def num_prompt_tokens(self) -> int:
        """Returns the number of prompt ids, or the number that a chat endpoint reports."""
        return len(self.completion.prompt_ids) or self.notes.prompt_tokens or 0

    @property
    def num_sampled_tokens(self) -> int:
        """Returns the number of sampled ids, or the number that a chat endpoint reports."""
        return len(self.completion.token_ids) or self.notes.sampled_tokens or 0
