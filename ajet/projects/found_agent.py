"""Finds the agent in a Python file by its syntax tree. The file is not run.

    def build(model): return create_agent(model, TOOLS)    mine.build(model)
    agent = create_agent(ChatOpenAI(), TOOLS)              mine.create_agent(model, mine.TOOLS)
    ReActAgent(name="a", model=DashScopeChatModel(…))      mine.ReActAgent(name="a", model=model)
    agent = Agent(name="a", tools=TOOLS)                   Runner.run(mine.agent, …)
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
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeGuard

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

Handing = Literal["langchain", "agentscope", "agents_sdk", "openai", "address", "program"]
"""How the trained model gets into the agent's hands."""

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
"""Maps a package that trains to its system's name and the page of docs/coming_from about it."""
ADDRESS_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class FoundAgent:
    """Describes an agent of the file. `call` is the expression of the workflow that makes it, or,
    where it `answers`, that answers the question; for a program it says where the question goes,
    ``argument`` or ``stdin``. In `own_model_line` the file makes a model of its own as it is
    imported. With `problem` it cannot be given the trained model as it is."""

    handing: Handing
    name: str
    line: int
    described: str
    call: str = ""
    answers: bool = False
    is_async: bool = False
    has_sync_client: bool = False
    own_model_line: int | None = None
    problem: str | None = None


def found_agents(file: Path, name: str | None = None) -> list[FoundAgent]:
    """Returns the agents that can be given the trained model; the file as a program where there is
    none. Raises ConfigError, with the reason, where that is impossible too, or for the agent of
    this name."""
    if file.suffix != ".py" or not file.is_file():
        what = "no such file" if not file.exists() else "no Python file"
        raise ConfigError(
            f"--from-agent {file}: {what}; give the .py file that holds the agent",
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
            f"--from-agent {file}: no valid Python: {error}", code=Code.OWN_FILE_FAILS
        ) from error
    source = Source(tree)
    agents = [*source.agents()]
    usable = [agent for agent in agents if agent.problem is None]
    unusable = [agent for agent in agents if agent.problem is not None]
    program = source.trainer() or source.program(file.name)
    named = [agent for agent in unusable if agent.name == name]
    if usable and not named:
        made = next(source.models_of_the_module(), None)
        line = made[1].lineno if made else None
        return [replace(agent, own_model_line=line) for agent in usable]
    if program.problem is None and not named:
        return [program]
    first = [*named, *unusable, program][0]
    raise ConfigError(
        f"--from-agent {file}:{first.line}: {first.described}: {first.problem}",
        code=Code.OWN_WRONG_KIND,
    )


def chosen_agent(agents: list[FoundAgent], name: str | None, file: Path) -> FoundAgent:
    """Returns the agent of this name, or the only one. Raises ConfigError where it is unclear."""
    names = ", ".join(f"{agent.name} (line {agent.line})" for agent in agents)
    if name is not None:
        named = next((agent for agent in agents if agent.name == name), None)
        if named is None:
            raise ConfigError(
                f"--agent {name}: no agent of this name in {file}; found: {names}",
                code=Code.OWN_NAME_NOT_FOUND,
            )
        return named
    if len(agents) > 1:
        raise ConfigError(
            f"--from-agent {file}: which is the agent? found: {names}; give --agent",
            code=Code.ARGUMENT_MISSING,
        )
    return agents[0]


class Source:
    """Reads the syntax tree of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._names = {name for node in tree.body for name in _bound_names(node)}
        self._imported = {name for node in ast.walk(tree) for name in _imported_packages(node)}
        self._own = {node.name for node in tree.body if isinstance(node, Function)}
        self._own_classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}

    def agents(self) -> Iterator[FoundAgent]:
        """Yields what looks like an agent of a framework or on a client, in the file's order."""
        for node in self._tree.body:
            if isinstance(node, Function) and not node.name.startswith("_"):
                yield from self._of_function(node)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from self._of_class(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                yield from self._of_variable(node)

    def models_of_the_module(self) -> Iterator[tuple[str, ast.Call]]:
        """Yields the clients and models that are made as the file is imported, by the name of
        their variable."""
        for node in self._tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            for call in _calls(node.value):
                if _last_name(call.func) in (*CLIENTS, *LANGCHAIN_MODELS):
                    yield (target.id if isinstance(target, ast.Name) else ""), call

    def trainer(self) -> FoundAgent | None:
        """Returns the call of the file that trains, with another system's trainer."""
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
        return FoundAgent("program", name, 1, described, question or "", problem=problem)

    # --- functions, classes, variables -----------------------------------------------------------

    def _of_function(self, node: Function) -> Iterator[FoundAgent]:
        """Yields what makes an agent and returns it, or answers a question."""
        parameters = _Parameters.of(node)
        makers = [call for call in ast.walk(node) if self._is_maker(call)]
        if makers and (self._returns_agent(node) or _last_name(makers[0].func) == "compile"):
            yield self._builder(node, parameters, makers[0])
        elif (given := self._given(node, parameters)) is not None:
            yield self._answering(node, parameters, given)
        elif makers:
            yield self._rebuilt(node.name, makers[0], f"{_shown(makers[0])} in {node.name}()")
        elif (own := self._own_model(node)) is not None:
            described = f"{node.name}(), which {own[0]}"
            yield FoundAgent("openai", node.name, node.lineno, described, problem=own[1])

    def _own_model(self, node: Function) -> tuple[str, str] | None:
        """Returns which model or client of the file's own a function uses or makes, and the
        argument that it needs in its place."""
        argument = {name: "`client`, or `base_url` and `api_key`" for name in CLIENTS}
        argument |= {name: "`model`" for name in LANGCHAIN_MODELS}
        for call in _calls(node):
            if (made := argument.get(_last_name(call.func))) is not None:
                return f"makes {_shown(call)}", f"give it an argument {made}"
        read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        for name, call in self.models_of_the_module():
            if name in read:
                advice = f"give it an argument {argument[_last_name(call.func)]}"
                return f"uses {name} of line {call.lineno}", advice
        return None

    def _of_variable(self, node: ast.Assign | ast.AnnAssign) -> Iterator[FoundAgent]:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        maker = node.value
        if isinstance(target, ast.Name) and maker is not None and self._is_maker(maker):
            yield self._rebuilt(target.id, maker, f"{target.id} = {_shown(maker)}")

    def _of_class(self, node: ast.ClassDef) -> Iterator[FoundAgent]:
        methods = (each for each in node.body if isinstance(each, Function))
        init = next((each for each in methods if each.name == "__init__"), None)
        if init is None:
            return
        parameters = _Parameters.of(init, is_method=True)
        if any(_last_name(base) in ("ReActAgent", "AgentBase") for base in node.bases):
            model = parameters.first(MODEL_NAMES)
            problem = None if model else "its __init__ takes no model: give it an argument `model`"
            call = f"{MINE}.{node.name}({model}=model)"
            described = f"the AgentScope agent {node.name}"
            agent = FoundAgent("agentscope", node.name, node.lineno, described, call)
            yield _checked(agent, parameters.without(model), problem)
            return
        given = self._given(init, parameters)
        if given is None:
            if (own := self._own_model(init)) is not None:
                described = f"the class {node.name}, whose __init__ {own[0]}"
                yield FoundAgent("openai", node.name, node.lineno, described, problem=own[1])
            return
        method, problem = _method_of(node)
        called = "" if method is None or method.name == "__call__" else f".{method.name}"
        is_async = isinstance(method, ast.AsyncFunctionDef)
        agent = FoundAgent(
            given.handing,
            node.name,
            node.lineno,
            f"the class {node.name}, which takes {', '.join(given.values)}",
            f"{MINE}.{node.name}({given.keywords}){called}(question)",
            answers=True,
            is_async=is_async,
            has_sync_client=parameters.has_sync_client(is_async=is_async),
        )
        yield _checked(agent, parameters.without(*given.values), problem)

    def _builder(self, node: Function, parameters: _Parameters, maker: ast.Call) -> FoundAgent:
        """Returns the agent of a function that makes and returns one."""
        model = self._model_parameter(node, parameters)
        described = f"{node.name}(), which makes {_shown(maker)}"
        is_async = isinstance(node, ast.AsyncFunctionDef)
        if _framework(maker) == "agents_sdk":
            call = f"await {MINE}.{node.name}()" if is_async else f"{MINE}.{node.name}()"
            agent = FoundAgent("agents_sdk", node.name, node.lineno, described, call)
            return _checked(agent, parameters, None)
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

    def _answering(self, node: Function, parameters: _Parameters, given: _Given) -> FoundAgent:
        """Returns the agent of a function that takes the model and a question."""
        others = parameters.without(*given.values)
        listed = ", ".join(others.required)
        is_async = isinstance(node, ast.AsyncFunctionDef)
        agent = FoundAgent(
            given.handing,
            node.name,
            node.lineno,
            f"{node.name}(), which takes {', '.join(given.values)}",
            f"{MINE}.{node.name}({listed}=question, {given.keywords})",
            answers=True,
            is_async=is_async,
            has_sync_client=parameters.has_sync_client(is_async=is_async),
        )
        if len(others.required) == 1:
            return agent
        taken = f"it takes {listed} besides" if listed else "it takes nothing besides"
        return replace(agent, problem=f"{taken}, where one question is expected")

    def _rebuilt(self, name: str, maker: ast.Call, described: str) -> FoundAgent:
        """Returns the agent of a call that the workflow repeats with the trained model."""
        agent = FoundAgent(_framework(maker), name, maker.lineno, described)
        if agent.handing == "agents_sdk" and name in self._names - self._own:
            return replace(agent, call=f"{MINE}.{name}")  # a run is told which model to use
        advice = "make it in a function with an argument `model` that returns it"
        if _last_name(maker.func) == "compile":
            return replace(agent, problem=f"its nodes have their model already: {advice}")
        call, problem = self._with_model(maker)
        if problem is not None:
            return replace(agent, problem=f"{problem}: {advice}")
        return replace(agent, call=call)

    # --- where a model goes in -------------------------------------------------------------------

    def _given(self, node: Function, parameters: _Parameters) -> _Given | None:
        """Returns how the trained model is handed to these parameters; None where none takes it."""
        name = {each: '"ajet"' for each in ("model", "model_name") if each in parameters.required}
        if (client := parameters.client()) is not None:
            return _Given("openai", {client: "client"} | name)
        if (base_url := parameters.first(ADDRESS_NAMES)) is not None:
            key = {"api_key": "api_key"} if "api_key" in parameters.names else {}
            return _Given("address", {base_url: "base_url"} | key | name)
        if (model := self._model_parameter(node, parameters)) is None:
            return None
        if self._imported & {"langchain", "langgraph", "langchain_core"}:
            return _Given("langchain", {model: "model"})
        return _Given("agentscope", {model: "model"}) if "agentscope" in self._imported else None

    def _model_parameter(self, node: Function, parameters: _Parameters) -> str | None:
        """Returns the parameter that is a framework's model: what an agent is made of, else one of
        a model's usual name that is no text."""
        makers = [call for call in ast.walk(node) if self._is_maker(call)]
        passed = {each for call in makers for each in _names_of_model(call)}
        given = [
            name for name in parameters.names if name in passed and name not in parameters.texts
        ]
        usual = [name for name in MODEL_NAMES if name in parameters.names]
        return next((name for name in [*given, *usual] if name not in parameters.texts), None)

    def _is_maker(self, node: ast.AST) -> TypeGuard[ast.Call]:
        """Tells whether this call makes an agent of a framework that the file imports."""
        if not isinstance(node, ast.Call):
            return False
        name = _last_name(node.func)
        if name == "compile":  # a graph's: re.compile takes an argument
            is_method = isinstance(node.func, ast.Attribute)
            return is_method and not node.args and "langgraph" in self._imported
        if name in GRAPH_MAKERS:
            return bool(self._imported & {"langchain", "langgraph"}) and name not in self._own
        if name == "Agent":
            return "agents" in self._imported and name not in self._own_classes
        return name == "ReActAgent" and "agentscope" in self._imported

    def _returns_agent(self, node: Function) -> bool:
        """Tells whether the function returns what a maker made."""
        made = {
            target.id
            for each in ast.walk(node)
            if isinstance(each, ast.Assign) and self._is_maker(each.value)
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
        return any(
            value is not None
            and (self._is_maker(value) or (isinstance(value, ast.Name) and value.id in made))
            for value in returned
        )

    # --- repeating a call, and programs ----------------------------------------------------------

    def _with_model(self, maker: ast.Call) -> tuple[str, str | None]:
        """Returns the call with the trained model in it, its names looked up in the user's module,
        and why that cannot be."""
        call = copy.deepcopy(maker)
        is_react = _last_name(call.func) == "ReActAgent"
        position = 2 if is_react else 0
        trained = ast.Name("model", ast.Load())
        keyword = next((each for each in call.keywords if each.arg == "model"), None)
        if _framework(call) == "agents_sdk":
            call.keywords = [each for each in call.keywords if each is not keyword]
        elif keyword is not None:
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
        """Returns where the program reads its question; None where that is unclear."""
        declared = [
            each.args[0].value
            for each in _calls(self._tree)
            if _last_name(each.func) == "add_argument"
            and each.args
            and isinstance(each.args[0], ast.Constant)
        ]
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

    def _reads_address(self) -> bool:
        makes_client = any(
            _last_name(call.func) in (*CLIENTS, "ChatOpenAI") for call in _calls(self._tree)
        )
        return makes_client or any(
            isinstance(node, ast.Constant) and node.value in ADDRESS_VARIABLES
            for node in ast.walk(self._tree)
        )


@dataclass(frozen=True)
class _Given:
    """Says how the trained model is handed to parameters: each with the workflow's expression."""

    handing: Handing
    values: dict[str, str]

    @property
    def keywords(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


@dataclass(frozen=True)
class _Parameters:
    """Holds the parameters of a function by name, with their annotations as text. `texts` are those
    that are strings by annotation or default."""

    annotations: dict[str, str]
    required: tuple[str, ...]
    texts: frozenset[str]

    @classmethod
    def of(cls, node: Function, *, is_method: bool = False) -> _Parameters:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        defaults = [*padding, *arguments.defaults, *arguments.kw_defaults]
        pairs = list(zip([*positional, *arguments.kwonlyargs], defaults, strict=True))
        annotations = {
            each.arg: ast.unparse(each.annotation) if each.annotation else "" for each, _ in pairs
        }
        required = tuple(each.arg for each, default in pairs if default is None)
        texts = {
            each.arg
            for each, default in pairs
            if annotations[each.arg].startswith("str")
            or (isinstance(default, ast.Constant) and isinstance(default.value, str))
        }
        found = cls(annotations, required, frozenset(texts))
        return found.without(positional[0].arg) if is_method and positional else found

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
        """Tells whether the client is one that blocks: by its annotation, or else by the function
        that uses it."""
        words = re.findall(r"\w+", self.annotations.get(self.client() or "", ""))
        return "AsyncOpenAI" not in words and ("OpenAI" in words or not is_async)

    def without(self, *names: str | None) -> _Parameters:
        kept = {name: kind for name, kind in self.annotations.items() if name not in names}
        return _Parameters(kept, tuple(each for each in self.required if each in kept), self.texts)


def _checked(agent: FoundAgent, others: _Parameters, problem: str | None) -> FoundAgent:
    """Returns the agent, with the problem of arguments that nobody can give."""
    if problem is None and others.required:
        problem = f"it also needs {', '.join(others.required)}: give them defaults"
    return agent if problem is None else replace(agent, problem=problem)


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


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _framework(maker: ast.Call) -> Handing:
    by_name: dict[str, Handing] = {"ReActAgent": "agentscope", "Agent": "agents_sdk"}
    return by_name.get(_last_name(maker.func), "langchain")


def _names_of_model(maker: ast.Call) -> Iterator[str]:
    """Yields the variable that the call is given as its model."""
    position = 2 if _last_name(maker.func) == "ReActAgent" else 0
    given = [each.value for each in maker.keywords if each.arg == "model"]
    for value in [*given, *maker.args[position : position + 1]]:
        if isinstance(value, ast.Name):
            yield value.id


def _shown(maker: ast.Call) -> str:
    return f"{ast.unparse(maker.func)}(…)"


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _imported_packages(node: ast.AST) -> Iterator[str]:
    """Yields the packages that an import statement imports from."""
    if isinstance(node, ast.Import):
        yield from (each.name.partition(".")[0] for each in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield (node.module or "").partition(".")[0]


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
