"""BFCL's form for models whose chat template has no tools: functions in the system prompt, calls as
Python in the reply.

    [weather(city="Rome", days=2), time.now()]  ->  [{"weather": {"city": "Rome", "days": 2}},
                                                      {"time.now": {}}]
    I cannot help with that.                    ->  None

`decode_calls` follows the leaderboard's decoder: backticks around the list are taken away, brackets
are added, arguments without a name are dropped, a bare name is its text. The leaderboard's passes
what a model wrote to `eval` where an argument is arithmetic; here only arithmetic of numbers is
computed. A plus in front of a number is no minus (there every sign is one).
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable
from typing import Any

from ajet.suites.bfcl_checker import constants

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


def system_prompt(functions: list[dict[str, Any]]) -> str:
    """Returns the leaderboard's default prompt, of the texts of the installed package."""
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
    """Returns the calls that a reply makes; None if it is no list of calls."""
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
        raise ValueError("no call")
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
            raise ValueError("**arguments are no literal")
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
        return {_key(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        return _call(node) if node.keywords else ast.unparse(node)
    if isinstance(node, ast.Subscript):
        return ast.unparse(node)
    raise ValueError(f"{type(node).__name__} is no literal")


def _key(node: ast.expr | None) -> Any:
    key = None if node is None else _value(node)
    if not isinstance(key, str | int | float | bool):
        raise ValueError("a key is no text or number")
    return key


def _number(node: ast.expr) -> int | float:
    """Computes arithmetic of numbers. Raises ValueError for anything else, and for results so large
    that computing on would take long."""
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
        raise ValueError("no arithmetic of numbers")
    if abs(result) > MAX_NUMBER:
        raise ValueError("the number is too large")
    return result
