import io
import sys

import pytest
from rich.console import Console

from ajet.backbones.debug.training import fit_debug
from ajet.core.config import load_config
from tests.e2e.toy_run import ToyRun


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder above a project with its run of one step."""
    folder = tmp_path_factory.mktemp("above")
    with pytest.MonkeyPatch.context() as patch:
        toy = ToyRun(folder / "toy")
        patch.chdir(toy.folder)
        patch.setattr(sys, "path", list(sys.path))
        one = ["ajet.trainer_common.total_training_steps=1"]
        config = load_config("toy.yaml", one, backbone="debug")
        fit_debug(config, Console(file=io.StringIO()))
    return folder


@pytest.fixture
def above(folder, monkeypatch):
    """The commands are not given in the run's own folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
