"""BFCL's form for models whose chat template has no tools: functions in the system prompt, calls as
Python in the reply.

    [weather(city="Rome", days=2), time.now()]  ->  [{"weather": {"city": "Rome", "days": 2}},
                                                      {"time.now": {}}]
    I cannot help with that.                    ->  None

`decode_calls` follows the leaderboard's decoder: backticks around the list are removed, brackets
are added, arguments without a name are dropped, a bare name is its text. The leaderboard passes
what a model wrote to `eval` if an argument is arithmetic; here only arithmetic of numbers is
computed. A unary plus keeps the number's sign (there it negates it).
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
    """Returns the calls that a reply makes; None if it is not a list of calls."""
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
        raise ValueError("not arithmetic of numbers")
    if abs(result) > MAX_NUMBER:
        raise ValueError("the number is too large")
    return result
