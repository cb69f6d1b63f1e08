"""Records one episode: every call of the model goes through here and leaves a `Turn`.

    agent --messages, tools--> chat() --token ids--> endpoint --token ids, logprobs--> Turn

The prompt's ids come from the token session, so what was sampled in earlier turns is sent back as
it was sampled. Limits of tokens and turns are kept here: the call that would pass one raises
`EpisodeTruncated`, and so does every later call, until the workflow returns.

Not covered: streaming from the endpoint (a reply comes whole), stop strings, forced tool calls
(with ``tool_choice="required"`` the reply is still what the model chose to write).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ajet.core import seeding
from ajet.core.inference.endpoint import (
    Completion,
    ContextOverflow,
    ModelEndpoint,
    SamplingParams,
)
from ajet.core.inference.session import TokenSession
from ajet.core.trajectory.limits import (
    EndpointFault,
    EpisodeClosed,
    EpisodeLimits,
    EpisodeTruncated,
)
from ajet.core.trajectory.turn import Turn

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.tool_parsers.parser import ToolParser


@dataclass(slots=True)
class Overrides:
    """Sampling settings that an agent asks for in one call; None keeps the run's."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None

    @property
    def given(self) -> dict[str, float | int]:
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in pairs if value is not None}


class EpisodeRecorder:
    """The model as one episode sees it. `seed_path` is the episode's place in the tree of seeds."""

    def __init__(
        self,
        *,
        endpoint: ModelEndpoint,
        template: ChatTemplate,
        parser: ToolParser,
        limits: EpisodeLimits,
        sampling: SamplingParams,
        episode_id: str,
        seed_path: Sequence[int | str],
        trainable_targets: Sequence[str] | str | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.truncation: str | None = None
        self.endpoint_fault: str | None = None
        self._endpoint = endpoint
        self._template = template
        self._parser = parser
        self._limits = limits
        self._sampling = sampling
        self._seed_path = tuple(seed_path)
        self._targets = _as_set(trainable_targets)
        self._session = TokenSession(template)
        self._turns: dict[int, Turn] = {}
        self._num_calls = 0
        self._closed = False
        self._born_s = time.perf_counter()

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished turns in the order in which their calls began."""
        return tuple(self._turns[index] for index in sorted(self._turns))

    def __deepcopy__(self, memo: dict[int, Any]) -> EpisodeRecorder:
        """Frameworks copy their agents, and the model with them: all copies record here."""
        return self

    def is_trainable(self, agent_name: str, target_tag: str) -> bool:
        return self._targets is None or not self._targets.isdisjoint((agent_name, target_tag))

    def close(self) -> None:
        """No later call succeeds; what was recorded stays."""
        self._closed = True

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        agent_name: str = "default",
        target_tag: str = "default",
        tool_choice: str | None = None,
        overrides: Overrides | None = None,
    ) -> Turn:
        """One call with chat messages. The schemas stay in the prompt when `tool_choice` is
        "none", so that the conversation only grows; calls then come back as text."""
        index = await self._begin()
        sent = [dict(message) for message in messages]
        offered = None if self._limits.force_disable_toolcalls or not tools else list(tools)
        prompt = self._session.prompt_for(sent, offered)
        started_s = self._clock()
        overrides = overrides or Overrides()
        completion = await self._sample(index, list(prompt.ids), overrides)
        reply = self._reply(index, completion, calls=bool(offered) and tool_choice != "none")
        self._session.record(sent, offered, reply, completion)
        notes = {"continues": prompt.continues, "reason": prompt.reason, "drift": prompt.drift}
        turn = Turn(
            completion=completion,
            messages=sent,
            tools=offered,
            reply=reply,
            agent_name=agent_name,
            target_tag=target_tag,
            trainable=self.is_trainable(agent_name, target_tag),
            started_s=started_s,
            ended_s=self._clock(),
            notes=_present(**notes, sampling=overrides.given or None),
        )
        return self._keep(index, turn)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        agent_name: str = "default",
        target_tag: str = "default",
        overrides: Overrides | None = None,
    ) -> Turn:
        """One call with token ids: the prompt is taken as it is, no template, no parsing."""
        index = await self._begin()
        started_s = self._clock()
        overrides = overrides or Overrides()
        completion = await self._sample(index, list(prompt_ids), overrides)
        reply = {"role": "assistant", "content": self._text(completion)}
        turn = Turn(
            completion=completion,
            messages=[],
            tools=None,
            reply=reply,
            agent_name=agent_name,
            target_tag=target_tag,
            trainable=self.is_trainable(agent_name, target_tag),
            started_s=started_s,
            ended_s=self._clock(),
            notes=_present(sampling=overrides.given or None),
        )
        return self._keep(index, turn)

    async def _begin(self) -> int:
        """The number of this call, fixed by the order in which calls begin."""
        refusal = self._refusal()
        if refusal is not None:
            await asyncio.sleep(0)  # an agent that retries for ever still lets others run
            raise refusal
        index = self._num_calls
        if index >= self._limits.max_steps:
            raise self._truncate(f"the episode used its {self._limits.max_steps} calls (max_steps)")
        self._num_calls += 1
        return index

    def _refusal(self) -> Exception | None:
        if self._closed:
            return EpisodeClosed(f"episode {self.episode_id} is over")
        return EpisodeTruncated(self.truncation) if self.truncation else None

    def _truncate(self, reason: str) -> EpisodeTruncated:
        self.truncation = self.truncation or reason
        return EpisodeTruncated(reason)

    async def _sample(self, index: int, prompt_ids: list[int], overrides: Overrides) -> Completion:
        room = self._room(index, len(prompt_ids))
        asked = overrides.given | {
            "max_tokens": min(room, overrides.max_tokens or room),
            "seed": seeding.derive(*self._seed_path, index),
            "stop_token_ids": self._sampling.stop_token_ids or self._template.stop_token_ids,
        }
        sampling = replace(self._sampling, **asked)
        completion = await self._ask(prompt_ids, sampling, f"{self.episode_id}/{index:04d}")
        if self._closed or completion.finish_reason == "abort":
            raise EpisodeClosed(f"episode {self.episode_id} is over")
        if completion.finish_reason == "length" and sampling.max_tokens == room:
            self._cut_by_length(index, room)
        return completion

    def _cut_by_length(self, index: int, room: int) -> None:
        """The reply was cut by the run's own limit. The agent may go on, if the episode's tokens
        are not used up: then the next call finds no room and says so."""
        if room < self._limits.max_response_length_in_one_turn:
            self.truncation = self.truncation or (
                f"turn {index} filled the episode's {self._limits.max_timeline} tokens"
            )

    def _room(self, index: int, prompt_length: int) -> int:
        try:
            return self._limits.room(index, prompt_length)
        except EpisodeTruncated as cut:
            raise self._truncate(str(cut)) from None

    async def _ask(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        try:
            return await self._endpoint.generate(prompt_ids, sampling, request_id)
        except ContextOverflow as error:
            raise self._truncate(str(error) or "the prompt fills the model's context") from error
        except asyncio.CancelledError:
            abort = getattr(self._endpoint, "abort", None)
            if abort is not None:
                abort(request_id)
            raise
        except Exception as error:
            self.endpoint_fault = f"{type(error).__name__}: {error}"
            raise EndpointFault(self.endpoint_fault) from error

    def _text(self, completion: Completion) -> str:
        ids = completion.token_ids
        if completion.finish_reason == "stop" and ids and ids[-1] in self._template.stop_token_ids:
            ids = ids[:-1]
        return self._template.decode(list(ids))

    def _reply(self, index: int, completion: Completion, *, calls: bool) -> dict[str, Any]:
        """The assistant message, in OpenAI's form."""
        text = self._text(completion)
        parsed = self._parser.parse(text)
        reply: dict[str, Any] = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning is not None:
            reply["reasoning_content"] = parsed.reasoning
        if parsed.tool_calls and not calls:
            return {"role": "assistant", "content": text}
        if parsed.tool_calls:
            reply["tool_calls"] = [
                {
                    "id": f"call_{index:04d}_{order}",
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(call.arguments, ensure_ascii=False),
                    },
                }
                for order, call in enumerate(parsed.tool_calls)
            ]
        return reply

    def _keep(self, index: int, turn: Turn) -> Turn:
        self._turns[index] = turn
        return turn

    def _clock(self) -> float:
        """Seconds since the episode began."""
        return time.perf_counter() - self._born_s


def _as_set(targets: Sequence[str] | str | None) -> frozenset[str] | None:
    """A single name counts as a list of one, not as its letters."""
    if targets is None:
        return None
    return frozenset([targets] if isinstance(targets, str) else targets)


def _present(**notes: Any) -> dict[str, Any]:
    return {name: value for name, value in notes.items() if value is not None}
