"""Finds the agent in a Python file by its syntax tree. The file is not run, so agents that exist
only after it has run (exec, setattr, functions that functions return) are not found. Agents that
cannot be given the trained model are kept with the reason.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeGuard

from ajet.core.errors import ConfigError, WrongKind
from ajet.core.errors.codes import Code

Interface = Literal["langchain", "agentscope", "agents_sdk", "openai", "address", "program"]
"""How the agent gets the trained model."""

MINE = "mine"
"""The name of the user's module in the workflow."""
GRAPH_MAKERS = ("create_agent", "create_react_agent")
MODEL_NAMES = ("model", "llm", "chat_model", "language_model")
CLIENTS = ("OpenAI", "AsyncOpenAI")
LANGCHAIN_MODELS = ("ChatOpenAI", "init_chat_model")
ADDRESS_NAMES = ("base_url", "api_base")
METHODS = ("run", "solve", "answer", "ask", "reply", "respond", "chat", "invoke", "__call__")
TRAINERS = {
    "rllm": ("rLLM", "rllm.md"),
    "agentlightning": ("agent-lightning", "agent_lightning.md"),
    "trl": ("TRL", "trl.md"),
}
"""Maps a package that trains to its system's name and its page in docs/coming_from."""
ADDRESS_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class FoundAgent:
    """An agent of the file, which the workflow calls `mine`:

    def build(model): return create_agent(model, TOOLS)    mine.build(model)
    agent = create_agent(ChatOpenAI(), TOOLS)              mine.create_agent(model, mine.TOOLS)
    async def solve(question, client: AsyncOpenAI)         await mine.solve(question, client=client)
    class Solver: __init__(base_url, api_key), run(text)   mine.Solver(base_url=…, …).run(question)
    a program that reads OPENAI_BASE_URL and sys.argv      python my_agent.py QUESTION

    `call` is the workflow's expression that makes it or, if it `answers`,
    that answers the question, in parts if it `yields`; for a program it says where the question
    goes, ``argument`` or ``stdin``. In `own_model_line` the file makes a model when it is imported.
    With a `problem` it cannot be given the trained model. `defaults` are arguments of it that the
    workflow does not pass."""

    interface: Interface
    name: str
    line: int
    described: str
    call: str = ""
    answers: bool = False
    is_async: bool = False
    yields: bool = False
    has_sync_client: bool = False
    own_model_line: int | None = None
    problem: str | None = None
    defaults: tuple[str, ...] = ()

    @property
    def reminders(self) -> list[str]:
        """What to look at in the written workflow, one sentence each."""
        sentences: list[str] = []
        if self.defaults:
            names = ", ".join(self.defaults)
            sentences.append(f"workflow.py leaves {names} at the default: should a row set it?")
        if self.yields:
            sentences.append(
                "workflow.py joins texts, and takes the last of other events: is it the answer?"
            )
        if self.interface == "agents_sdk":
            sentences.append(
                "workflow.py calls Runner.run itself: bring over what your own call does "
                "(max_turns, what happens to the answer)."
            )
        return sentences


def found_agents(file: Path, name: str | None = None) -> list[FoundAgent]:
    """Returns the agents that can be given the trained model, or else the file as a program. Raises
    ConfigError, with the reason, if that is impossible too, or for the agent called `name`."""
    if file.suffix != ".py" or not file.is_file():
        problem = "no such file" if not file.exists() else "not a Python file"
        raise ConfigError(
            f"--from-agent {file}: {problem}; give the .py file that holds the agent",
            code=Code.OWN_FILE_NOT_FOUND,
        )
    if not file.stem.isidentifier():
        raise ConfigError(
            f"--from-agent {file}: {file.stem!r} cannot be imported: give the file a name of "
            "letters, digits and underscores",
            code=Code.OWN_FILE_FAILS,
        )
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"--from-agent {file}: not valid Python: {error}", code=Code.OWN_FILE_FAILS
        ) from error
    source = Source(tree)
    agents = [*source.agents()]
    # An agent of the requested name that cannot be used is an error; unusable ones of other names
    # are not, as long as there is something else.
    usable = [agent for agent in agents if agent.problem is None]
    unusable = source.outermost([agent for agent in agents if agent.problem is not None])
    if name is None:
        usable = source.outermost(usable)
    program = source.trainer() or source.program(file.name)
    unusable_named = [agent for agent in unusable if agent.name == name]
    if usable and not unusable_named:
        model = next(source.models_of_the_module(), None)
        line = model[1].lineno if model else None
        return [replace(agent, own_model_line=line) for agent in usable]
    if program.problem is None and not unusable_named:
        return [program]
    first = [*unusable_named, *unusable, program][0]
    raise WrongKind(f"--from-agent {file}:{first.line}: {first.described}: {first.problem}")


def chosen_agent(agents: list[FoundAgent], name: str | None, file: Path) -> FoundAgent:
    """Returns the agent of this name, or the only one. Raises ConfigError if that is ambiguous."""
    names = ", ".join(f"{agent.name} (line {agent.line})" for agent in agents)
    if name is not None:
        agent_ = next((agent for agent in agents if agent.name == name), None)
        if agent_ is None:
            raise ConfigError(
                f"--agent {name}: no agent of this name in {file}; found: {names}",
                code=Code.OWN_NAME_NOT_FOUND,
            )
        return agent_
    if len(agents) > 1:
        raise ConfigError(
            f"--from-agent {file}: which is the agent? found: {names}; give --agent",
            code=Code.ARGUMENT_MISSING,
        )
    return agents[0]


class Source:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._names = {name for node in tree.body for name in _bound_names(node)}
        self._imported: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self._imported.add((node.module or "").partition(".")[0])
        self._own = {node.name for node in tree.body if isinstance(node, Function)}
        self._own_classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}

    def agents(self) -> Iterator[FoundAgent]:
        """Yields everything that looks like an agent, in the file's order."""
        for node in self._tree.body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield from self._in_function(node)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from self._in_class(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                maker = node.value
                if isinstance(target, ast.Name) and self._is_maker(maker):
                    yield self._rebuilt(target.id, maker, f"{target.id} = {_shown(maker)}")

    def outermost(self, agents: list[FoundAgent]) -> list[FoundAgent]:
        """Returns the agents that none of the others uses, or all where they use each other."""
        reached = {agent.name: self._names_below(agent.name) for agent in agents}
        free = [
            agent
            for agent in agents
            if not any(agent.name in names for user, names in reached.items() if user != agent.name)
        ]
        return free or agents

    def _names_below(self, name: str) -> set[str]:
        """Returns the names that a definition of the file reads, and what it uses reads."""
        statements = {bound: node for node in self._tree.body for bound in _bound_names(node)}
        below: set[str] = set()
        new = {name}
        while new:
            read = {
                inner.id
                for each in new
                for inner in ast.walk(statements[each])
                if isinstance(inner, ast.Name)
            }
            below |= new
            new = (read & statements.keys()) - below
        return below - {name}

    def models_of_the_module(self) -> Iterator[tuple[str, ast.Call]]:
        """Yields the clients and models that are made when the file is imported, by variable."""
        for node in self._tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            for call in _calls(node.value):
                if _last_name(call.func) in (*CLIENTS, *LANGCHAIN_MODELS):
                    yield (target.id if isinstance(target, ast.Name) else ""), call

    def trainer(self) -> FoundAgent | None:
        """Returns the call that trains with another system's trainer, if there is one."""
        systems = [TRAINERS[package] for package in TRAINERS if package in self._imported]
        calls = (call for call in _calls(self._tree) if _last_name(call.func).endswith("Trainer"))
        call = next(calls, None)
        if call is None or not systems:
            return None
        system, page = systems[0]
        problem = (
            f"it trains an agent with {system}, and ajet takes its place: give the file that holds "
            f"the agent (docs/coming_from/{page})"
        )
        return FoundAgent("program", "", call.lineno, _shown(call), problem=problem)

    def program(self, name: str) -> FoundAgent:
        """Returns the file as a program that is started once per question."""
        described = f"{name} as a program"
        reads_address = any(
            _last_name(call.func) in (*CLIENTS, "ChatOpenAI") for call in _calls(self._tree)
        ) or any(
            isinstance(node, ast.Constant) and node.value in ADDRESS_VARIABLES
            for node in ast.walk(self._tree)
        )
        question = self._question_source()
        problem = None
        if not any(map(_is_main_guard, self._tree.body)):
            problem = (
                "no agent was found in it, and it does nothing when it is run: write a function "
                "that takes the model (a LangChain model, an OpenAI client, or base_url and "
                "api_key), and a question where it answers one"
            )
        elif (fixed := self._fixed_address()) is not None:
            problem = (
                f"line {fixed} writes the model's address: read it from the environment, "
                f"{ADDRESS_VARIABLES[0]}"
            )
        elif question is None:
            problem = "it reads no question: take it from sys.argv[1], or from standard input"
        elif not reads_address:
            problem = (
                f"it does not ask the environment for the model's address: read it from "
                f"{ADDRESS_VARIABLES[0]}, and the key from OPENAI_API_KEY"
            )
        return FoundAgent("program", name, 1, described, question or "", problem=problem)

    # --- functions, classes, variables -----------------------------------------------------------

    def _in_function(self, node: Function) -> Iterator[FoundAgent]:
        """Yields what makes an agent and returns it, or answers a question."""
        parameters = _Parameters.of(node)
        # From the best evidence to the weakest: a function that returns an agent, one that takes
        # the model and a question, one that makes an agent for itself, one that uses the file's
        # model.
        makers = [call for call in ast.walk(node) if self._is_maker(call)]
        if makers and (self._returns_agent(node) or _last_name(makers[0].func) == "compile"):
            yield self._builder(node, parameters, makers[0])
        elif (handover := self._handover(node, parameters)) is not None:
            yield self._answering(node, parameters, handover)
        elif makers:
            yield self._rebuilt(node.name, makers[0], f"{_shown(makers[0])} in {node.name}()")
        elif node.args.args and (model := self._own_model(node)) is not None:
            described = f"{node.name}(), which {model[0]}"
            yield FoundAgent("openai", node.name, node.lineno, described, problem=model[1])

    def _own_model(self, node: Function) -> tuple[str, str] | None:
        """Returns which model of the file a function uses, and the argument that it needs
        instead."""
        argument = {name: "`client`, or `base_url` and `api_key`" for name in CLIENTS}
        argument |= {name: "`model`" for name in LANGCHAIN_MODELS}
        for call in _calls(node):
            if (parameter := argument.get(_last_name(call.func))) is not None:
                return f"makes {_shown(call)}", f"give it an argument {parameter}"
        read = {name_node.id for name_node in ast.walk(node) if isinstance(name_node, ast.Name)}
        for name, call in self.models_of_the_module():
            if name in read:
                advice = f"give it an argument {argument[_last_name(call.func)]}"
                return f"uses {name} of line {call.lineno}", advice
        return None

    def _in_class(self, node: ast.ClassDef) -> Iterator[FoundAgent]:
        methods = [method_ for method_ in node.body if isinstance(method_, Function)]
        init = next((method_ for method_ in methods if method_.name == "__init__"), None)
        if {"reset", "step"} <= {method_.name for method_ in methods}:
            problem = (
                "it is a game (reset, step), which needs no workflow: `ajet init DIR --kind "
                "environment` writes a project that plays one"
            )
            described = f"the class {node.name}"
            yield FoundAgent("program", node.name, node.lineno, described, problem=problem)
            return
        if init is None:
            return
        parameters = _Parameters.of(init, is_method=True)
        # A subclass of AgentScope's agents is made with the model, and called like any of them.
        if any(_last_name(base) in ("ReActAgent", "AgentBase") for base in node.bases):
            model = parameters.first(MODEL_NAMES)
            problem = None if model else "its __init__ takes no model: give it an argument `model`"
            call = f"{MINE}.{node.name}({model}=model)"
            described = f"the AgentScope agent {node.name}"
            agent = FoundAgent("agentscope", node.name, node.lineno, described, call)
            yield _checked(agent, parameters.without(model), problem)
            return
        handover = self._handover(init, parameters)
        if handover is None:
            if (model_ := self._own_model(init)) is not None:
                described = f"the class {node.name}, whose __init__ {model_[0]}"
                yield FoundAgent("openai", node.name, node.lineno, described, problem=model_[1])
            return
        method, problem = _method_of(node)
        called = "" if method is None or method.name == "__call__" else f".{method.name}"
        is_async = isinstance(method, ast.AsyncFunctionDef)
        agent = FoundAgent(
            handover.interface,
            node.name,
            node.lineno,
            f"the class {node.name}, which takes {', '.join(handover.values)}",
            f"{MINE}.{node.name}({handover.keywords}){called}(question)",
            answers=True,
            is_async=is_async,
            yields=_yields(method),
            has_sync_client=parameters.has_sync_client(is_async=is_async),
        )
        yield _checked(agent, parameters.without(*handover.values), problem)

    def _builder(self, node: Function, parameters: _Parameters, maker: ast.Call) -> FoundAgent:
        model = self._model_parameter(node, parameters)
        described = f"{node.name}(), which makes {_shown(maker)}"
        is_async = isinstance(node, ast.AsyncFunctionDef)
        if _framework(maker) == "agents_sdk":
            call = f"await {MINE}.{node.name}()" if is_async else f"{MINE}.{node.name}()"
            agent = FoundAgent("agents_sdk", node.name, node.lineno, described, call)
            return _checked(agent, parameters, None)
        # The function takes no model, but the workflow can repeat the call inside it with one.
        if model is None and _last_name(maker.func) != "compile":
            return self._rebuilt(node.name, maker, described)
        call = f"{MINE}.{node.name}({model}=model)"
        problem = None if model else "it takes no model: give it an argument `model`, and use that"
        agent = FoundAgent(
            _framework(maker),
            node.name,
            node.lineno,
            described,
            f"await {call}" if is_async else call,
        )
        return _checked(agent, parameters.without(model), problem)

    def _answering(
        self, node: Function, parameters: _Parameters, handover: _Handover
    ) -> FoundAgent:
        rest = parameters.without(*handover.values)
        listed = ", ".join(rest.required)
        is_async = isinstance(node, ast.AsyncFunctionDef)
        agent = FoundAgent(
            handover.interface,
            node.name,
            node.lineno,
            f"{node.name}(), which takes {', '.join(handover.values)}",
            f"{MINE}.{node.name}({listed}=question, {handover.keywords})",
            answers=True,
            is_async=is_async,
            yields=_yields(node),
            has_sync_client=parameters.has_sync_client(is_async=is_async),
        )
        if len(rest.required) == 1:
            left = tuple(name for name in rest.names if name not in rest.required)
            return replace(agent, defaults=left)
        problem = f"it takes {listed or 'nothing'} in addition to the model, "
        return replace(agent, problem=f"{problem}where one question is expected")

    def _rebuilt(self, name: str, maker: ast.Call, described: str) -> FoundAgent:
        """Returns the agent of a call that the workflow repeats with the trained model."""
        agent = FoundAgent(_framework(maker), name, maker.lineno, described)
        if agent.interface == "agents_sdk" and name in self._names - self._own:
            return replace(agent, call=f"{MINE}.{name}")  # Runner.run takes the model
        advice = "make it in a function with an argument `model` that returns it"
        if _last_name(maker.func) == "compile":
            return replace(agent, problem=f"its nodes have their model already: {advice}")
        call, problem = self._with_model(maker)
        if problem is not None:
            return replace(agent, problem=f"{problem}: {advice}")
        return replace(agent, call=call)

    # --- where a model goes in -------------------------------------------------------------------

    def _handover(self, node: Function, parameters: _Parameters) -> _Handover | None:
        """Returns how these parameters get the trained model; None if no parameter takes it."""
        model_names = ("model", "model_name")
        name = {n: '"ajet"' for n in model_names if n in parameters.required}
        if (client := parameters.client()) is not None:
            return _Handover("openai", {client: "client"} | name)
        if (base_url := parameters.first(ADDRESS_NAMES)) is not None:
            key = {"api_key": "api_key"} if "api_key" in parameters.names else {}
            return _Handover("address", {base_url: "base_url"} | key | name)
        if (model := self._model_parameter(node, parameters)) is None:
            return None
        if self._imported & {"langchain", "langgraph", "langchain_core"}:
            return _Handover("langchain", {model: "model"})
        return _Handover("agentscope", {model: "model"}) if "agentscope" in self._imported else None

    def _model_parameter(self, node: Function, parameters: _Parameters) -> str | None:
        """Returns the parameter that is a framework's model: one from which an agent is made, else
        one with a usual name for models; never a string."""
        makers = [call for call in ast.walk(node) if self._is_maker(call)]
        passed: set[str] = set()
        for call in makers:
            position = _model_position(call)
            values = [keyword.value for keyword in call.keywords if keyword.arg == "model"]
            values += call.args[position : position + 1]
            passed |= {value.id for value in values if isinstance(value, ast.Name)}
        candidates = [name for name in parameters.names if name in passed]
        candidates += [name for name in MODEL_NAMES if name in parameters.names]
        return next((name for name in candidates if name not in parameters.texts), None)

    def _is_maker(self, node: ast.AST) -> TypeGuard[ast.Call]:
        """Tells whether this call makes an agent of a framework that the file imports."""
        if not isinstance(node, ast.Call):
            return False
        name = _last_name(node.func)
        if name == "compile":  # of a graph: re.compile takes an argument
            is_method = isinstance(node.func, ast.Attribute)
            return is_method and not node.args and "langgraph" in self._imported
        if name in GRAPH_MAKERS:
            return bool(self._imported & {"langchain", "langgraph"}) and name not in self._own
        # The OpenAI Agents SDK's package is called `agents`.
        if name == "Agent":
            return "agents" in self._imported and name not in self._own_classes
        return name == "ReActAgent" and "agentscope" in self._imported

    def _returns_agent(self, node: Function) -> bool:
        agents = {
            target.id
            for assignment in ast.walk(node)
            if isinstance(assignment, ast.Assign) and self._is_maker(assignment.value)
            for target in assignment.targets
            if isinstance(target, ast.Name)
        }
        returned = [item.value for item in ast.walk(node) if isinstance(item, ast.Return)]
        return any(
            value is not None
            and (self._is_maker(value) or (isinstance(value, ast.Name) and value.id in agents))
            for value in returned
        )

    # --- repeating a call, and programs ----------------------------------------------------------

    def _with_model(self, maker: ast.Call) -> tuple[str, str | None]:
        """Returns the call with the trained model in it and its names looked up in the user's
        module, or why that is impossible."""
        call = copy.deepcopy(maker)
        position = _model_position(call)
        trained = ast.Name("model", ast.Load())
        keyword = next((keyword_ for keyword_ in call.keywords if keyword_.arg == "model"), None)
        if _framework(call) == "agents_sdk":
            call.keywords = [keyword_ for keyword_ in call.keywords if keyword_ is not keyword]
        elif keyword is not None:
            keyword.value = trained
        elif len(call.args) > position:
            call.args[position] = trained
        else:
            return "", "this call shows no model"
        if _framework(call) == "agentscope":  # otherwise all episodes would share one memory
            call.keywords = [
                argument
                for argument in call.keywords
                if argument.arg != "memory" or not isinstance(argument.value, ast.Name)
            ]
        for node in ast.walk(call):
            if not isinstance(node, ast.Name) or node is trained:
                continue
            if node.id in self._names:
                node.id = f"{MINE}.{node.id}"
            elif not hasattr(builtins, node.id):
                return "", f"{node.id!r} in this call is only defined where the call is"
        return ast.unparse(call), None

    def _question_source(self) -> str | None:
        """Returns where the program reads its question; None if that is unclear."""
        declared = [
            call.args[0].value
            for call in _calls(self._tree)
            if _last_name(call.func) == "add_argument"
            and call.args
            and isinstance(call.args[0], ast.Constant)
        ]
        # With a parser, the question can only be its single positional argument.
        if declared:
            positional = [name for name in declared if not str(name).startswith("-")]
            return "argument" if len(positional) == 1 else None
        attributes = {node.attr for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)}
        if "argv" in attributes:
            return "argument"
        asks = any(_last_name(call.func) == "input" for call in _calls(self._tree))
        return "stdin" if asks or "stdin" in attributes else None

    def _fixed_address(self) -> int | None:
        """Returns the line of a client whose address is written in the file."""
        for call in _calls(self._tree):
            for keyword in call.keywords:
                if keyword.arg in ADDRESS_NAMES and isinstance(keyword.value, ast.Constant):
                    return call.lineno if keyword.value.value is not None else None
        return None


@dataclass(frozen=True)
class _Handover:
    """How parameters get the trained model: their names with the workflow's expressions."""

    interface: Interface
    values: dict[str, str]

    @property
    def keywords(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True)
class _Parameters:
    """The parameters of a function with their annotations as text. `texts` are those that are
    strings by annotation or default."""

    annotations: dict[str, str]
    required: tuple[str, ...]
    texts: frozenset[str]

    @classmethod
    def of(cls, node: Function, *, is_method: bool = False) -> _Parameters:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        # Defaults belong to the last positional parameters.
        padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        defaults = [*padding, *arguments.defaults, *arguments.kw_defaults]
        pairs = list(zip([*positional, *arguments.kwonlyargs], defaults, strict=True))
        annotations = {
            argument.arg: ast.unparse(argument.annotation) if argument.annotation else ""
            for argument, _ in pairs
        }
        required = tuple(argument.arg for argument, default in pairs if default is None)
        texts = {
            argument.arg
            for argument, default in pairs
            if annotations[argument.arg].startswith("str")
            or (isinstance(default, ast.Constant) and isinstance(default.value, str))
        }
        parameters = cls(annotations, required, frozenset(texts))
        return parameters.without(positional[0].arg) if is_method and positional else parameters

    @property
    def names(self) -> list[str]:
        return list(self.annotations)

    def first(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self.annotations), None)

    def client(self) -> str | None:
        """Returns the parameter that is an OpenAI client, by its annotation or its name."""
        for name, annotation in self.annotations.items():
            if any(word in CLIENTS for word in re.findall(r"\w+", annotation)):
                return name
        return "client" if "client" in self.annotations else None

    def has_sync_client(self, *, is_async: bool) -> bool:
        """Tells whether the client blocks: by its annotation, or else by its function."""
        words = re.findall(r"\w+", self.annotations.get(self.client() or "", ""))
        return "AsyncOpenAI" not in words and ("OpenAI" in words or not is_async)

    def without(self, *names: str | None) -> _Parameters:
        kept = {n: annotation for n, annotation in self.annotations.items() if n not in names}
        return _Parameters(kept, tuple(name for name in self.required if name in kept), self.texts)


def _checked(agent: FoundAgent, rest: _Parameters, problem: str | None) -> FoundAgent:
    """Returns the agent; arguments that the workflow cannot fill become its problem."""
    if problem is None and rest.required:
        problem = f"it also needs {', '.join(rest.required)}: give them defaults"
    return agent if problem is None else replace(agent, problem=problem)


def _method_of(node: ast.ClassDef) -> tuple[Function | None, str | None]:
    """Returns the method that answers a question, or why that is unclear."""
    fitting = {
        method.name: method
        for method in node.body
        if isinstance(method, Function)
        and (not method.name.startswith("_") or method.name == "__call__")
        and len(_Parameters.of(method, is_method=True).required) == 1
    }
    usual = [fitting[name] for name in METHODS if name in fitting]
    if usual:
        return usual[0], None
    if len(fitting) == 1:
        return next(iter(fitting.values())), None
    listed = ", ".join(fitting) or "none"
    return None, f"which method answers a question? ({listed} take one argument): call it `run`"


def _yields(function: Function | None) -> bool:
    return any(isinstance(node, ast.Yield) for node in ast.walk(function or ast.Pass()))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _framework(maker: ast.Call) -> Interface:
    by_name: dict[str, Interface] = {"ReActAgent": "agentscope", "Agent": "agents_sdk"}
    return by_name.get(_last_name(maker.func), "langchain")


def _model_position(maker: ast.Call) -> int:
    """Returns the place of the model among the positional arguments."""
    return 2 if _last_name(maker.func) == "ReActAgent" else 0


def _shown(maker: ast.Call) -> str:
    return f"{ast.unparse(maker.func)}(…)"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _bound_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.If | ast.Try | ast.With):
        if not _is_main_guard(node):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _bound_names(child)
    else:
        yield from (
            child_.id
            for child_ in ast.walk(node)
            if isinstance(child_, ast.Name) and isinstance(child_.ctx, ast.Store)
        )
