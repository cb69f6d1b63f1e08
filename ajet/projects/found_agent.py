"""Finds the agent in a Python file by its syntax tree. The file is not run.

    def build(model): return create_agent(model, TOOLS)    mine.build(model)
    agent = create_agent(ChatOpenAI(), TOOLS)              mine.create_agent(model, mine.TOOLS)
    ReActAgent(name="a", model=DashScopeChatModel(…))      mine.ReActAgent(name="a", model=model)
    async def solve(question, client: AsyncOpenAI)         await mine.solve(question, client=client)
    class Solver: __init__(base_url, api_key), run(text)   mine.Solver(base_url=…, …).run(question)
    a program that reads OPENAI_BASE_URL and sys.argv      python my_agent.py QUESTION

`mine` is the user's module in the workflow that is written (existing_agent.py). What is found and
cannot be given the trained model is kept with the reason. Not covered: agents that only exist when
the file has run (exec, setattr, functions that functions return).
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ajet.core.errors import ConfigError

Handing = Literal["langchain", "agentscope", "openai", "address", "program"]
"""How the trained model gets into the agent's hands."""

MINE = "mine"
"""The name of the user's module in the workflow."""
GRAPH_MAKERS = ("create_agent", "create_react_agent")
MODEL_NAMES = ("model", "llm", "chat_model", "language_model")
CLIENTS = ("OpenAI", "AsyncOpenAI")
ADDRESS_NAMES = ("base_url", "api_base")
METHODS = ("run", "solve", "answer", "ask", "reply", "respond", "chat", "invoke", "__call__")
ADDRESS_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class FoundAgent:
    """Describes an agent of the file. `call` is the Python expression that makes or calls it in the
    workflow; for a program it says where the question goes, ``argument`` or ``stdin``. With
    `problem` it cannot be given the trained model as it is."""

    handing: Handing
    name: str
    line: int
    described: str
    call: str = ""
    is_async: bool = False
    problem: str | None = None


def found_agents(file: Path) -> list[FoundAgent]:
    """Returns the agents that can be given the trained model; the file as a program where there is
    none. Raises ConfigError, with the reason, where that is impossible too."""
    if file.suffix != ".py" or not file.is_file():
        what = "no such file" if not file.exists() else "no Python file"
        raise ConfigError(f"--from-agent {file}: {what}; give the .py file that holds the agent")
    if not file.stem.isidentifier():
        raise ConfigError(
            f"--from-agent {file}: {file.stem!r} cannot be imported: give the file a name of "
            "letters, digits and underscores"
        )
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"--from-agent {file}: no valid Python: {error}") from error
    source = Source(tree)
    agents = [*source.agents()]
    usable = [agent for agent in agents if agent.problem is None]
    if usable:
        return usable
    program = source.program(file.name)
    if program.problem is None:
        return [program]
    first = next(iter(agents), program)
    raise ConfigError(f"--from-agent {file}:{first.line}: {first.described}: {first.problem}")


def chosen_agent(agents: list[FoundAgent], name: str | None, file: Path) -> FoundAgent:
    """Returns the agent of this name, or the only one. Raises ConfigError where it is unclear."""
    names = ", ".join(f"{agent.name} (line {agent.line})" for agent in agents)
    if name is not None:
        named = next((agent for agent in agents if agent.name == name), None)
        if named is None:
            raise ConfigError(f"--agent {name}: no agent of this name in {file}; found: {names}")
        return named
    if len(agents) > 1:
        raise ConfigError(f"--from-agent {file}: which is the agent? found: {names}; give --agent")
    return agents[0]


class Source:
    """Reads the syntax tree of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._names = {name for node in tree.body for name in _bound_names(node)}

    def agents(self) -> Iterator[FoundAgent]:
        """Yields what looks like an agent of a framework or on a client, in the file's order."""
        for node in self._tree.body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield from self._of_function(node)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from self._of_class(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                yield from self._of_variable(node)

    def program(self, name: str) -> FoundAgent:
        """Returns the file as a program that is started for each question."""
        described = f"{name} as a program"
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
        elif not self._reads_address():
            problem = (
                f"it does not ask the environment for the model's address: read it from "
                f"{ADDRESS_VARIABLES[0]}, and the key from OPENAI_API_KEY"
            )
        return FoundAgent("program", name, 1, described, question or "", True, problem)

    # --- functions, classes, variables -----------------------------------------------------------

    def _of_function(self, node: Function) -> Iterator[FoundAgent]:
        makers = [call for call in ast.walk(node) if _is_maker(call)]
        if makers and any(isinstance(each, ast.Return) and each.value for each in ast.walk(node)):
            yield self._builder(node, makers[0])
        elif makers:
            yield self._rebuilt(node.name, makers[0], in_function=True)
        else:
            yield from self._client_function(node)

    def _of_variable(self, node: ast.Assign | ast.AnnAssign) -> Iterator[FoundAgent]:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and node.value is not None and _is_maker(node.value):
            yield self._rebuilt(target.id, node.value, in_function=False)

    def _of_class(self, node: ast.ClassDef) -> Iterator[FoundAgent]:
        init = next((each for each in node.body if _is_function(each, "__init__")), None)
        if not isinstance(init, Function):
            return
        parameters = _Parameters.of(init, is_method=True)
        if any(_last_name(base) == "ReActAgent" for base in node.bases):
            model = parameters.first(MODEL_NAMES)
            yield self._checked(
                FoundAgent(
                    "agentscope", node.name, node.lineno, f"the ReActAgent {node.name}",
                    f"{MINE}.{node.name}({model}=model)",
                ),
                parameters.without(model),
                None if model else "its __init__ takes no model: give it an argument `model`",
            )  # fmt: skip
            return
        given = self._client_arguments(parameters)
        if given is None:
            return
        handing, arguments, others = given
        method, problem = _method_of(node)
        is_async = isinstance(method, ast.AsyncFunctionDef)
        called = "" if method is None or method.name == "__call__" else f".{method.name}"
        yield self._checked(
            FoundAgent(
                handing, node.name, node.lineno, f"the class {node.name}, which takes {arguments}",
                f"{MINE}.{node.name}({_keywords(arguments)}){called}(question)", is_async,
            ),
            others,
            problem,
        )  # fmt: skip

    def _builder(self, node: Function, maker: ast.Call) -> FoundAgent:
        """Returns the agent of a function that makes and returns one."""
        parameters = _Parameters.of(node)
        handing = _framework(maker)
        passed = {each.id for each in _model_of(maker) if isinstance(each, ast.Name)}
        model = next((name for name in parameters.names if name in passed), None)
        model = model or parameters.first(MODEL_NAMES)
        if model is None and _last_name(maker.func) != "compile":
            return self._rebuilt(node.name, maker, in_function=True)
        is_async = isinstance(node, ast.AsyncFunctionDef)
        call = f"{MINE}.{node.name}({model}=model)"
        return self._checked(
            FoundAgent(
                handing, node.name, node.lineno, f"{node.name}(), which makes {_shown(maker)}",
                f"(await {call})" if is_async else call, is_async,
            ),
            parameters.without(model),
            None if model else "it takes no model: give it an argument `model`, and hand it in",
        )  # fmt: skip

    def _rebuilt(self, name: str, maker: ast.Call, *, in_function: bool) -> FoundAgent:
        """Returns the agent of a call that the workflow repeats with the trained model."""
        where = f"{_shown(maker)} in {name}()" if in_function else f"{name} = {_shown(maker)}"
        handing = _framework(maker)
        agent = FoundAgent(handing, name, maker.lineno, where)
        advice = "make it in a function with an argument `model` that returns it"
        if _last_name(maker.func) == "compile":
            problem = f"its nodes have their model already: {advice}"
            return _with(agent, problem=problem)
        call, problem = self._with_model(maker)
        if problem is not None:
            return _with(agent, problem=f"{problem}: {advice}")
        return _with(agent, call=call)

    def _client_function(self, node: Function) -> Iterator[FoundAgent]:
        parameters = _Parameters.of(node)
        given = self._client_arguments(parameters)
        if given is None:
            if any(_last_name(each.func) in CLIENTS for each in _calls(node)):
                described = f"{node.name}(), which makes a client of its own"
                problem = "give it an argument `client`, or `base_url` and `api_key`"
                yield FoundAgent("openai", node.name, node.lineno, described, problem=problem)
            return
        handing, arguments, others = given
        described = f"{node.name}(), which takes {arguments}"
        call = f"{MINE}.{node.name}(question, {_keywords(arguments)})"
        agent = FoundAgent(handing, node.name, node.lineno, described, call)
        required = [name for name in others.required if name not in MODEL_NAMES]
        if not required or len(required) > 1:
            listed = ", ".join(required) or "no other"
            problem = f"it takes {listed} besides, where one question is expected"
            yield _with(agent, problem=problem)
            return
        question = required[0]
        is_async = isinstance(node, ast.AsyncFunctionDef)
        call = f"{MINE}.{node.name}({question}=question, {_keywords(arguments)})"
        yield _with(agent, call=call, is_async=is_async)

    def _client_arguments(self, parameters: _Parameters) -> tuple[Handing, str, _Parameters] | None:
        """Returns how the model is handed to these parameters, which of them take it, and the
        others; None where none does."""
        client = parameters.client()
        base_url = parameters.first(ADDRESS_NAMES)
        taken = [name for name in (client, base_url) if name]
        if not taken:
            return None
        handing: Handing = "openai" if client else "address"
        if not client and "api_key" in parameters.names:
            taken.append("api_key")
        if client:
            taken = taken[:1]
        names = [*taken, *(n for n in ("model", "model_name") if n in parameters.required)]
        return handing, ", ".join(names), parameters.without(*names)

    def _checked(self, agent: FoundAgent, others: _Parameters, problem: str | None) -> FoundAgent:
        """Returns the agent, with the problem of arguments that nobody can give."""
        if problem is None and others.required:
            listed = ", ".join(others.required)
            problem = f"it also needs {listed}: give them defaults"
        return agent if problem is None else _with(agent, problem=problem)

    # --- repeating a call, and programs ----------------------------------------------------------

    def _with_model(self, maker: ast.Call) -> tuple[str, str | None]:
        """Returns the call with the trained model in it, its names looked up in the user's module,
        and why that cannot be."""
        call = copy.deepcopy(maker)
        is_react = _last_name(call.func) == "ReActAgent"
        position = 2 if is_react else 0
        trained = ast.Name("model", ast.Load())
        keyword = next((each for each in call.keywords if each.arg == "model"), None)
        if keyword is not None:
            keyword.value = trained
        elif len(call.args) > position:
            call.args[position] = trained
        else:
            return "", "no model is seen in this call"
        if is_react:  # one memory would be that of all episodes
            call.keywords = [
                each
                for each in call.keywords
                if each.arg != "memory" or not isinstance(each.value, ast.Name)
            ]
        for node in ast.walk(call):
            if not isinstance(node, ast.Name) or node is trained:
                continue
            if node.id in self._names:
                node.id = f"{MINE}.{node.id}"
            elif not hasattr(builtins, node.id):
                return "", f"{node.id!r} in this call is only known where it stands"
        return ast.unparse(call), None

    def _question_source(self) -> str | None:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and node.attr in ("argv", "add_argument"):
                return "argument"
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and node.attr == "stdin":
                return "stdin"
            if isinstance(node, ast.Call) and _last_name(node.func) == "input":
                return "stdin"
        return None

    def _fixed_address(self) -> int | None:
        """Returns the line of a client whose address is written in the file."""
        for call in _calls(self._tree):
            for keyword in call.keywords:
                if keyword.arg in ADDRESS_NAMES and isinstance(keyword.value, ast.Constant):
                    return call.lineno if keyword.value.value is not None else None
        return None

    def _reads_address(self) -> bool:
        makes_client = any(
            _last_name(call.func) in (*CLIENTS, "ChatOpenAI") for call in _calls(self._tree)
        )
        return makes_client or any(
            isinstance(node, ast.Constant) and node.value in ADDRESS_VARIABLES
            for node in ast.walk(self._tree)
        )


@dataclass(frozen=True)
class _Parameters:
    """The parameters of a function by name, with their annotations as text."""

    annotations: dict[str, str]
    required: tuple[str, ...]

    @classmethod
    def of(cls, node: Function, *, is_method: bool = False) -> _Parameters:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        first_default = len(positional) - len(arguments.defaults)
        required = [each.arg for each in positional[:first_default]]
        required += [
            each.arg
            for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is None
        ]
        annotations = {
            each.arg: ast.unparse(each.annotation) if each.annotation else ""
            for each in [*positional, *arguments.kwonlyargs]
        }
        found = cls(annotations, tuple(required))
        return found.without(positional[0].arg) if is_method and positional else found

    @property
    def names(self) -> list[str]:
        return list(self.annotations)

    def first(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self.annotations), None)

    def client(self) -> str | None:
        """Returns the parameter that is an OpenAI client, by its annotation or its name."""
        for name, annotation in self.annotations.items():
            if any(word in CLIENTS for word in annotation.replace("|", ".").split(".")):
                return name
        return "client" if "client" in self.annotations else None

    def without(self, *names: str | None) -> _Parameters:
        kept = {name: kind for name, kind in self.annotations.items() if name not in names}
        return _Parameters(kept, tuple(name for name in self.required if name in kept))


def _method_of(node: ast.ClassDef) -> tuple[Function | None, str | None]:
    """Returns the method that answers a question, and why it is unclear."""
    fitting = {
        each.name: each
        for each in node.body
        if isinstance(each, Function)
        and (not each.name.startswith("_") or each.name == "__call__")
        and len(_Parameters.of(each, is_method=True).required) == 1
    }
    named = [fitting[name] for name in METHODS if name in fitting]
    if named:
        return named[0], None
    if len(fitting) == 1:
        return next(iter(fitting.values())), None
    listed = ", ".join(fitting) or "none"
    return None, f"which method answers a question? ({listed} take one argument): call it `run`"


def _with(agent: FoundAgent, **changes: object) -> FoundAgent:
    from dataclasses import replace

    return replace(agent, **changes)  # pyright: ignore[reportArgumentType]


def _keywords(arguments: str) -> str:
    """Returns the arguments of a call that hands the model in: client=client, base_url=base_url."""
    values = {"model": '"ajet"', "model_name": '"ajet"', "api_base": "base_url"}
    names = [name.strip() for name in arguments.split(",")]
    return ", ".join(f"{name}={values.get(name, name)}" for name in names)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_maker(node: ast.AST) -> bool:
    """Tells whether this call makes an agent of a framework."""
    if not isinstance(node, ast.Call):
        return False
    name = _last_name(node.func)
    if name == "compile":  # a graph's: re.compile and compile() take arguments
        is_method = isinstance(node.func, ast.Attribute)
        return is_method and not node.args
    return name in (*GRAPH_MAKERS, "ReActAgent")


def _framework(maker: ast.Call) -> Handing:
    return "agentscope" if _last_name(maker.func) == "ReActAgent" else "langchain"


def _model_of(maker: ast.Call) -> Iterator[ast.expr]:
    """Yields what the call is given as its model."""
    yield from (each.value for each in maker.keywords if each.arg == "model")
    position = 2 if _last_name(maker.func) == "ReActAgent" else 0
    yield from maker.args[position : position + 1]


def _shown(maker: ast.Call) -> str:
    return f"{ast.unparse(maker.func)}(…)"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, Function) and node.name == name


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _bound_names(node: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement of the module binds."""
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (each.asname or each.name.partition(".")[0] for each in node.names)
    elif isinstance(node, ast.If | ast.Try | ast.With):
        if not _is_main_guard(node):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _bound_names(child)
    else:
        yield from (
            each.id
            for each in ast.walk(node)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
