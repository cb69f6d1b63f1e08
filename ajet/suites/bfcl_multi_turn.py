"""BFCL's multi_turn_base: several requests in a row to services that the benchmark simulates.

user       Move report.pdf to temp.                   a task has one to seven such turns
assistant  mv(source="report.pdf", destination="temp")
tool       {"result": "moved to temp"}                calls until a reply has none
"""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.errors import DataError, KeysConflict
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import EpisodeTruncated
from ajet.core.workflow.workflow import Workflow
from ajet.suites.bfcl import PYTHON_HINT, as_tools, category_file, tool_calls
from ajet.suites.bfcl_checker import MODULE, constants, data_folder
from ajet.suites.suite import Suite, SuiteDataError, SuiteSection, field, prompting, read_json_lines

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.workflow.tuner import ModelTuner

CATEGORY = "multi_turn_base"
MAX_STEPS = 20
"""The replies with calls that a turn may have; one more ends the episode, and the task is lost."""
BANNED = ("kill", "exit", "quit", "remove", "unlink", "popen", "Popen", "run")
"""Names of functions that the benchmark refuses to call."""
DIGITS = frozenset({"exponent", "precision"})
"""Arguments of the services that say how many digits to compute."""
MAX_DIGITS = 10_000
CHECKS = f"{MODULE}.eval_checker.multi_turn_eval.multi_turn_checker"

Row = dict[str, Any]
Call = dict[str, dict[str, Any]]


def read_tasks(folder: Path | None) -> list[Task]:
    """Returns the tasks; `metadata` has `question`, the messages of each turn, `ground_truth`, the
    reference calls of each turn as Python, and the `function`s of the involved services."""
    questions = category_file(folder or data_folder(), CATEGORY)
    answers = category_file(questions.parent / "possible_answer", CATEGORY)
    truths = {row["id"]: row["ground_truth"] for row in read_json_lines(answers)}
    documentation = questions.parent / "multi_turn_func_doc"
    files = constants("executable_backend_config").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    functions: dict[str, list[Row]] = {}
    tasks: list[Task] = []
    for row in read_json_lines(questions):
        name = field(row, "id", str, questions)
        num_turns, num_answered = len(row["question"]), len(truths.get(name, []))
        if num_turns != num_answered:
            raise SuiteDataError(
                f"{questions}: row {name}: question has {num_turns} turns, possible_answer "
                f"{num_answered}"
            )
        offered: list[Row] = []
        for service in row["involved_classes"]:
            if service not in functions:
                # A service's functions, as a model is told of them.
                listing = documentation / files[service]
                functions[service] = list(read_json_lines(listing))
                for function in functions[service]:
                    function["description"] += PYTHON_HINT
            offered += functions[service]
        first = row["question"][0][-1]["content"]
        metadata = {**row, "function": offered, "ground_truth": truths[name]}
        tasks.append(Task(name, first, metadata=metadata))
    return tasks


def service_classes(row: Row) -> dict[str, type[Any]]:
    """Returns the classes of the task's services, of modules that are executed anew: functions of
    the package have lists as defaults, in which calls leave what other tasks would find."""
    paths = constants("executable_backend_config").CLASS_FILE_PATH_MAPPING
    classes: dict[str, type[Any]] = {}
    for name in row["involved_classes"]:
        spec = find_spec(paths[name])
        assert spec is not None and spec.loader is not None, paths[name]
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        classes[name] = getattr(module, name)
    return classes


class Services:
    """The simulated services of one task, in the state in which it begins."""

    def __init__(self, row: Row, classes: Mapping[str, type[Any]]):
        backend = constants("executable_backend_config")
        self.instances: dict[str, Any] = {}
        self._methods: dict[str, Callable[..., Any]] = {}
        for name, service_class in classes.items():
            instance = service_class()
            if name not in backend.STATELESS_CLASSES:
                config = copy.deepcopy(row["initial_config"].get(name, {}))
                instance._load_scenario(config, long_context=False)  # the package's own entry
            self.instances[name] = instance
            methods = {key: getattr(instance, key) for key in dir(instance) if key[0] != "_"}
            self._methods |= {key: method for key, method in methods.items() if callable(method)}

    def call(self, name: str, /, *values: Any, **arguments: Any) -> str:
        """Calls a function; returns its result as the benchmark writes it, errors too. Numbers that
        would be computed for hours are such an error."""
        if name in BANNED:
            return f"Error during execution: Function call {name} is not allowed."
        if name not in self._methods:
            return f"Error during execution: name '{name}' is not defined"
        for key in DIGITS.intersection(arguments):
            if isinstance(arguments[key], int | float) and abs(arguments[key]) > MAX_DIGITS:
                return f"Error during execution: {key} is more than {MAX_DIGITS}"
        # The services keep lists that they are given, and change them.
        values, arguments = copy.deepcopy((values, arguments))
        try:
            result = self._methods[name](*values, **arguments)
            try:
                return json.dumps(result) if isinstance(result, dict) else str(result)
            except (TypeError, ValueError):
                return str(result)
        except Exception as error:  # noqa: BLE001 - to the benchmark, any error is a result
            return f"Error during execution: {error}"

    def answers(self, calls: list[Call], written: list[Row]) -> list[dict[str, str]]:
        """Makes the calls, and returns the message that answers each."""
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": result}
            for call, result in zip(written, self.results(calls), strict=True)
        ]

    def results(self, calls: list[Call]) -> list[str]:
        return [self.call(name, **given) for call in calls for name, given in call.items()]

    def call_written(self, call: str) -> str:
        """Calls a function as a reference answer writes it: ``sort('report.pdf')``."""
        node = ast.parse(call, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise DataError(
                f"ground_truth: {call} is not a call of a function", code=Code.SUITE_DATA
            )
        values = [ast.literal_eval(value) for value in node.args]
        arguments = {str(key.arg): ast.literal_eval(key.value) for key in node.keywords}
        return self.call(node.func.id, *values, **arguments)


class MultiTurnAgent(Workflow):
    """Answers each turn with calls until a reply has none. `metadata["turns"]` has the calls of
    each finished turn, reply by reply."""

    name = "bfcl_multi_turn_agent"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        row = workflow_task.task.metadata
        if prompting(model_tuner) != "tools":
            raise KeysConflict(
                f"{CATEGORY} offers functions as tools: take a model whose chat template has "
                "tools, and suite.prompting=auto"
            )
        services, tools = Services(row, service_classes(row)), as_tools(row["function"])
        messages: list[dict[str, Any]] = []
        turns: list[list[list[Call]]] = []
        for turn in row["question"]:
            messages += turn
            steps: list[list[Call]] = []
            while len(steps) <= MAX_STEPS:
                try:
                    reply = await model_tuner.chat(messages, tools)
                except EpisodeTruncated:  # judged by its finished turns; the status says so, too
                    return WorkflowOutput(metadata={"turns": turns})
                reply.pop("malformed_tool_calls", None)
                messages.append(reply)
                if not (calls := tool_calls(reply)):
                    turns.append(steps)
                    break
                steps.append(calls)
                messages += services.answers(calls, reply["tool_calls"])
            else:
                break
        return WorkflowOutput(metadata={"turns": turns})

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        SuiteSection.from_config(config)
        data_folder()


class MultiTurnJudge(BaseJudge):
    """Rewards the share of turns before the first wrong one; a task with no wrong turn is won.
    `metadata["problem"]` is the checker's name for what is wrong."""

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        row, answer = workflow_task.task.metadata, workflow_output.metadata
        right, problem = right_turns(row, answer["turns"])
        answer["problem"] = problem
        return right / len(row["ground_truth"]), problem is None


def right_turns(row: Row, turns: list[list[list[Call]]]) -> tuple[int, str | None]:
    """Returns how many turns are right before the first wrong one, and the checker's name for what
    is wrong with that; None if all are right. A turn is right if the services are then in the state
    in which the reference calls leave theirs, and if every result of a reference call has also been
    a result of the model's."""
    checks, classes = import_module(CHECKS), service_classes(row)
    services, reference = Services(row, classes), Services(row, classes)
    results: list[str] = []  # of all turns so far: a result need not be asked for again
    for number, expected in enumerate(row["ground_truth"]):
        if number == len(turns):
            return number, "multi_turn:force_terminated"
        for step in turns[number]:
            results += services.results(step)
        wanted = [reference.call_written(call) for call in expected]
        if not expected:
            continue
        if not turns[number]:
            return number, "multi_turn:empty_turn_model_response"
        verdict = checks.state_checker(services.instances, reference.instances)
        if verdict["valid"]:
            verdict = checks.response_checker(results, wanted, number)
        if not verdict["valid"]:
            return number, str(verdict["error_type"])
    return len(row["ground_truth"]), None


SUITES = (
    Suite(
        name="bfcl_multi_turn_base",
        about="several requests in a row, with calls of simulated services",
        read_tasks=read_tasks,
        workflow="ajet.suites.bfcl_multi_turn->MultiTurnAgent",
        judge="ajet.suites.bfcl_multi_turn->MultiTurnJudge",
        prompting="functions as tools of the chat template, at most 20 replies with calls a turn",
        package="bfcl-eval",
        max_prompt_length=8192,
        max_response_length=4096,
    ),
)
