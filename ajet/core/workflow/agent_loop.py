"""Runs agent loops in verl's form: classes with `async run(sampling_params, **kwargs)`.

    @register("my_agent")
    class MyAgentLoop(AgentLoopBase):
        @classmethod
        def init_class(cls, config, tokenizer, **kwargs):           # once in a process
            cls.tools = […]

        async def run(self, sampling_params, **kwargs):             # an episode; kwargs: its row
            prompt_ids = await self.apply_chat_template(list(kwargs["raw_prompt"]))
            output = await self.server_manager.generate(
                request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling_params
            )
            return AgentLoopOutput(
                prompt_ids=prompt_ids,
                response_ids=output.token_ids,
                response_mask=[1] * len(output.token_ids),
                metrics={},
            )

A loop is made for each episode, with those of verl's arguments that its constructor takes; classes
that derive from verl's own base work too. Training uses the recorded calls: a mask that marks a
token which the model did not sample is an error, and sampled tokens that an output leaves out are
trained anyway, with a warning and a count (`sampled_tokens_left_out`).
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from loguru import logger

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.user_code.importing import line_of
from ajet.core.user_code.signatures import accepted_arguments, required_names
from ajet.core.workflow.graph import conversation
from ajet.core.workflow.workflow import Workflow

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.core.config import AjetConfig
    from ajet.core.inference.endpoint import Completion
    from ajet.core.workflow.loop_server import ServerManager
    from ajet.core.workflow.tuner import ModelTuner

ARGUMENTS = (
    "trainer_config",
    "server_manager",
    "tokenizer",
    "processor",
    "dataset_cls",
    "data_config",
    "hf_model_type",
    "tools",
)
FORMER_ARGUMENTS = ("config", "dataset_config")
"""Names in older versions of verl, passed to a constructor that has them."""
LEFT_OUT = "sampled_tokens_left_out"

_initialized: WeakSet[type] = WeakSet()
_warned: WeakSet[type] = WeakSet()


@dataclass(slots=True)
class AgentLoopMetrics:
    """verl's durations of an episode, which ajet does not read."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


@dataclass(slots=True, kw_only=True)
class AgentLoopOutput:
    """The result of a loop's `run`. With `reward_score=None` the judge gives the reward, and finds
    `extra_fields` in the output's metadata; `final_answer` is the last reply by default."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics | dict[str, Any] = field(default_factory=dict)
    extra_fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigWrap:
    """A config, as verl passes it to a constructor."""

    config: DictConfig


@dataclass(frozen=True, slots=True)
class ToolListWrap:
    """The tools, as verl passes them to a constructor; always empty, see `check_config`."""

    tools: list[Any] = field(default_factory=list)


class AgentLoopBase:
    """The base of agent loops. A class with verl's `run` works without deriving from it."""

    _class_initialized: ClassVar[bool] = False

    def __init__(
        self,
        trainer_config: ConfigWrap | DictConfig,
        server_manager: ServerManager,
        tokenizer: Any,
        processor: Any = None,
        dataset_cls: Any = None,
        data_config: ConfigWrap | None = None,
        **_others: Any,
    ) -> None:
        wrapped = isinstance(trainer_config, ConfigWrap)
        self.config: Any = trainer_config.config if wrapped else trainer_config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.dataset_cls = dataset_cls
        self.data_config = self.config.data if data_config is None else data_config.config
        self.apply_chat_template_kwargs = dict(self.data_config.apply_chat_template_kwargs)
        self.loop = asyncio.get_running_loop()

    @classmethod
    def init_class(cls, config: DictConfig, tokenizer: Any, **_others: Any) -> None:
        """Prepares the class; called once in a process, before its first object is made."""
        cls._class_initialized = True

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Runs the agent on one row."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    async def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        images: Any = None,
        videos: Any = None,
        remove_system_prompt: bool = False,
    ) -> list[int]:
        """Returns the ids of the messages and the generation prompt. `remove_system_prompt` is for
        messages that follow others: templates write a default system prompt before them."""
        if images or videos:
            raise TypeError("apply_chat_template: images and videos are not supported")
        ids = self._rendered(messages, tools=tools, add_generation_prompt=True)
        return ids[len(self._system_prompt()) :] if remove_system_prompt else ids

    async def ct_build_initial_tokens(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **_: Any
    ) -> list[int]:
        """The name of `apply_chat_template` in verl 0.9."""
        return await self.apply_chat_template(messages, tools)

    async def process_vision_info(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Returns an empty dict. Raises TypeError for messages with images."""
        blocks = [block for message in messages for block in _blocks(message.get("content"))]
        if kinds := {str(block.get("type")) for block in blocks} - {"text"}:
            raise TypeError(f"messages hold {', '.join(sorted(kinds))}: only text is supported")
        return {}

    process_multi_modal_info = process_vision_info

    def _system_prompt(self) -> list[int]:
        """Returns the ids that the template writes before the first message."""
        # With p ids before and m ids for each message, the two lengths are p + m and p + 2m.
        turn = {"role": "user", "content": ""}
        once, twice = self._rendered([turn]), self._rendered([turn, turn])
        return once[: max(0, 2 * len(once) - len(twice))]

    def _rendered(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        options |= self.apply_chat_template_kwargs
        return self.tokenizer.apply_chat_template(messages, tokenize=True, **options)


class LoopWorkflow(Workflow):
    """Runs an episode of `loop_class`; `as_loop_workflow` derives a subclass for each loop.
    `settings` are further arguments of its constructor."""

    loop_class: ClassVar[type]
    settings: ClassVar[Mapping[str, Any]] = {}

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        from ajet.core.config import AjetConfig
        from ajet.core.workflow.loop_config import verl_config
        from ajet.core.workflow.loop_server import ServerManager

        config = verl_config(model_tuner.config or AjetConfig())
        tokenizer = _with_plain_ids(model_tuner.tokenizer)
        _init_once(self.loop_class, config, tokenizer)
        provided = {
            "config": config,
            "dataset_config": config.data,
            "trainer_config": ConfigWrap(config),
            "server_manager": ServerManager(model_tuner),
            "tokenizer": tokenizer,
            "processor": None,
            "dataset_cls": None,
            "data_config": ConfigWrap(config.data),
            "hf_model_type": None,
            "tools": ToolListWrap(),
        }
        loop_class = self.loop_class
        loop = loop_class(**_accepted(loop_class, provided, FORMER_ARGUMENTS), **self.settings)
        arguments = row_arguments(workflow_task) | {"sampling_params": _sampling(model_tuner)}
        result = await loop.run(**_accepted(loop.run, arguments, ("messages",)))
        return to_workflow_output(result, model_tuner, self.loop_class)

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        """Raises a ConfigError if the loop takes verl's `tools` and the config has some: only
        `tool_agent` gets those."""
        loop_class, path = cls.loop_class, config.ajet.rollout.multi_turn.tool_config_path
        if path is not None and any(
            "tools" in _parameters(base.__init__) for base in loop_class.__mro__
        ):
            raise ConfigError(
                f"{line_of(loop_class)}: {loop_class.__name__} takes verl's tools, which ajet "
                f"gives only to tool_agent (ajet.rollout.multi_turn.tool_config_path is {path}): "
                "name tool_agent in the rows, or make the tools in init_class and take none",
                code=Code.TOOL_CLASS,
            )


def as_loop_workflow(
    loop_class: type, agent_name: str, settings: Mapping[str, Any] | None = None
) -> type[LoopWorkflow]:
    """Returns a workflow that runs a loop class. It has the class's name and module, for errors and
    the run folder."""
    attributes = {
        name: getattr(loop_class, name) for name in ("__module__", "__qualname__", "__doc__")
    }
    attributes |= {
        "loop_class": loop_class,
        "name": agent_name,
        "settings": dict(settings or {}),
        "trainable_targets": getattr(loop_class, "trainable_targets", None),
    }
    return type(loop_class.__name__, (LoopWorkflow,), attributes)


def is_agent_loop(loop_class: type) -> bool:
    """Tells whether the class is an agent loop: by a base's name (verl's own base too), or by the
    arguments that it takes."""
    if any(base.__name__ == "AgentLoopBase" for base in loop_class.__mro__):
        return True
    run = getattr(loop_class, "run", None)
    if run is None or "server_manager" not in _parameters(loop_class.__init__):
        return False
    return "sampling_params" in _parameters(run)


def check_agent_loop(workflow: type[LoopWorkflow], key: str) -> None:
    """Raises a ConfigError unless an episode can make the loop and run it."""
    loop_class = workflow.loop_class
    location = f"{key}: {line_of(loop_class)}: {loop_class.__name__}"
    run = getattr(loop_class, "run", None)
    if run is None or run is AgentLoopBase.run or getattr(run, "__isabstractmethod__", False):
        raise ConfigError(
            f"{location} does not define async run(self, sampling_params, **kwargs)",
            code=Code.OWN_METHOD_MISSING,
        )
    if not inspect.iscoroutinefunction(run):
        raise ConfigError(
            f"{location}.run is not async: write async def run(self, …)", code=Code.OWN_SIGNATURE
        )
    provided = (*ARGUMENTS, *FORMER_ARGUMENTS, *workflow.settings)
    for name in required_names(loop_class):
        if name not in provided:
            raise ConfigError(
                f"{location} is made with {', '.join(ARGUMENTS)}: give {name} of its __init__ a "
                "default, or a value in the file of agent_loop_config_path",
                code=Code.OWN_SIGNATURE,
            )
    for name in workflow.settings:
        if name in ARGUMENTS or not accepted_arguments(loop_class, {name: None}):
            raise ConfigError(
                f"{location} takes no {name}, which agent_loop_config_path gives it",
                code=Code.OWN_SIGNATURE,
            )


def to_workflow_output(result: Any, model_tuner: ModelTuner, loop_class: type) -> WorkflowOutput:
    """Converts an AgentLoopOutput, ajet's or verl's. Raises ValueError if it marks tokens that no
    recorded call sampled."""
    names = ("prompt_ids", "response_ids", "response_mask")
    if not all(hasattr(result, name) for name in names):
        raise TypeError(f"run() returned a {type(result).__name__}: return an AgentLoopOutput")
    if getattr(result, "multi_modal_data", None):
        raise TypeError("run() returned multi_modal_data: only text is supported")
    prompt_ids, response_ids, mask = (list(getattr(result, name)) for name in names)
    if len(mask) != len(response_ids):
        raise ValueError(
            f"run() returned {len(response_ids)} response_ids and {len(mask)} values of "
            "response_mask: give one for each"
        )
    left_out = _sampled_tokens_left_out(prompt_ids, response_ids, mask, model_tuner.completions)
    if left_out and loop_class not in _warned:
        _warned.add(loop_class)
        logger.warning(
            f"{loop_class.__name__}.run() left {left_out} sampled tokens out of its response or "
            f"masked them; they are trained anyway (metric {LEFT_OUT})"
        )
    answer = model_tuner.decode(_last_reply(response_ids, mask))
    extra_fields = dict(getattr(result, "extra_fields", None) or {})
    num_turns = int(getattr(result, "num_turns", 0) or 0)
    return WorkflowOutput(
        reward=result.reward_score,
        metadata={"final_answer": answer, "num_turns": num_turns} | extra_fields,
        log_metrics={"num_turns": float(num_turns), LEFT_OUT: float(left_out)},
    )


def row_arguments(workflow_task: WorkflowTask) -> dict[str, Any]:
    """Returns the row's fields as verl's data set passes them to `run`."""
    row = {str(name): value for name, value in workflow_task.task.metadata.items()}
    row.pop("agent_name", None)
    extra = row.get("extra_info")
    extra = extra if isinstance(extra, Mapping) else {}
    messages = conversation(workflow_task)
    return row | {
        "raw_prompt": messages,
        "messages": messages,
        "index": extra.get("index", 0),
        "tools_kwargs": dict(extra.get("tools_kwargs") or {}),
        "interaction_kwargs": dict(extra.get("interaction_kwargs") or {}),
    }


def _sampled_tokens_left_out(
    prompt_ids: list[int],
    response_ids: list[int],
    mask: Sequence[int],
    completions: Sequence[Completion],
) -> int:
    """Returns how many sampled tokens the output does not mark. Raises ValueError if it marks a
    token that was not sampled there."""
    ids = prompt_ids + response_ids
    is_sampled = [False] * len(ids)
    for completion in completions:
        # A call counts only where its whole prompt is the beginning of the output: elsewhere the
        # same ids would have been sampled in another context.
        start = len(completion.prompt_ids)
        if ids[:start] != list(completion.prompt_ids):
            continue
        for at, token_id in enumerate(completion.token_ids, start):
            if at == len(ids) or ids[at] != token_id:
                break
            is_sampled[at] = True
    marked = [at for at, value in enumerate(mask, len(prompt_ids)) if value]
    for at in marked:
        if not is_sampled[at]:
            raise ValueError(
                f"run() returned response_mask 1 at position {at - len(prompt_ids)}, where the "
                "model sampled no such token: mark only what server_manager.generate returned, "
                "after the prompt_ids that it was given"
            )
    return sum(len(completion.token_ids) for completion in completions) - len(marked)


def _last_reply(response_ids: list[int], mask: Sequence[int]) -> list[int]:
    """Returns the ids of the last stretch with mask 1."""
    end = max((at for at, value in enumerate(mask, 1) if value), default=0)
    start = max((at for at, value in enumerate(mask[:end], 1) if not value), default=0)
    return response_ids[start:end]


def _init_once(loop_class: type, config: DictConfig, tokenizer: Any) -> None:
    """Calls `init_class` before the first object of a class."""
    init_class = getattr(loop_class, "init_class", None)
    if init_class is None or loop_class in _initialized:
        return
    # verl's users read this flag. Inherited from a base, it would be the base's.
    if "_class_initialized" not in vars(loop_class):
        loop_class._class_initialized = False  # pyright: ignore[reportAttributeAccessIssue]
    provided = {"config": config, "tokenizer": tokenizer, "processor": None}
    init_class(**accepted_arguments(init_class, provided))
    _initialized.add(loop_class)


def _with_plain_ids(tokenizer: Any) -> Any:
    """Returns a copy of the tokenizer whose `apply_chat_template` returns a list of ids, as in the
    versions of transformers that verl uses."""
    if tokenizer is None:
        return None

    def apply_chat_template(self: Any, messages: Any, *args: Any, **options: Any) -> Any:
        options.setdefault("return_dict", False)
        return type(self).apply_chat_template(self, messages, *args, **options)

    plain = copy.copy(tokenizer)
    plain.apply_chat_template = MethodType(apply_chat_template, plain)
    return plain


def _sampling(model_tuner: ModelTuner) -> dict[str, Any]:
    """Returns the run's sampling parameters as verl passes them."""
    sampling: dict[str, Any] = dict(model_tuner.sampling_params)
    del sampling["max_tokens"]  # in verl a limit of single calls; the run's limits hold anyway
    return sampling | {"repetition_penalty": 1.0, "logprobs": True}


def _accepted(function: Any, provided: Mapping[str, Any], named_alone: Sequence[str]) -> Any:
    """Returns the arguments that the function takes; those in `named_alone` only if it has a
    parameter with that name, not for its `**kwargs`."""
    names = _parameters(function)
    offered = {k: v for k, v in provided.items() if k not in named_alone or k in names}
    return accepted_arguments(function, offered)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    if type(content) is not list:
        return []
    return [block for block in content if isinstance(block, Mapping)]
