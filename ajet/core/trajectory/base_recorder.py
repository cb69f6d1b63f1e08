"""The base of both recorders: numbers an episode's calls and stores their turns.

BaseRecorder
├── EpisodeRecorder    token ids from a `ModelEndpoint`: training, evaluation (recorder.py)
└── ChatRecorder       messages from a `ChatEndpoint`: evaluation only  (chat_recorder.py)
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Self

from ajet.core import seeding
from ajet.core.inference.endpoint import ContextOverflow, SamplingParams
from ajet.core.inference.grammar import response_format
from ajet.core.model.tokenizer import RESERVED_VARIABLES
from ajet.core.text.error_text import first_line, message_of
from ajet.core.text.plain_value import plain_text, without_surrogates
from ajet.core.trajectory.limits import (
    EndpointFault,
    EpisodeClosed,
    EpisodeLimits,
    EpisodeTruncated,
    Limit,
    Truncation,
)
from ajet.core.trajectory.malformed import CheckedReply, malformed
from ajet.core.trajectory.plain_trajectory import MAX_NAME_LENGTH, plain_turn
from ajet.core.trajectory.turn import Turn
from ajet.core.user_code.activity import Activity

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate


@dataclass(slots=True)
class SamplingOverrides:
    """Holds what an agent asks for in one call; None keeps the run's.

    A trained agent cannot change `temperature`, `top_p` or `top_k`: the update assumes that tokens
    were sampled from the policy at the run's settings, so any others would bias every ratio. The
    reply ends before the first of the texts in `stop`. `seed` is mixed into the seed of the call:
    on its own it would make all members of a group sample the same tokens.
    `chat_template_kwargs` are variables of the chat template, such as `enable_thinking`: they
    change the prompt and not how it is continued, so trained agents may set them.
    `response_format` is the form of the reply (inference/grammar.py). Trained agents may set it, as
    the update restricts the policy in the same way.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Checks the values: an engine computes many requests together, and an invalid value in one
        of them would fail them all."""
        self.temperature = _number_to("temperature", self.temperature, MAX_TEMPERATURE)
        if self.temperature and self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature is {self.temperature:g}; give 0, or {MIN_TEMPERATURE:g} and more"
            )
        self.top_p = _number_to("top_p", self.top_p, 1.0)
        self.top_k = _integer_in("top_k", self.top_k, -1, MAX_COUNT)
        self.seed = _integer_in("seed", self.seed, -MAX_SEED, MAX_SEED)
        if self.stop is not None:
            self.stop = _stop_texts(self.stop)
        self.max_tokens = _integer_in("max_tokens", self.max_tokens, 1, MAX_COUNT)
        if self.chat_template_kwargs is not None:
            self.chat_template_kwargs = _template_kwargs(self.chat_template_kwargs)
        if self.response_format is not None:
            self.response_format = response_format(self.response_format)

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the sampling settings that are not None, by name."""
        pairs = ((n, getattr(self, n)) for n in self.__slots__ if n not in NOT_SAMPLING)
        return {name: value for name, value in pairs if value is not None}

    def split(self, trainable: bool) -> tuple[SamplingOverrides, dict[str, Any]]:
        """Returns the accepted settings, and those that are refused because the agent is
        trained: all that change the distribution of a token."""
        if not trainable:
            return self, {}
        accepted = replace(self, temperature=None, top_p=None, top_k=None)
        refused = {n: value for n, value in self.settings.items() if n not in accepted.settings}
        return accepted, refused


NOT_SAMPLING = ("chat_template_kwargs", "response_format")
"""The fields of `SamplingOverrides` that are no parameters of sampling."""
MAX_STATE_KEY_LENGTH = 100_000
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-10, 1000.0  # below, divided logits are not finite
MAX_COUNT, MAX_SEED = 2**31 - 1, 2**64 - 1
MAX_STOPS, MAX_STOP_LENGTH = 64, 1000
MAX_KWARGS_LENGTH = 10_000


class CallObserver(Protocol):
    """Follows the calls of an episode, on the recorder's event loop."""

    def called(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
    ) -> None:
        """Reports a call, right before the endpoint gets it."""
        ...

    def answered(self, number: int, turn: Turn) -> None:
        """Reports the recorded turn and its number."""
        ...


class BaseRecorder:
    """Gives an episode access to the model and records its turns.

    All calls are made on `loop`, the event loop that the recorder was made on (other threads go
    through workflow/bridge.py). `seed_path` is the episode's path in the tree of seeds. The call
    that would exceed a limit raises `EpisodeTruncated`, and so does every later call.
    """

    shows_tokens = False
    """Whether the turns have token ids and log-probabilities."""

    def __init__(
        self,
        *,
        limits: EpisodeLimits,
        sampling: SamplingParams,
        episode_id: str,
        seed_path: Sequence[int | str],
        trainable_targets: Sequence[str] | str | None = None,
        observer: CallObserver | None = None,
    ) -> None:
        self.episode_id = episode_id
        self.loop = running_loop()
        self.activity = Activity(episode_id)
        self.truncation: Truncation | None = None
        self.endpoint_fault: str | None = None
        self.refused_request: str | None = None  # why the gateway refused the episode's last one
        # Called, perhaps by another thread, when the workflow waits for the model in a way that
        # blocks the event loop.
        self.on_blocking: Callable[[], None] = lambda: None
        self.limits = limits  # `tighten_limits` lowers them
        self._tightened: set[Limit] = set()
        self.sampling = sampling  # the run's, which a call's overrides change
        self._seed_path = tuple(seed_path)
        self._observer = observer
        if isinstance(trainable_targets, str):
            trainable_targets = [trainable_targets]
        self._targets = None if trainable_targets is None else frozenset(trainable_targets)
        self._turns: dict[int, Turn] = {}  # by number; calls that are under way have none yet
        self._num_calls = 0  # calls that have begun
        self._closed = False
        self._stop_after: int | None = None
        self._on_stop: Callable[[], None] = lambda: None
        self._created_s = time.perf_counter()
        self._computes_in_waves = False
        self._num_in_flight, self._busy_since_s, self._endpoint_s = 0, 0.0, 0.0
        self._pause_s = 0.0
        self._paused_since_s: float | None = None

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
        """Makes one call with chat messages; `is_summary` notes that it asks for a summary."""
        raise NotImplementedError

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
        """Records a turn whose reply is given."""
        raise NotImplementedError

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        agent_name: str = "default",
        target_tag: str = "default",
        overrides: SamplingOverrides | None = None,
    ) -> Turn:
        """Makes one call with token ids."""
        raise NotImplementedError

    @property
    def template(self) -> ChatTemplate:
        """Returns the model's chat template, for agents that count or write tokens themselves."""
        raise NotImplementedError

    @property
    def num_calls_left(self) -> int:
        """Returns how many further calls the episode may make."""
        return self.limits.max_steps - self._num_calls

    def num_prompt_tokens(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> int:
        """Returns how many tokens the prompt of a call with these messages has."""
        raise NotImplementedError

    def carry_reply(
        self,
        source: Sequence[dict[str, Any]],
        target: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        """Makes calls that continue `target`, another conversation that ends with the reply of
        `source`, use the recorded ids of that reply."""
        raise NotImplementedError

    @property
    def shows_tools(self) -> bool:
        """Returns whether the model sees tools: whether its chat template writes them."""
        return "tools" in self.template.text

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Returns the finished turns in the order in which their calls began."""
        return tuple(self._turns[index] for index in sorted(self._turns))

    @property
    def wave_wait_s(self) -> float:
        """Returns the seconds spent waiting for an endpoint that computes in waves. They do not
        count towards the deadline: one episode that hangs must not use up the others' time."""
        current_s = self._clock() - self._busy_since_s if self._num_in_flight else 0.0
        return self._endpoint_s + current_s if self._computes_in_waves else 0.0

    @property
    def paused_s(self) -> float:
        """Returns the seconds spent in `pausing_deadline`."""
        since_s = self._paused_since_s
        return self._pause_s + (0.0 if since_s is None else self._clock() - since_s)

    @contextmanager
    def pausing_deadline(self) -> Iterator[None]:
        """Surrounds waiting that does not count towards the episode's deadline."""
        self._paused_since_s = self._clock()
        try:
            yield
        finally:
            self._pause_s, self._paused_since_s = self.paused_s, None

    @property
    def tokenizer(self) -> Any:
        """Returns the model's tokenizer, or None if the endpoint takes only text."""
        return None

    def tighten_limits(
        self, max_steps: int | None = None, max_model_len: int | None = None
    ) -> None:
        """Lowers this episode's limits of calls and of tokens; never raises them."""
        if max_steps is not None and max_steps < self.limits.max_steps:
            self.limits = replace(self.limits, max_steps=max_steps)
            self._tightened.add(Limit.MAX_STEPS)
        if max_model_len is not None and max_model_len < self.limits.max_model_len:
            self.limits = replace(self.limits, max_model_len=max_model_len)
            self._tightened.add(Limit.MAX_MODEL_LEN)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns the recorder itself: frameworks copy their agents together with the model, and
        all copies must record here."""
        return self

    def is_trainable(self, agent_name: str, target_tag: str) -> bool:
        return self._targets is None or not self._targets.isdisjoint((agent_name, target_tag))

    def check_open(self) -> None:
        """Raises `EpisodeClosed` once the episode is over."""
        if self._closed:
            raise EpisodeClosed(f"episode {self.episode_id} is over")

    def check_calls_left(self, num_calls: int) -> None:
        """Raises `EpisodeTruncated` unless `num_calls` calls are left; one call checks itself."""
        most = self.limits.max_steps
        if num_calls > 1 and self._num_calls + num_calls > most:
            raise self.truncate(
                Limit.MAX_STEPS, f"{num_calls} more calls pass the episode's {most} (max_steps)"
            )

    def credit_turn(
        self, agent_name: str, target_tag: str, reward: float | None, state_key: str | None
    ) -> None:
        """Sets the reward and the state key of this agent's last turn; None keeps a value."""
        names = plain_text(agent_name, MAX_NAME_LENGTH), plain_text(target_tag, MAX_NAME_LENGTH)
        turns = self._turns.items()
        of_agent = [index for index, t in turns if (t.agent_name, t.target_tag) == names]
        if not of_agent:
            raise ValueError(f"agent {agent_name!r} has made no call that could be credited")
        if state_key is not None and len(state_key) > MAX_STATE_KEY_LENGTH:
            raise ValueError(
                f"credit_turn: the state key has {len(state_key)} characters; "
                f"give at most {MAX_STATE_KEY_LENGTH}, a hash for example"
            )
        key = None if state_key is None else without_surrogates(str.__str__(state_key))
        index = max(of_agent)
        turn = self._turns[index]
        self._turns[index] = replace(
            turn,
            reward=turn.reward if reward is None else reward,
            state_key=turn.state_key if key is None else key,
        )

    def stop_after(self, num_calls: int | None, on_stop: Callable[[], None]) -> None:
        """Closes the episode once `num_calls` calls have ended and none is under way, then calls
        `on_stop`. None stands for the calls that have ended or are under way now."""
        if num_calls is None:
            num_calls = len(self._turns) + self._num_in_flight
        self._stop_after, self._on_stop = num_calls, on_stop
        self._stop_if_due()

    def _stop_if_due(self) -> None:
        due = self._stop_after is not None and len(self._turns) >= self._stop_after
        if due and not self._num_in_flight and not self._closed:
            self._closed = True  # not `close`: no request is under way
            self._on_stop()

    def close(self) -> None:
        """Ends the episode: every later call fails, and the recorded turns stay."""
        self._closed = True

    async def _start_call(self) -> int:
        """Returns the number of this call; numbers follow the order in which calls begin."""
        if self._closed or self.truncation is not None:
            await asyncio.sleep(0)  # an agent that retries forever must not block the loop
            self.check_open()
            raise EpisodeTruncated(str(self.truncation))
        index = self._num_calls
        if index >= self.limits.max_steps:
            raise self.truncate(
                Limit.MAX_STEPS,
                f"the episode used its {self.limits.max_steps} calls (max_steps)",
            )
        self._num_calls += 1
        return index

    def _seed(self, index: int, overrides: SamplingOverrides) -> int:
        """Returns the seed of one call; an agent's seed is one more part of the path."""
        suffix = () if overrides.seed is None else ("own", overrides.seed)
        return seeding.derive(*self._seed_path, index, *suffix)

    def truncate(self, limit: Limit, detail: str) -> EpisodeTruncated:
        """Ends the episode as truncated by this limit, unless another one did so before, and
        returns the error to raise."""
        if self.truncation is None:
            # The workflow lowered this limit, so a larger value in the config would not help.
            limit = Limit.WORKFLOW if limit in self._tightened else limit
            self.truncation = Truncation(limit, detail)
        return EpisodeTruncated(detail)

    @contextmanager
    def _calling_endpoint(self) -> Iterator[None]:
        """Surrounds a call of the endpoint: measures it, and turns its failure into the
        episode's."""
        if not self._num_in_flight:
            self._busy_since_s = self._clock()
        self._num_in_flight += 1
        try:
            with self.activity.calling_model():
                yield
            self.endpoint_fault = None  # the agent may have caught an earlier one and retried
        except ContextOverflow as error:
            detail = str(error) or "the prompt fills the model's context"
            raise self.truncate(Limit.ENGINE, detail) from error
        except Exception as error:
            self.endpoint_fault = f"{type(error).__name__}: {first_line(message_of(error))}"
            raise EndpointFault(self.endpoint_fault) from error
        finally:
            self._num_in_flight -= 1
            if not self._num_in_flight:
                self._endpoint_s += self._clock() - self._busy_since_s

    def _report_call(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
    ) -> None:
        if self._observer is not None:
            self._observer.called(messages, tools)

    def _record_turn(self, index: int, turn: Turn, reply: CheckedReply | None = None) -> Turn:
        """Records the turn as plain data, with the run's checks that the reply fails; the policy
        may end the episode."""
        # Stored before it is checked, so that sampled tokens are kept even if a check raises.
        turn = self._turns[index] = plain_turn(turn)
        policy = self.limits.malformed
        failed = malformed(reply, policy.checks) if reply is not None and turn.trainable else {}
        if failed:
            turn = self._turns[index] = replace(turn, notes=replace(turn.notes, malformed=failed))
        if failed and policy.ends_episode:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
            # It replaces a limit of tokens that this reply reached: the malformed reply decides
            # the episode's reward.
            self.truncation = Truncation(
                Limit.MALFORMED_REPLY, f"turn {index}'s reply is malformed ({reasons})"
            )
        if self._observer is not None:
            self._observer.answered(index, turn)
        self._stop_if_due()
        return turn

    def _clock(self) -> float:
        """Returns the seconds since the recorder was made."""
        return time.perf_counter() - self._created_s


def _number_to(name: str, value: Any, high: float) -> float | None:
    """Returns a sampling setting as a float or None; raises ValueError unless it is a number from
    0 to `high`."""
    if value is None:
        return None
    number = math.nan
    with suppress(TypeError, ValueError, OverflowError):
        number = math.nan if isinstance(value, str) else float(value)
    if not 0 <= number <= high:
        raise ValueError(f"{name} is {plain_text(value, 40)}; give a number from 0 to {high:g}")
    return number


def _integer_in(name: str, value: Any, low: int, high: int) -> int | None:
    """Returns a sampling setting as an int or None; raises ValueError unless it is a whole number
    within the bounds. 3.0 is one."""
    if value is None:
        return None
    number = low - 1
    with suppress(TypeError, ValueError, OverflowError):
        number = int(value) if value == int(value) else number
    if not low <= number <= high:
        raise ValueError(
            f"{name} is {plain_text(value, 40)}; give a whole number from {low} to {high}"
        )
    return number


def _stop_texts(stop: Any) -> tuple[str, ...] | None:
    """Returns the texts that end a reply; raises ValueError for anything but short texts, or too
    many."""
    texts = (stop,) if isinstance(stop, str) else tuple(islice(stop, MAX_STOPS + 1))
    if not all(isinstance(text, str) and len(text) <= MAX_STOP_LENGTH for text in texts):
        raise ValueError(f"an entry of stop is not a text of at most {MAX_STOP_LENGTH} characters")
    if len(texts) > MAX_STOPS:
        raise ValueError(f"stop has more than {MAX_STOPS} texts")
    return tuple(without_surrogates(str.__str__(text)) for text in texts if text) or None


def _template_kwargs(kwargs: Any) -> dict[str, Any]:
    """Returns a copy of the template's variables as JSON has them; raises ValueError for others,
    and for a name that ajet or transformers passes itself."""
    try:
        text = json.dumps(kwargs, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"chat_template_kwargs is not JSON: {message_of(error)}") from error
    copied = json.loads(text)
    if not isinstance(copied, dict) or len(text) > MAX_KWARGS_LENGTH:
        raise ValueError(f"chat_template_kwargs is not an object of {MAX_KWARGS_LENGTH} characters")
    if taken := sorted(RESERVED_VARIABLES & copied.keys()):
        raise ValueError(f"chat_template_kwargs.{taken[0]}: the request itself says this")
    return copied


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Returns the event loop of this thread, if one runs."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
