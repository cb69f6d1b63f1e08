"""The AST checker of the Berkeley Function Calling Leaderboard, from its installed package.

[{"add": {"a": 2}}], [{"add": {"a": [1, 1.0]}}]   ->   "value_error:others"
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.suites.suite import Prompting, package_folder

MODULE = "bfcl_eval"
INSTALL = "pip install --no-deps bfcl-eval"
CHECKER = f"{MODULE}.eval_checker.ast_eval.ast_checker"
HANDLERS = f"{MODULE}.constants.model_config"
UNDERSCORES = {"tools": True, "text": False}
"""Whether function names have underscores for dots, by the form of a prompt. BFCL writes them so
for APIs with tools."""

Calls = Sequence[Mapping[str, Mapping[str, Any]]]


def data_folder() -> Path:
    return package_folder(MODULE, install=INSTALL, wanted_by="BFCL") / "data"


def constants(name: str) -> ModuleType:
    """Returns a module of the package's constants; none of them imports a handler."""
    data_folder()
    return import_module(f"{MODULE}.constants.{name}")


def call_problem(
    category: str,
    functions: list[dict[str, Any]],
    calls: Calls,
    possible: list[dict[str, Any]],
    prompting: Prompting,
) -> str | None:
    """Returns the checker's name for what is wrong with the calls; None if they are right. Calls on
    which the checker fails, as on an object instead of a text, are wrong."""
    check, python = _checker()
    try:
        verdict = check(functions, list(calls), possible, python, category, prompting)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"checker:{type(error).__name__}"
    return None if verdict["valid"] else str(verdict["error_type"])


@cache
def _checker() -> tuple[Callable[..., dict[str, Any]], Any]:
    """Loads the checker without adding it to sys.modules: a process that has the whole package can
    still import the original later.

    The package depends on some thirty others: its checker imports the table of all model handlers,
    only to read whether a model's function names have underscores for dots. Here it gets a table of
    two entries, so that `pip install --no-deps bfcl-eval` is enough."""
    data_folder()  # raises an error that says how to install the package
    handlers: Any = ModuleType(HANDLERS)
    handlers.MODEL_CONFIG_MAPPING = {
        name: SimpleNamespace(underscore_to_dot=flag) for name, flag in UNDERSCORES.items()
    }
    spec = find_spec(CHECKER)
    if spec is None or spec.loader is None:
        raise ConfigError(
            f"bfcl_eval has no {CHECKER}: install a version that has: {INSTALL} -U",
            code=Code.PACKAGE_VERSION,
        )
    # While the checker is imported, the table stands in for the module of handlers.
    module: Any = module_from_spec(spec)
    before = sys.modules.get(HANDLERS)
    sys.modules[HANDLERS] = handlers
    try:
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del sys.modules[HANDLERS]
        else:
            sys.modules[HANDLERS] = before
    return module.ast_checker, constants("enums").Language.PYTHON
