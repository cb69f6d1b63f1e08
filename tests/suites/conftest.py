"""A package in BFCL's form on sys.path, and the real ones where they are installed."""

import sys
from importlib.util import find_spec

import pytest

from ajet.suites import bfcl_checker
from tests.suites.bfcl_package import write_bfcl


def _forget(module):
    for name in [n for n in sys.modules if n == module or n.startswith(f"{module}.")]:
        del sys.modules[name]
    bfcl_checker._checker.cache_clear()


@pytest.fixture
def bfcl_package(tmp_path, monkeypatch):
    """The folder of a small package `bfcl_eval`, which comes before an installed one."""
    folder = tmp_path / "site"
    write_bfcl(folder)
    _forget("bfcl_eval")
    monkeypatch.syspath_prepend(folder)
    yield folder / "bfcl_eval"
    _forget("bfcl_eval")


@pytest.fixture
def real_bfcl():
    _forget("bfcl_eval")
    if find_spec("bfcl_eval") is None:
        pytest.skip("bfcl_eval is not installed: pip install --no-deps bfcl-eval")
