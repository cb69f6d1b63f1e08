"""The model of an agent in a workflow. Its calls are recorded, and trained on.

    agent = ReActAgent(model=model_tuner, …)                     # AgentScope: the tuner itself
    agent = ReActAgent(model=model_tuner.as_agentscope_model(agent_name="solver"), …)
    agent = create_agent(model_tuner.as_langchain_model(), tools=[…])         # LangChain, LangGraph
    client = model_tuner.as_raw_openai_sdk_client()                           # OpenAI's own client
    base_url, api_key = model_tuner.as_oai_baseurl_apikey()                   # any process: HTTP
    reply = await model_tuner.chat([{"role": "user", "content": "2+2?"}])     # no framework
    completion = await model_tuner.generate(prompt_ids, max_tokens=16)        # tokens, no template
    prompt_ids = model_tuner.prompt_ids(messages, tools)                      # and .encode, .decode

The recorder behind it samples, records, and enforces the limits.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ajet.core.task.workflow_task import LARGEST_REWARD
from ajet.core.text.plain_value import plain_text
from ajet.core.trajectory.limits import Limit
from ajet.core.workflow.bridge import run_on_loop
from ajet.core.workflow.chat_reply import ChatReply

if TYPE_CHECKING:
    from agentscope.model import ChatModelBase
    from langchain_core.language_models import BaseChatModel
    from openai import AsyncOpenAI, OpenAI
    from pydantic import BaseModel

    from ajet.core.inference.endpoint import Completion
    from ajet.core.task.task import Task
    from ajet.core.trajectory.base_recorder import BaseRecorder
    from ajet.core.workflow.compaction import Compaction, Conversations
    from ajet.core.workflow.gateway.gateway import Address, Gateway
    from ajet.core.workflow.gateway.keys import Grant

MAX_REASON_LENGTH = 1000


class ModelTuner:
    """The trained model of one episode, for one of its agents.

    `Workflow.trainable_targets` refers to `agent_name` and `target_tag`. `config` is the whole
    config tree, with the user's sections.
    """

    stream = False
    model_name = "ajet"

    def __init__(
        self,
        recorder: BaseRecorder,
        *,
        agent_name: str = "default",
        target_tag: str = "default",
        config: Any = None,
        gateway: Gateway | None = None,
    ) -> None:
        self.agent_name = agent_name
        self.target_tag = target_tag
        self.config = config
        self._recorder = recorder
        self._gateway = gateway
        self._own_gateway: Gateway | None = None  # made here without a run's gateway; closed here
        self._keys: list[str] = []
        self._grants: dict[tuple[str, str], Grant] = {}
        self._response_numbers = itertools.count()  # one count for all clients
        self._agentscope: ChatModelBase | None = None
        self._models: dict[str, ChatModelBase] = {}
        self.own_task: Task | None = None

    async def __call__(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | None = None,
        structured_model: type[BaseModel] | None = None,
        **sampling: Any,
    ) -> Any:
        """Calls the model as an AgentScope model does, and returns a `ChatResponse`."""
        if self._agentscope is None:
            self._agentscope = self.as_agentscope_model()
        return await self._agentscope(messages, tools, tool_choice, structured_model, **sampling)

    def as_agentscope_model(
        self,
        agent_name: str | None = None,
        target_tag: str | None = None,
        debug_model: ChatModelBase | None = None,
        *,
        stream: bool = False,
    ) -> ChatModelBase:
        """Returns an AgentScope chat model. If the workflow's `trainable_targets` leave this agent
        out, `debug_model` is returned instead, and its calls are not recorded."""
        from ajet.core.user_code.importing import require_package

        require_package("agentscope", wanted_by="as_agentscope_model()")
        from ajet.core.workflow.adapters.agentscope import AgentScopeModel

        agent_name, target_tag = agent_name or self.agent_name, target_tag or self.target_tag
        if debug_model is not None and not self._recorder.is_trainable(agent_name, target_tag):
            return debug_model
        return AgentScopeModel(
            self._recorder,
            conversations=self._conversations(),
            agent_name=agent_name,
            target_tag=target_tag,
            stream=stream,
        )

    def register_model(
        self, role: str, default_model: ChatModelBase | None = None
    ) -> ChatModelBase:
        """Returns the AgentScope chat model of a role, and keeps it for `get_model`. If the
        workflow's `trainable_targets` leave the role out, it is `default_model`."""
        self._models[role] = self.as_agentscope_model(role, role, default_model)
        return self._models[role]

    def get_model(self, role: str) -> ChatModelBase:
        """Returns the model that `register_model` gave for this role."""
        if role not in self._models:
            raise ValueError(
                f"get_model: no role {role!r} is registered; there are "
                f"{', '.join(self._models) or 'none'}: call register_model(role) first"
            )
        return self._models[role]

    def get_context_tracker(self) -> ContextTracker:
        """Returns the object that AgentJet's workflows ask whether they may continue."""
        return ContextTracker(self._recorder)

    async def chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        agent_name: str | None = None,
        target_tag: str | None = None,
        tool_choice: str | None = None,
        **sampling: Any,
    ) -> ChatReply:
        """Returns the model's reply as an assistant message in OpenAI's form.

        Tool calls that could not be read are in `content` as written, and in the key
        `malformed_tool_calls`, which only such messages have.
        """
        from ajet.core.trajectory.base_recorder import SamplingOverrides

        call = self._recorder.chat(
            messages,
            tools,
            agent_name=agent_name or self.agent_name,
            target_tag=target_tag or self.target_tag,
            tool_choice=tool_choice,
            overrides=SamplingOverrides(**sampling),
        )
        turn = await run_on_loop(self._recorder.loop, call)
        # The agent may edit its reply; the record must not change.
        reply = ChatReply(copy.deepcopy(turn.reply), turn.completion)
        if malformed := turn.notes.malformed_calls:
            reply["malformed_tool_calls"] = list(malformed)
        return reply

    async def give(
        self,
        messages: list[dict[str, Any]],
        reply: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
        *,
        token_ids: Sequence[int] | None = None,
        vocabulary: str | None = None,
        is_trained: bool = True,
    ) -> Completion:
        """Records a given reply, an assistant message in OpenAI's form, instead of sampling one.
        Its tokens are trained by their cross-entropy, or are only context without `is_trained`.
        `token_ids` are the reply's, if known, in the vocabulary with the hash `vocabulary`."""
        call = self._recorder.give(
            messages,
            reply,
            tools,
            token_ids=token_ids,
            vocabulary=vocabulary,
            is_trained=is_trained,
            agent_name=self.agent_name,
            target_tag=self.target_tag,
        )
        turn = await run_on_loop(self._recorder.loop, call)
        return turn.completion

    def compaction(self) -> Compaction:
        """Returns an object that keeps one conversation of this agent within the context, as
        `ajet.rollout.compaction` configures it."""
        from ajet.core.workflow.compaction import Compaction

        settings = self.config.ajet.rollout.compaction
        return Compaction(self._recorder, settings, self.agent_name, self.target_tag)

    async def generate(self, prompt_ids: Sequence[int], **sampling: Any) -> Completion:
        """Continues token ids without a chat template. The call is recorded like any other."""
        from ajet.core.trajectory.base_recorder import SamplingOverrides

        call = self._recorder.generate(
            prompt_ids,
            agent_name=self.agent_name,
            target_tag=self.target_tag,
            overrides=SamplingOverrides(**sampling),
        )
        turn = await run_on_loop(self._recorder.loop, call)
        return turn.completion

    def credit_turn(self, reward: float | None = None, state_key: str | None = None) -> None:
        """Sets the reward of this agent's last call, and the state of the environment in which it
        was made, for estimators that credit single turns. None keeps a value."""
        if reward is not None and not abs(reward) <= LARGEST_REWARD:
            raise ValueError(f"credit_turn: the reward is {reward}; give a finite number")
        if not isinstance(state_key, str | None):
            type_name = type(state_key).__name__
            raise TypeError(f"credit_turn: the state key is of type {type_name}; give a text")
        reward = None if reward is None else float(reward)
        self._recorder.credit_turn(self.agent_name, self.target_tag, reward, state_key)

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """Returns the token ids of a text. With `special_tokens` the spelling of a special token
        becomes that token; without, it is plain text, as in a message."""
        template = self._recorder.template
        return template.encode(text if special_tokens else template.marked(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        return self._recorder.template.decode(list(token_ids))

    def prompt_ids(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """Returns the token ids of a conversation as the chat template writes it, followed by the
        generation prompt."""
        return self._recorder.template.prompt_ids(messages, tools)

    def as_langchain_model(
        self,
        agent_name: str | None = None,
        target_tag: str | None = None,
        debug_model: BaseChatModel | None = None,
    ) -> BaseChatModel:
        """Returns a LangChain chat model, for LangChain's agents and LangGraph's graphs. If the
        workflow's `trainable_targets` leave this agent out, `debug_model` is returned instead."""
        from ajet.core.user_code.importing import require_package

        require_package("langchain_core", wanted_by="as_langchain_model()")
        from ajet.core.workflow.adapters.langchain import LangChainModel

        agent_name, target_tag = agent_name or self.agent_name, target_tag or self.target_tag
        if debug_model is not None and not self._recorder.is_trainable(agent_name, target_tag):
            return debug_model
        return LangChainModel(
            recorder=self._recorder,
            conversations=self._conversations(),
            agent_name=agent_name,
            target_tag=target_tag,
        )

    def _conversations(self) -> Conversations | None:
        """Returns what compacts a framework's conversations, if the config asks for it."""
        from ajet.core.workflow.compaction import Conversations

        settings = None if self.config is None else self.config.ajet.rollout.compaction
        if settings is None or not settings.enable:
            return None
        return Conversations(self._recorder, settings)

    @property
    def shows_tools(self) -> bool:
        """Tells whether the model sees the tools passed to `chat`: whether its chat template writes
        them. A model behind an API sees them."""
        return self._recorder.shows_tools

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer; None for a model behind an API."""
        return self._recorder.tokenizer

    @property
    def sampling_params(self) -> dict[str, float | int]:
        """The run's sampling parameters: temperature, top_p, top_k and max_tokens."""
        sampling = self._recorder.sampling
        names = ("temperature", "top_p", "top_k", "max_tokens")
        return {name: getattr(sampling, name) for name in names}

    @property
    def completions(self) -> list[Completion]:
        """Returns prompt ids and sampled ids of each call of the episode so far."""
        return [turn.completion for turn in self._recorder.turns]

    @property
    def refused_request(self) -> str | None:
        """The gateway's last answer if that was a refusal, as "400, unknown field …", else None."""
        return self._recorder.refused_request

    def tighten_limits(
        self, max_steps: int | None = None, max_model_len: int | None = None
    ) -> None:
        """Lowers this episode's limits of calls, and of tokens in a prompt and its reply. The call
        that exceeds one ends the episode as truncated."""
        self._recorder.tighten_limits(max_steps, max_model_len)

    def truncate(self, reason: str, *, limit: Limit = Limit.WORKFLOW) -> None:
        """Ends the episode as truncated, for a workflow that has limits too: further calls are
        refused, and its output is judged. `reason` is one line for people; metrics and selections
        read `limit`."""
        self._recorder.truncate(limit, plain_text(reason, MAX_REASON_LENGTH))

    def set_task(self, task: Task) -> None:
        """Replaces the task of the episode for the judge and the record, for a workflow that gets
        its task from elsewhere."""
        self.own_task = task

    def pause_deadline(self) -> AbstractContextManager[None]:
        """Returns a context whose seconds do not count towards `ajet.rollout.episode_timeout_s`,
        for waiting that the agent is not responsible for."""
        return self._recorder.pausing_deadline()

    def as_raw_openai_sdk_client(
        self,
        agent_name: str | None = None,
        target_tag: str | None = None,
        debug_model: AsyncOpenAI | OpenAI | str | None = None,
        *,
        sync: bool = False,
    ) -> Any:
        """Returns an `openai.AsyncOpenAI`, or with `sync` an `openai.OpenAI` for `def execute`;
        calls may leave out `model=`. If `trainable_targets` leave this agent out, the client
        `debug_model` is returned instead; a name is a model at OPENAI_BASE_URL."""
        from ajet.core.workflow.adapters import openai

        grant = self._grant(agent_name, target_tag)
        if isinstance(debug_model, str) and not self._is_trained(grant):
            make_client = openai.other_sync_client if sync else openai.other_async_client
            return make_client(debug_model)
        if debug_model is not None and not self._is_trained(grant):
            return debug_model
        make = openai.sync_client if sync else openai.async_client
        return make(self._open_gateway(), grant)

    def as_oai_baseurl_apikey(
        self,
        agent_name: str | None = None,
        target_tag: str | None = None,
        debug_model: tuple[str, str] | None = None,
    ) -> Address:
        """Returns the base URL and the key of an OpenAI-compatible server on this machine, valid
        until the episode ends. If `trainable_targets` leave this agent out, the pair `debug_model`
        is returned instead."""
        from ajet.core.workflow.gateway.gateway import Address

        grant = self._grant(agent_name, target_tag)
        if debug_model is not None and not self._is_trained(grant):
            return Address(*debug_model)
        # `close` has revoked the keys by then: a later one would never be revoked.
        self._recorder.check_open()
        address = self._open_gateway().open(grant)
        self._keys.append(address.api_key)
        return address

    def close(self) -> None:
        """Revokes the episode's keys."""
        for key in self._keys:
            self._open_gateway().keys.revoke(key)
        if self._own_gateway is not None:
            self._own_gateway.close()

    def _grant(self, agent_name: str | None, target_tag: str | None) -> Grant:
        from ajet.core.workflow.gateway.keys import Grant

        names = agent_name or self.agent_name, target_tag or self.target_tag
        # One grant for each agent: it holds the conversations that a later request may refer to.
        if names not in self._grants:
            self._grants[names] = Grant(
                self._recorder, *names, response_numbers=self._response_numbers
            )
        return self._grants[names]

    def _is_trained(self, grant: Grant) -> bool:
        return self._recorder.is_trainable(grant.agent_name, grant.target_tag)

    def _open_gateway(self) -> Gateway:
        from ajet.core.workflow.gateway.gateway import Gateway

        if self._gateway is None:
            self._gateway = self._own_gateway = Gateway()
        return self._gateway


AjetTuner = ModelTuner


class ContextTracker:
    """Tells an AgentJet workflow whether its episode has reached a limit."""

    def __init__(self, recorder: BaseRecorder) -> None:
        self._recorder = recorder

    @property
    def context_overflow(self) -> bool:
        """Returns True once a limit of tokens or calls is reached: no further call is answered."""
        return self._recorder.truncation is not None
