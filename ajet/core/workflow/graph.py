"""Runs agent graphs in ChatLearn's form: classes with `build_graph()` and `async run(messages, …)`.

    @register("math_graph")
    class MathGraph(BaseAgentGraph):
        def build_graph(self):
            model = self.llm.bind_tools([…])
            …
            self.graph = workflow.compile()

        async def run(self, messages, **kwargs):
            state = await self.graph.ainvoke({"messages": messages})
            return self.convert_agent_graph_output(state)

    row {"agent_name": "math_graph", "agent_cfg_path": "math.yaml", "prompt": …, …}
        cfg          the YAML, by attribute (rows without a path use the class's `agent_cfg_path`);
                     its `max_total_token_length` and `max_ai_message_turn` limit the episode
        messages     the row's conversation
        kwargs       the row's other fields, and `ground_truth` of its `reward_model`

A graph is made for each episode, as `Graph(agent_name, cfg, llm, tokenizer, processor, model_type)`
with those arguments that its constructor takes. A class without a constructor gets them as
attributes, and `build_graph` is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.user_code.importing import line_of, require_package
from ajet.core.user_code.signatures import accepted_arguments, required_names
from ajet.core.workflow.agent_cfg import base_dirs_of, limits_of, read_agent_cfg
from ajet.core.workflow.workflow import Workflow

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.core.workflow.adapters.langchain import LangChainModel
    from ajet.core.workflow.tuner import ModelTuner

CONSTRUCTOR_ARGUMENTS = ("agent_name", "cfg", "llm", "tokenizer", "processor", "model_type")


def CustomChatModel(
    model: str,
    llm: LangChainModel,
    tokenizer: Any = None,
    max_parallel_calls: int | None = 1,
    **_others: Any,
) -> LangChainModel:
    """Returns `llm` under the agent name `model`. As in ChatLearn, only the first tool call of a
    reply is made unless `max_parallel_calls` is None."""
    changes = {"agent_name": model, "max_parallel_calls": max_parallel_calls}
    return llm.model_copy(update=changes)


@dataclass(slots=True)
class AgentGraphOutput:
    """The result of a graph's `run`. Training uses the recorded tokens, not these ids.

    With `reward_score=None` the judge gives the reward, and finds `extra_fields` in the output's
    metadata; `final_answer` is `str_output` by default.
    """

    str_output: str
    prompt_ids: list[int] = field(default_factory=list)
    all_token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)


class BaseAgentGraph:
    """The base of agent graphs. A class with the same methods works without deriving from it."""

    def __init__(
        self,
        agent_name: str,
        cfg: DictConfig,
        llm: LangChainModel,
        tokenizer: Any,
        processor: Any = None,
        model_type: str = "llm",
        **_others: Any,
    ) -> None:
        self.agent_name = agent_name
        self.cfg = cfg
        self.llm = llm
        self.tokenizer = tokenizer
        self.processor = processor
        self.model_type = model_type
        self.chatmodel = llm

    def build_graph(self) -> Any:
        """Sets `self.graph`, or returns it. An overriding method may call this one first."""
        self.chatmodel = CustomChatModel(
            model=self.agent_name, llm=self.llm, tokenizer=self.tokenizer
        )

    async def run(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
        """Runs the graph on one row."""
        raise NotImplementedError(f"{type(self).__name__} does not define run()")

    def convert_agent_graph_output(self, messages: Mapping[str, Any]) -> AgentGraphOutput:
        """Returns the last reply of the graph's state, with the timeline that ends with it."""
        index, last = _last_reply(messages["messages"])
        meta = {} if last is None else last.response_metadata
        ids, mask = meta.get("token_ids", []), meta.get("loss_mask", [])
        start = mask.index(1) if 1 in mask else len(mask)  # the end of the first prompt
        text = "" if last is None else str(last.text)
        return AgentGraphOutput(
            str_output=self.tokenizer.decode(ids[start:]) if self.tokenizer else text,
            prompt_ids=ids[:start],
            all_token_ids=ids,
            loss_mask=mask,
            num_turns=index + 1,
            extra_fields={"final_answer": text},
        )


class GraphWorkflow(Workflow):
    """Runs an episode of `graph_class`; `as_workflow` derives a subclass for each graph."""

    graph_class: ClassVar[type]
    agent_name: ClassVar[str]

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        row = workflow_task.task.metadata
        path = row.get("agent_cfg_path") or getattr(self.graph_class, "agent_cfg_path", None)
        cfg = read_agent_cfg(path, base_dirs_of(model_tuner.config))
        model_tuner.tighten_limits(**limits_of(cfg))
        graph = self._make_graph(cfg, model_tuner)
        arguments = _row_arguments(workflow_task) | {"sampling_params": _sampling(model_tuner)}
        return to_workflow_output(await graph.run(**accepted_arguments(graph.run, arguments)))

    def _make_graph(self, cfg: DictConfig, model_tuner: ModelTuner) -> Any:
        llm = model_tuner.as_langchain_model(agent_name=self.agent_name)
        values = (self.agent_name, cfg, llm, model_tuner.tokenizer, None, "llm")
        arguments: dict[str, Any] = dict(zip(CONSTRUCTOR_ARGUMENTS, values, strict=True))
        graph_class = self.graph_class
        # A class with a constructor builds its graph there.
        if graph_class.__init__ not in (object.__init__, BaseAgentGraph.__init__):
            return graph_class(**accepted_arguments(graph_class, arguments))
        is_derived = issubclass(graph_class, BaseAgentGraph)
        graph: Any = graph_class(**arguments) if is_derived else graph_class()
        for name, value in (arguments | {"chatmodel": llm}).items():
            if not hasattr(graph, name):
                setattr(graph, name, value)
        # `build_graph` may set `self.graph`, or return it, compiled or not.
        built = graph.build_graph() if hasattr(graph, "build_graph") else None
        if built is not None and not hasattr(graph, "graph"):
            graph.graph = built.compile() if hasattr(built, "compile") else built
        return graph


def as_workflow(graph_class: type, agent_name: str) -> type[GraphWorkflow]:
    """Returns a workflow that runs a graph class. It has the class's name and module, for errors
    and the run folder."""
    copied = {
        name: getattr(graph_class, name) for name in ("__module__", "__qualname__", "__doc__")
    }
    attributes = {
        "graph_class": graph_class,
        "agent_name": agent_name,
        "name": agent_name,
        "trainable_targets": getattr(graph_class, "trainable_targets", None),
    }
    return type(graph_class.__name__, (GraphWorkflow,), copied | attributes)


def is_graph(graph_class: type) -> bool:
    return callable(getattr(graph_class, "run", None)) or callable(
        getattr(graph_class, "build_graph", None)
    )


def check_graph(graph_class: type, key: str) -> None:
    """Raises a ConfigError unless an episode can make the graph and run it."""
    require_package("langgraph", wanted_by=f"{key}: {graph_class.__name__}")
    location = f"{key}: {line_of(graph_class)}: {graph_class.__name__}"
    run = getattr(graph_class, "run", None)
    if run is None or run is BaseAgentGraph.run:
        raise ConfigError(
            f"{location} does not define async run(self, messages, **kwargs)",
            code=Code.OWN_METHOD_MISSING,
        )
    if not inspect.iscoroutinefunction(run):
        raise ConfigError(
            f"{location}.run is not async: write async def run(self, messages, …)",
            code=Code.OWN_SIGNATURE,
        )
    for name in required_names(graph_class):
        if name not in CONSTRUCTOR_ARGUMENTS:
            raise ConfigError(
                f"{location} is made with {', '.join(CONSTRUCTOR_ARGUMENTS)}: "
                f"give {name} of its __init__ a default",
                code=Code.OWN_SIGNATURE,
            )


def to_workflow_output(result: Any) -> WorkflowOutput:
    """Converts what a graph's `run` returns: an AgentGraphOutput, the graph's state (its last reply
    is the answer), the answer as text, or a WorkflowOutput."""
    if isinstance(result, WorkflowOutput):
        return result
    if isinstance(result, AgentGraphOutput):
        metadata = {"final_answer": result.str_output} | result.extra_fields
        return WorkflowOutput(reward=result.reward_score, metadata=metadata)
    if isinstance(result, str):
        return WorkflowOutput(metadata={"final_answer": result})
    if isinstance(result, Mapping) and "messages" in result:
        return WorkflowOutput(metadata={"final_answer": last_reply_text(result["messages"])})
    raise TypeError(
        f"run() returned a {type(result).__name__}: return an AgentGraphOutput, the graph's state "
        "(with messages), the answer as text, or a WorkflowOutput"
    )


def last_reply_text(messages: Sequence[Any]) -> str:
    """Returns the text of the last reply among LangChain messages, or "" if there is none."""
    reply = _last_reply(messages)[1]
    return "" if reply is None else str(reply.text)


def _last_reply(messages: Sequence[Any]) -> tuple[int, Any]:
    """Returns the index of the last reply and the reply, or (-1, None) if there is none."""
    replies = [at for at, message in enumerate(messages) if getattr(message, "type", "") == "ai"]
    return (replies[-1], messages[replies[-1]]) if replies else (-1, None)


def conversation(workflow_task: WorkflowTask) -> list[dict[str, Any]]:
    """Returns the task as chat messages."""
    task = workflow_task.task
    return [*task.init_messages, {"role": "user", "content": task.query_content}]


def _row_arguments(workflow_task: WorkflowTask) -> dict[str, Any]:
    row = {str(name): value for name, value in workflow_task.task.metadata.items()}
    reward_model = row.get("reward_model")
    if isinstance(reward_model, Mapping) and "ground_truth" in reward_model:
        row.setdefault("ground_truth", reward_model["ground_truth"])
    return row | {"messages": conversation(workflow_task)}


def _sampling(model_tuner: ModelTuner) -> dict[str, float | int]:
    """Returns the run's sampling parameters under ChatLearn's names."""
    sampling = model_tuner.sampling_params
    return sampling | {"max_new_tokens": sampling.pop("max_tokens")}
