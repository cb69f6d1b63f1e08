"""Records an episode whose endpoint takes and returns token ids.

    agent --messages, tools--> chat() --token ids--> endpoint --token ids, logprobs--> Turn

The token session makes the prompt's ids, so earlier replies are sent back exactly as sampled.
Limits of tokens are enforced here, limits of calls in base_recorder.py.
"""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.inference.session import Prompt, TokenSession
from ajet.core.task.chat_messages import shown_text
from ajet.core.text.plain_value import num_characters, plain_text
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.base_recorder import (
    BaseRecorder,
    CallObserver,
    SamplingOverrides,
)
from ajet.core.trajectory.hint import with_hint
from ajet.core.trajectory.limits import EpisodeClosed, EpisodeLimits, Limit
from ajet.core.trajectory.malformed import CheckedReply
from ajet.core.trajectory.plain_trajectory import plain_chat, plain_messages
from ajet.core.trajectory.reply_grammars import ReplyGrammars, functions_of, without_strict
from ajet.core.trajectory.reply_reader import ReplyReader
from ajet.core.trajectory.turn import Turn, TurnNotes

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate, Message, Tools
    from ajet.core.inference.tool_parser import ToolParser


MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _EndpointRequest:
    """Holds one request to the endpoint. `max_completion_tokens` is what the limits leave for the
    reply; `sampling.max_tokens` is lower where the agent asks for less."""

    index: int
    id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    max_completion_tokens: int
    notes: TurnNotes


class EpisodeRecorder(BaseRecorder):
    """Records one episode whose endpoint takes and returns token ids.

    `seed_path` is the episode's path in the tree of seeds, `hint` what its teacher is shown, and
    `adapters` chooses the adapter of each call, where a run has several.
    """

    shows_tokens = True

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
        check_drift: bool = False,
        hint: str | None = None,
        observer: CallObserver | None = None,
        adapters: AdapterChoice | None = None,
    ) -> None:
        super().__init__(
            limits=limits,
            sampling=sampling,
            episode_id=episode_id,
            seed_path=seed_path,
            trainable_targets=trainable_targets,
            observer=observer,
        )
        self._endpoint = endpoint
        self._computes_in_waves = endpoint.waves is not None
        self._template = template
        self._parser = parser
        self._reader = ReplyReader(template, parser)
        self._grammars = ReplyGrammars(template, parser)
        self._check_drift = check_drift
        self._sessions: dict[str, TokenSession] = {}
        self._hint = hint
        self._adapters = adapters
        self._in_flight: set[str] = set()  # ids of requests at the endpoint

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        agent_name: str = "default",
        target_tag: str = "default",
        tool_choice: str | None = None,
        parallel_tool_calls: bool = True,
        overrides: SamplingOverrides | None = None,
        is_summary: bool = False,
    ) -> Turn:
        """Makes one call with chat messages; `is_summary` notes that it asks for a summary.

        Without `parallel_tool_calls` the agent gets only the first call. With `tool_choice` "none"
        the schemas stay in the prompt, so that the conversation only grows, and calls are returned
        as text. With "required" or a tool's name the prompt ends with the opening of a call, which
        is context and not trained; the model writes the rest.
        """
        index = await self._start_call()
        if self._template.images is not None:
            await self._template.images.store.fetch(messages)
        sent, asked = self._plain_chat(messages), self._plain_tools(tools)
        offered = without_strict(asked)
        self._check_length(index, num_characters([sent, offered]))
        forced = self._forced_opening(offered or [], tool_choice)
        variables = (overrides and overrides.chat_template_kwargs) or {}
        session = self._session(variables)
        prompt = session.prompt_for(sent, offered, forced)
        started_s = self._clock()
        trainable = self.is_trainable(agent_name, target_tag)
        adapter = self._adapter(agent_name, target_tag, trainable)
        grammar = self._grammars.grammar(
            prompt.ids,
            overrides and overrides.response_format,
            [] if tool_choice == "none" else functions_of(asked),
            prompt.opening,
        )
        request = self._request(index, list(prompt.ids), overrides, trainable, adapter, grammar)
        self._report_call(sent, offered)
        with self._in_flight_request(request.id):
            completion = await self._endpoint.generate(
                request.prompt_ids, request.sampling, request.id
            )
        completion, notes = self._received(request, completion)
        notes = replace(  # these three say how the reply is to be read
            notes,
            opening=prompt.opening,
            calls_are_text=tool_choice == "none",
            one_call=not parallel_tool_calls,
        )
        # With tool_choice "none" a call is not a mistake of the model, but text.
        takes_calls = bool(offered) and tool_choice != "none"
        decoded = self._reader.read(index, completion, offered, notes)
        session.record(sent, offered, decoded.message, completion)
        notes = replace(
            notes,
            continues=prompt.continues,
            reason=prompt.reason,
            drift=prompt.drift,
            drift_checked=prompt.drift_checked,
            hinted_prompt=self._hinted_prompt(prompt, sent, offered, variables),
            malformed_calls=list(decoded.parsed.malformed) if takes_calls else [],
            other_form=decoded.parsed.other_form if takes_calls else None,
            is_summary=is_summary,
            chat_template_kwargs=variables,
        )
        turn = Turn(
            completion=completion,
            messages=sent,
            tools=offered,
            reply=decoded.message,
            agent_name=agent_name,
            target_tag=target_tag,
            trainable=trainable,
            started_s=started_s,
            ended_s=self._clock(),
            notes=notes,
        )
        checked = CheckedReply(
            decoded.text, completion.finish_reason, decoded.parsed, offered or (), sent
        )
        return self._record_turn(index, turn, checked)

    async def give(
        self,
        messages: Sequence[dict[str, Any]],
        reply: dict[str, Any],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        vocabulary: str | None = None,
        is_trained: bool = True,
        agent_name: str = "default",
        target_tag: str = "default",
    ) -> Turn:
        """Records a turn whose reply, an assistant message, is given; the engine is not called.

        `token_ids` are the reply's ids, if the caller has them. They are used only if `vocabulary`,
        the hash of theirs, is None or that of this model; elsewhere the chat template writes the
        reply. The prompt is that of a call with these messages, so the next turn continues this one
        as if it had been sampled.
        """
        index = await self._start_call()
        started_s = self._clock()
        *sent, plain_reply = self._plain_chat([*messages, reply])
        offered = without_strict(plain_messages(tools)) if tools else None
        self._check_length(index, num_characters([sent, offered, plain_reply]))
        prompt = self._session().prompt_for(sent, offered)
        is_foreign = vocabulary not in (None, self._template.vocabulary_hash)
        if token_ids is None or is_foreign:
            ids = given_reply_ids(self._template, sent, offered, plain_reply)
        else:
            ids = tuple(_token_ids(token_ids))
        max_length = self._max_completion_tokens(index, len(prompt.ids))
        if len(ids) > max_length:
            raise self.truncate(
                self.limits.reply_limit(len(prompt.ids)),
                f"turn {index}'s given reply has {len(ids)} tokens, of {max_length} left",
            )
        completion = Completion(tuple(prompt.ids), ids, (0.0,) * len(ids), "stop", 0)
        self._report_call(sent, offered)
        self._session().record(sent, offered, plain_reply, completion)
        turn = Turn(
            completion=completion,
            messages=sent,
            tools=offered,
            reply=plain_reply,
            agent_name=agent_name,
            target_tag=target_tag,
            trainable=is_trained and self.is_trainable(agent_name, target_tag),
            started_s=started_s,
            ended_s=self._clock(),
            notes=TurnNotes(
                is_given=True,
                continues=prompt.continues,
                reason=prompt.reason,
                hinted_prompt=self._hinted_prompt(prompt, sent, offered),
            ),
        )
        return self._record_turn(index, turn)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        agent_name: str = "default",
        target_tag: str = "default",
        overrides: SamplingOverrides | None = None,
    ) -> Turn:
        """Makes one call with token ids, without template and parsing."""
        index = await self._start_call()
        started_s = self._clock()
        trainable = self.is_trainable(agent_name, target_tag)
        adapter = self._adapter(agent_name, target_tag, trainable)
        ids = _token_ids(prompt_ids)
        grammar = self._grammars.grammar(ids, overrides and overrides.response_format)
        request = self._request(index, ids, overrides, trainable, adapter, grammar)
        self._report_call([], None)
        with self._in_flight_request(request.id):
            completion = await self._endpoint.generate(
                request.prompt_ids, request.sampling, request.id
            )
        completion, notes = self._received(request, completion)
        text = self._reader.plain_text(completion, notes.stopped_at)
        reply = {"role": "assistant", "content": text}
        turn = Turn(
            completion=completion,
            messages=[],
            tools=None,
            reply=reply,
            agent_name=agent_name,
            target_tag=target_tag,
            trainable=trainable,
            started_s=started_s,
            ended_s=self._clock(),
            notes=notes,
        )
        return self._record_turn(index, turn, CheckedReply(text, completion.finish_reason))

    def restore(self, turns: Mapping[int, Turn]) -> None:
        """Adds the turns of an earlier recorder of the same episode, by their numbers, so that the
        next call continues their ids. This recorder must have none yet."""
        assert not self._turns, f"episode {self.episode_id} has turns already"
        for number, turn in sorted(turns.items()):
            self._turns[number] = turn
            session = self._session(turn.notes.chat_template_kwargs)
            session.record(turn.messages, turn.tools, turn.reply, turn.completion)
        self._num_calls = 1 + max(turns, default=-1)

    def num_prompt_tokens(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> int:
        sent, offered = self._plain_chat(messages), self._offered(tools)
        length = num_characters([sent, offered])
        if length > self.limits.max_timeline * self._template.max_token_length:
            return length  # too many tokens in any tokenization: see _check_length
        return len(self._session().prompt_for(sent, offered).ids)

    def carry_reply(
        self,
        source: Sequence[dict[str, Any]],
        target: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        offered = self._offered(tools)
        session = self._session()
        session.carry_reply(self._plain_chat(source), self._plain_chat(target), offered)

    def _session(self, variables: Mapping[str, Any] | None = None) -> TokenSession:
        """Returns the conversations whose prompts were rendered with these variables of the chat
        template. A call with others begins a new branch, since earlier text may change."""
        key = json.dumps(variables, sort_keys=True) if variables else ""
        if key not in self._sessions:
            template = self._template.with_kwargs(variables or {})
            self._sessions[key] = TokenSession(template, self._check_drift)
        return self._sessions[key]

    def _plain_chat(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the messages as plain data; images are stored, and named by their keys."""
        # Before `plain_chat`, which would cut or spell out other types.
        images = self._template.images
        return plain_chat(messages if images is None else images.store.taken(messages))

    def _plain_tools(self, tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        return plain_messages(tools) if tools and not self.limits.force_disable_toolcalls else None

    def _offered(self, tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Returns the schemas that the model is shown."""
        return without_strict(self._plain_tools(tools))

    def _hinted_prompt(
        self,
        prompt: Prompt,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Returns the prompt that a teacher is shown where a conversation begins."""
        if self._hint is None or prompt.continues:
            return []
        session = TokenSession(self._template.with_kwargs(variables or {}))
        return session.prompt_for(with_hint(messages, self._hint), tools, prompt.opening).ids

    def _check_length(self, index: int, num_characters: int) -> None:
        """Raises `EpisodeTruncated` for a prompt that has too many tokens in any tokenization:
        tokenizing megabytes would block all other episodes."""
        most = self.limits.max_timeline
        # The first comparison is for speed: `max_token_length` walks the vocabulary once.
        if num_characters > most and num_characters > most * self._template.max_token_length:
            raise self.truncate(
                self.limits.timeline_limit,
                f"turn {index}'s prompt has {num_characters} characters; "
                f"an episode may hold {most} tokens",
            )

    @property
    def template(self) -> ChatTemplate:
        return self._template

    def _request(
        self,
        index: int,
        prompt_ids: list[int],
        overrides: SamplingOverrides | None,
        trainable: bool,
        adapter: str,
        grammar: str,
    ) -> _EndpointRequest:
        """Builds the request of call number `index`. Raises `EpisodeTruncated` if the limits leave
        no tokens for a reply."""
        accepted, refused = (overrides or SamplingOverrides()).split(trainable)
        max_completion_tokens = self._max_completion_tokens(index, len(prompt_ids))
        changed = accepted.settings | {
            "max_tokens": min(max_completion_tokens, accepted.max_tokens or max_completion_tokens),
            "seed": self._seed(index, accepted),
            "stop_token_ids": self.sampling.stop_token_ids or self._template.stop_token_ids,
            "adapter": adapter,
            "grammar": grammar,
        }
        notes = TurnNotes(
            sampling=accepted.settings,
            sampling_not_taken=refused,
            adapter=adapter,
            grammar=grammar,
        )
        request_id = f"{self.episode_id}/{index:04d}"
        sampling = replace(self.sampling, **changed)
        return _EndpointRequest(
            index, request_id, prompt_ids, sampling, max_completion_tokens, notes
        )

    def _adapter(self, agent_name: str, target_tag: str, trainable: bool) -> str:
        if self._adapters is None:
            return ""
        return self._adapters.for_call(agent_name, target_tag, trainable=trainable)

    @contextmanager
    def _in_flight_request(self, request_id: str) -> Iterator[None]:
        """Aborts the request if its caller is cancelled, or by `close` when the episode ends."""
        self._in_flight.add(request_id)
        try:
            with self._calling_endpoint():
                yield
        except asyncio.CancelledError:
            self._endpoint.abort(request_id)
            raise
        finally:
            self._in_flight.discard(request_id)

    def _received(
        self, request: _EndpointRequest, completion: Completion
    ) -> tuple[Completion, TurnNotes]:
        """Returns the completion up to its stop string, and the notes on its sampling."""
        if self._closed or completion.finish_reason == "abort":
            raise EpisodeClosed(f"episode {self.episode_id} is over")
        completion, stopped_at = self._reader.truncate_at_stop(completion, request.sampling.stop)
        versions = [list(piece) for piece in completion.versions]
        notes = replace(
            request.notes,
            stopped_at=stopped_at,
            versions=versions,
            old_keys=completion.num_old_keys,
        )
        if completion.finish_reason != "length":
            return completion, notes
        if request.sampling.max_tokens < request.max_completion_tokens:
            return completion, replace(notes, cut_by_agent=True)
        # A reply that only the limit of one reply cut leaves room for other calls, so the
        # episode continues. One that filled the timeline ends it, and still counts with its reward.
        limit = self.limits.reply_limit(len(request.prompt_ids))
        if limit is not Limit.MAX_RESPONSE_LENGTH_IN_ONE_TURN:
            most = self.limits.max_timeline
            self.truncate(limit, f"turn {request.index} filled the episode's {most} tokens")
        return completion, notes

    def _max_completion_tokens(self, index: int, prompt_length: int) -> int:
        """Returns how many tokens the reply may have; ends the episode if there are none."""
        truncation = self.limits.truncation_by(index, prompt_length)
        if truncation is not None:
            raise self.truncate(truncation.limit, truncation.detail)
        return self.limits.max_completion_tokens(prompt_length)

    @property
    def tokenizer(self) -> Any:
        return self._template.tokenizer

    def close(self) -> None:
        """Closes the episode, and aborts the calls that the workflow did not wait for."""
        super().close()
        for request_id in sorted(self._in_flight):
            self._endpoint.abort(request_id)

    def _forced_opening(self, offered: Sequence[dict[str, Any]], tool_choice: str | None) -> str:
        """Returns how a call that `tool_choice` asks for begins; "" if it asks for none."""
        if not offered or tool_choice in (None, "auto", "none"):
            return ""
        names = [tool["function"]["name"] for tool in offered]
        if tool_choice in ("required", "any"):
            return self._parser.opening(names[0] if len(names) == 1 else None)
        if tool_choice not in names:
            name = plain_text(tool_choice, 100)
            raise ValueError(f"tool_choice {name!r} is none of {', '.join(map(str, names))}")
        return self._parser.opening(tool_choice)


def _token_ids(prompt_ids: Sequence[int]) -> list[int]:
    """Returns the ids as ints; raises ValueError for one out of range."""
    ids = [operator.index(token_id) for token_id in prompt_ids]
    if ids and not 0 <= min(ids) <= max(ids) <= MAX_TOKEN_ID:
        raise ValueError(f"generate: token ids are 0 to {MAX_TOKEN_ID}")
    return ids


def given_reply_ids(
    template: ChatTemplate, messages: Sequence[Message], tools: Tools | None, reply: Message
) -> tuple[int, ...]:
    """Returns the ids of `reply` as the model itself would write it, with the end of its turn.

    The text is what the chat template writes for the message at the end of the conversation, so
    tool calls have the model's own format. It is tokenized apart from the prompt, as a sampled
    reply is. Raises DataError if the template does not begin a reply in the history as its
    generation prompt does (DeepSeek-R1, which drops the thinking), does not end it, or leaves out
    a part of it.
    """
    prompt = template.render_marked(messages, tools)
    whole = template.render_marked([*messages, reply], tools, add_generation_prompt=False)
    for part, less in _replies_with_less(reply):
        if whole == template.render_marked([*messages, less], tools, add_generation_prompt=False):
            raise DataError(
                f"the chat template leaves out the {part} of a reply, which would be trained "
                "without it: leave it out of the row, or give another ajet.model.chat_template",
                code=Code.ROW_NOT_TRAINABLE,
            )
    if not whole.startswith(prompt):
        raise DataError(
            "the chat template does not write an assistant message as its generation prompt begins "
            "one: give the reply's token_ids, or another ajet.model.chat_template",
            code=Code.ROW_NOT_TRAINABLE,
        )
    # The reply ends with the last special token that ends a turn; a newline may follow it.
    end = None
    control = template.find_control(whole, len(prompt))
    while control is not None:
        position, token_id = control
        if token_id in template.stop_token_ids:
            end = position + len(template.token_text(token_id))
        control = template.find_control(whole, position + 1)
    if end is None:
        raise DataError(
            "the chat template writes no token that ends a reply after an assistant message: give "
            "the reply's token_ids, or another ajet.model.chat_template",
            code=Code.ROW_NOT_TRAINABLE,
        )
    return tuple(template.encode(whole[len(prompt) : end]))


def _replies_with_less(reply: Message) -> Iterator[tuple[str, Message]]:
    """Yields each part that a template may leave out, and the reply without it: Llama 3.1's writes
    no content next to a call, gpt-oss' no second call, Qwen2.5's no thinking."""
    if calls := reply.get("tool_calls"):
        name = "last tool call" if len(calls) > 1 else "tool call"
        yield name, {**reply, "tool_calls": calls[:-1]}
        if shown_text(reply.get("content")).strip():
            yield "content (next to a tool call)", {**reply, "content": ""}
    if (reply.get("reasoning_content") or "").strip():
        yield "reasoning_content", {**reply, "reasoning_content": None}
