"""A toy run in the working folder, by its name."""

import sys

import pytest

from tests.e2e.toy_run import ToyRun


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))

    def made(name):
        run = ToyRun(tmp_path / name)
        monkeypatch.chdir(run.folder)
        return run

    return made
