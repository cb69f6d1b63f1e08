"""Runs ajet in an interpreter that lacks modules or system calls, as another machine lacks them.

    python restricted.py '{"modules": ["torch"], "names": ["os.fork"]}' check --conf x.yaml

A module is refused to ajet's own files alone, since the standard library has its own ways without
(and imports what it needs before that, with the packages in `before`).
"""

import builtins
import importlib
import json
import sys


def restrict(modules, names, before=()):
    for name in ("asyncio", "multiprocessing", "subprocess", *before):
        importlib.import_module(name)
    original = builtins.__import__

    def import_(name, given=None, *args, **rest):
        importer = str((given or rest.get("globals") or {}).get("__name__"))
        if name.partition(".")[0] in modules and importer.startswith(("ajet", "tutorial")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, given, *args, **rest)

    builtins.__import__ = import_
    for name in names:
        module, _, attribute = name.partition(".")
        vars(sys.modules[module]).pop(attribute, None)


if __name__ == "__main__":
    restrict(**json.loads(sys.argv[1]))
    from ajet.cli.launcher import app

    for command in " ".join(sys.argv[2:]).split(" ; "):
        try:
            app(command.split(), prog_name="ajet")
        except SystemExit as end:
            if end.code:
                raise
