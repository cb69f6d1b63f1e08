"""Imports of modules by the names that they had in 0.1.0: `ajet.envs.tiles` is
`ajet.environments.tiles`, the same module and not a copy."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

FORMER_NAMES = {
    "ajet.agents.tools": "ajet.tools",
    "ajet.core.inference.engines.openai": "ajet.core.inference.openai_endpoint",
    "ajet.core.inference.engines": "ajet.engines",
    "ajet.envs": "ajet.environments",
    "ajet.exchange": "ajet.serve.exchange",
    "ajet.logview": "ajet.read.logview",
    "ajet.online": "ajet.serve.online",
    "ajet.reports": "ajet.read.reports",
    "ajet.tools.env_service": "ajet.environments.env_service",
    "ajet.tools.nemo_gym": "ajet.environments.nemo_gym",
    "ajet.tools.verifiers": "ajet.environments.verifiers",
    "ajet.traces": "ajet.read.traces",
}


class FormerModules(MetaPathFinder):
    """Finds a module under its former name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("ajet."):  # every import of the process asks here first
            return None
        for former, present in FORMER_NAMES.items():
            if name == former or name.startswith(f"{former}."):
                present_name = present + name.removeprefix(former)
                spec = find_spec(present_name)
                if spec is None:
                    return None
                is_package = spec.submodule_search_locations is not None
                return ModuleSpec(name, PresentModule(present_name), is_package=is_package)
        return None


class PresentModule(Loader):
    """Loads a module under its present name and hands it out under the former one."""

    def __init__(self, present_name: str) -> None:
        self.present_name = present_name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.present_name)
        self.present_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.present_spec  # importlib has put the former name into it

    def get_code(self, name: str) -> CodeType | None:
        """Is asked by `python -m` under the former name."""
        spec = find_spec(self.present_name)
        loader: Any = None if spec is None else spec.loader
        return None if loader is None else loader.get_code(self.present_name)


def install() -> None:
    """Adds the finder to sys.meta_path, once; others would find a second copy of a submodule."""
    if not any(isinstance(finder, FormerModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, FormerModules())  # before the path of a package that has moved
