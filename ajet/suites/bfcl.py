"""BFCL v4, the Berkeley Function Calling Leaderboard: one question, the right call of a function.

bfcl_multi_turn.py has the category of several turns. In a YAML for training, the agent and the
judge take rows of the form of `read_rows`: a question, `function`, `ground_truth`, `category`.
"""

from __future__ import annotations

import ast
import copy
import json
import operator
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.judge.judge import BaseJudge
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.workflow import Workflow
from ajet.suites.bfcl_checker import MODULE, call_problem, constants, data_folder
from ajet.suites.suite import Suite, SuiteDataError, SuiteSection, field, prompting, read_json_lines

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.workflow.tuner import ModelTuner

PYTHON_HINT = " Note that the provided function is in Python 3 syntax."
"""The leaderboard adds this to the description of each function."""
FLOAT_HINT = " This is a float type value."
NO_CALL = ("irrelevance", "live_irrelevance")
MAX_LENGTH = 50_000
MAX_EXPONENT, MAX_NUMBER = 64, 10**100
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def read_rows(category: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """Returns the rows of a category, each with its `ground_truth` (not of irrelevance), its
    `category`, and `question` as chat messages."""
    questions = category_file(folder or data_folder(), category)
    answers: dict[str, Any] = {}
    if category not in NO_CALL:
        file = category_file(questions.parent / "possible_answer", category)
        for row in read_json_lines(file):
            answers[row["id"]] = field(row, "ground_truth", list, file)
    rows: list[dict[str, Any]] = []
    for row in read_json_lines(questions):
        name = field(row, "id", str, questions)
        turns = field(row, "question", list, questions)
        functions = copy.deepcopy(field(row, "function", list, questions))
        if len(turns) != 1 or not turns[0]:
            raise SuiteDataError(
                f"{questions}: row {name}: question has {len(turns)} turns, not one"
            )
        if category not in NO_CALL and name not in answers:
            raise SuiteDataError(f"{questions}: row {name}: possible_answer has no such id")
        for function in functions:
            function["description"] = function["description"] + PYTHON_HINT
        rows.append(
            {
                "task_id": name,
                "category": category,
                "question": turns[0],
                "function": functions,
                "ground_truth": answers.get(name, []),
            }
        )
    return rows


def category_file(folder: Path, category: str) -> Path:
    """Returns the category's file of the newest version in the folder."""
    name = re.compile(rf"BFCL_v(\d+)_{category}\.json")  # multiple is not live_multiple
    versions = {
        int(match[1]): file
        for file in folder.glob("*.json")
        if (match := name.fullmatch(file.name))
    }
    if not versions:
        raise SuiteDataError(
            f"{folder}: there is no BFCL_v…_{category}.json, as {MODULE}'s data has"
        )
    return versions[max(versions)]


def read_tasks(category: str, folder: Path | None) -> list[Task]:
    tasks: list[Task] = []
    for row in read_rows(category, folder):
        *before, last = row["question"]
        tasks.append(Task(row["task_id"], last["content"], before, metadata=row))
    return tasks


def as_tools(functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the functions as tools in OpenAI's form, as the leaderboard gives them to APIs: types
    of JSON schema, and underscores for dots, which names of tools may not have."""
    types: dict[str, str] = constants("type_mappings").GORILLA_TO_OPENAPI
    tools: list[dict[str, Any]] = []
    for function in functions:
        tool = {
            "name": tool_name(function["name"]),
            "description": function["description"],
            "parameters": _schema(function["parameters"], types),
        }
        tools.append({"type": "function", "function": tool})
    return tools


def tool_name(name: str) -> str:
    return name.replace(".", "_")


def _schema(schema: dict[str, Any], types: dict[str, str]) -> dict[str, Any]:
    """Returns a schema with the types of JSON schema; an unknown type becomes string."""
    source_type = schema.get("type", "string")
    converted = {**schema, "type": types.get(source_type, "string")}
    if source_type == "float":
        converted["format"] = "float"
        if "description" in schema:
            converted["description"] = schema["description"] + FLOAT_HINT
    if isinstance(schema.get("properties"), dict):
        converted["properties"] = {
            name: _schema(inner, types) for name, inner in schema["properties"].items()
        }
    if isinstance(schema.get("items"), dict):
        converted["items"] = _schema(schema["items"], types)
    return converted


class FunctionCallingAgent(Workflow):
    """Asks the model once. `metadata["function_calls"]` is a list of ``{name: arguments}``, or None
    for a text answer that is not a list of calls; `metadata["prompting"]` is how it was asked."""

    name = "bfcl_agent"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        row = workflow_task.task.metadata
        form = prompting(model_tuner)
        messages = [dict(message) for message in row["question"]]
        if form == "tools":
            reply = await model_tuner.chat(messages, as_tools(row["function"]))
            calls = tool_calls(reply)
        else:
            prompt = system_prompt(row["function"])
            if messages[0]["role"] == "system":
                prompt = f"{prompt}\n\n{messages.pop(0)['content']}"
            messages.insert(0, {"role": "system", "content": prompt})
            reply = await model_tuner.chat(messages)
            calls = decode_calls(reply["content"])
        answer = {"final_answer": reply["content"], "function_calls": calls, "prompting": form}
        return WorkflowOutput(metadata=answer)

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        SuiteSection.from_config(config)
        data_folder()


def tool_calls(reply: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """Returns the calls of an assistant message, each as ``{name: arguments}``."""
    functions = [call["function"] for call in reply.get("tool_calls") or ()]
    return [{function["name"]: json.loads(function["arguments"])} for function in functions]


class BfclJudge(BaseJudge):
    """Gives 1 if the leaderboard's checker accepts the calls (for irrelevance, if there is none),
    else 0. `metadata["problem"]` is the checker's name for what is wrong."""

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        row, answer = workflow_task.task.metadata, workflow_output.metadata
        category, calls = row["category"], answer["function_calls"]
        if category in NO_CALL:
            problem = "irrelevance_error:decoder_success" if calls else None
        elif calls is None:
            problem = "ast_decoder:decoder_failed"
        else:
            truth, form = row["ground_truth"], answer["prompting"]
            problem = call_problem(category, row["function"], calls, truth, form)
        answer["problem"] = problem
        return float(problem is None), problem is None


def system_prompt(functions: list[dict[str, Any]]) -> str:
    """Returns the leaderboard's default prompt, from the texts of the installed package."""
    texts = constants("default_prompts")
    style = texts.PROMPT_STYLE_TEMPLATES["classic"]
    call_format = style["tool_call_no_tag"].format(
        output_format=texts.OUTPUT_FORMAT_MAPPING["python"],
        param_types=texts.PARAM_TYPE_MAPPING["python"],
    )
    listed = style["available_tools"].format(
        format="json", functions=json.dumps(functions, indent=4)
    )
    return texts.PROMPT_TEMPLATE_MAPPING["plaintext"].format(
        persona=style["persona"],
        task=style["task"],
        tool_call_format=call_format,
        multiturn_behavior=style["multiturn_behavior"],
        available_tools=listed,
    )


def decode_calls(text: str) -> list[dict[str, dict[str, Any]]] | None:
    """Returns the calls that a reply makes; None if it is not a list of calls.

        [weather(city="Rome", days=2), time.now()]  ->  [{"weather": {"city": "Rome", "days": 2}},
                                                          {"time.now": {}}]

    It follows the leaderboard's decoder: backticks around the list are removed, brackets are added,
    arguments without a name are dropped, a bare name is its text."""
    if len(text) > MAX_LENGTH:
        return None
    text = text.strip("`\n ")
    text = text if text.startswith("[") else f"[{text}"
    text = text if text.endswith("]") else f"{text}]"
    try:
        parsed = ast.parse(text.strip().strip("'"), mode="eval").body
        if isinstance(parsed, ast.Call):
            return [_call(parsed)]
        if not isinstance(parsed, ast.List | ast.Tuple | ast.Set):
            return None
        return [_call(element) for element in parsed.elts]
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> dict[str, dict[str, Any]]:
    if not isinstance(node, ast.Call):
        raise ValueError("not a call")
    names: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        names.append(function.id)
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("**arguments are not literals")
        arguments[keyword.arg] = _value(keyword.value)
    return {".".join(reversed(names)): arguments}


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return "..." if node.value is Ellipsis else node.value
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return _number(node)
    if isinstance(node, ast.List):
        return [_value(element) for element in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(element) for element in node.elts)
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key) for key in node.keys]  # None: **mapping
        if not all(isinstance(key, str | int | float | bool) for key in keys):
            raise ValueError("a key is not text or a number")
        return dict(zip(keys, map(_value, node.values), strict=True))
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        return _call(node) if node.keywords else ast.unparse(node)
    if isinstance(node, ast.Subscript):
        return ast.unparse(node)
    raise ValueError(f"{type(node).__name__} is not a literal")


def _number(node: ast.expr) -> int | float:
    """Computes arithmetic of numbers, where the leaderboard passes what a model wrote to `eval`. A
    unary plus keeps the number's sign (there it negates it). Raises ValueError for anything else,
    and for results so large that computing on would take long."""
    result: Any = None
    if isinstance(node, ast.Constant):
        result = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _number(node.operand)
        result = -operand if isinstance(node.op, ast.USub) else operand
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        base, right = _number(node.left), _number(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > MAX_EXPONENT:
            raise ValueError("the exponent is too large")
        result = ARITHMETIC[type(node.op)](base, right)
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise ValueError("not arithmetic of numbers")
    if abs(result) > MAX_NUMBER:
        raise ValueError("the number is too large")
    return result


def _suite(name: str, category: str, about: str) -> Suite:
    return Suite(
        name=name,
        about=about,
        read_tasks=partial(read_tasks, category),
        workflow="ajet.suites.bfcl->FunctionCallingAgent",
        judge="ajet.suites.bfcl->BfclJudge",
        prompting="functions as tools of the chat template where it writes them, names with "
        "underscores for dots; else BFCL's default system prompt and [f(a=1)] in the reply",
        package="bfcl-eval",
        max_response_length=512,
    )


SUITES = (
    _suite("bfcl_simple", "simple_python", "one call of the one function offered"),
    _suite("bfcl_multiple", "multiple", "one call of one of several functions"),
    _suite("bfcl_parallel", "parallel", "several calls of one function"),
    _suite("bfcl_parallel_multiple", "parallel_multiple", "several calls of several functions"),
    _suite("bfcl_irrelevance", "irrelevance", "no call: no function fits"),
)
