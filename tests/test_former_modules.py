"""Modules are importable under the names that they had in 0.1.0."""

import subprocess
import sys
from importlib import import_module
from pkgutil import walk_packages

import pytest

from ajet.former_modules import FORMER_NAMES


@pytest.mark.parametrize(("former", "present"), FORMER_NAMES.items())
def test_a_module_has_its_former_name_too_and_is_the_same_module(former, present):
    package = import_module(present)
    paths = getattr(package, "__path__", [])  # a single module has none
    names = [present]
    names += [m.name for m in walk_packages(paths, f"{present}.") if "__" not in m.name]
    for name in names[:8]:
        module = import_module(name)
        assert import_module(former + name.removeprefix(present)) is module
        assert module.__spec__.name == name


def test_a_module_that_never_existed_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"ajet\.envs\.nothing"):
        import_module("ajet.envs.nothing")


def test_a_package_can_be_started_under_its_former_name():
    command = [sys.executable, "-m", "ajet.tools.env_service", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: ")
