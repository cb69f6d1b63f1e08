"""The file that runs inside vLLM's worker: it stands alone, and checks before it loads."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from ajet.core.weight_sync.folder import WeightFolder
from ajet.servers.vllm import EXTENSION_FOLDER, WORKER_EXTENSION

ROOT = Path(__file__).parents[2]
MODULE, CLASS = WORKER_EXTENSION.split(".")
SERVER = f"""
import importlib.util, json, sys
import {MODULE}
found = importlib.util.find_spec("torch")
own = [name for name in sys.modules if name.partition(".")[0] == "ajet"]
print(json.dumps([found.origin, {MODULE}.__file__, own]))
"""


def test_the_server_gets_the_extension_and_nothing_that_is_installed_beside_ajet(tmp_path):
    """As where ajet is installed in site-packages, beside a torch of its own."""
    site = tmp_path / "site-packages"
    shutil.copytree(ROOT / "ajet", site / "ajet", ignore=shutil.ignore_patterns("embedded"))
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('the torch beside ajet')")
    environment = (
        "import json; from ajet.servers.vllm import VllmServerArgs;"
        "print(json.dumps(dict(VllmServerArgs('m', 1, 'p').environment())))"
    )
    given = run(environment, {"PYTHONPATH": str(site)}, tmp_path)
    torch_file, extension, own = run(SERVER, given, tmp_path)
    assert not torch_file.startswith(str(site)) and own == []
    assert extension == str(site / "ajet/servers/worker_extension" / f"{MODULE}.py")


def run(code, environment, folder):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def worker():
    spec = spec_from_file_location(MODULE, EXTENSION_FOLDER / f"{MODULE}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    class Worker(getattr(module, CLASS)):
        """vLLM's worker: its `reload_weights` sets vLLM's config around that of its runner, so
        that the runner, which is not here, must not be called."""

        loaded = None

        def get_model(self):
            return torch.nn.Linear(2, 3, bias=False)

        def reload_weights(self, *, weights_iterator):
            self.loaded = dict(weights_iterator)

    return Worker()


@pytest.fixture
def folder(tmp_path):
    return WeightFolder(tmp_path / "weights", shard_bytes=30)


def test_weights_are_loaded_by_the_workers_own_method(worker, folder):
    sent = {"weight": torch.arange(6.0).reshape(3, 2), "scale": torch.ones(3)}
    source = folder.write(7, sent.items())
    report = worker.ajet_load_weights(str(source.path), "7", str(source.path))
    assert report.pop("seconds") > 0
    assert report == {"version": 7, "num_bytes": 24 + 12}
    assert all(torch.equal(worker.loaded[name], sent[name]) for name in sent)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"weight": (3, 2)}, "missing scale"),
        ({"weight": (3, 2), "scale": (4,)}, "scale is [4], the served model's is [3]"),
        (
            {"weight": (3, 2), "scale": (3,), "a": (1,), "b": (1,), "c": (1,), "d": (1,)},
            "the served model has no tensor a, b, c and 1 more",
        ),
    ],
)
def test_weights_of_another_model_are_refused_before_any_is_loaded(
    worker, folder, tmp_path, sent, error
):
    model = WeightFolder(tmp_path / "model").write(
        0, {"weight": torch.ones(3, 2), "scale": torch.ones(3)}.items()
    )
    source = folder.write(1, {name: torch.ones(shape) for name, shape in sent.items()}.items())
    report = worker.ajet_load_weights(str(source.path), "1", str(model.path))
    assert report == {"error": f"weights of version 1: {error}"} and worker.loaded is None


def test_an_output_layer_may_be_tied_on_either_side(worker, folder, tmp_path):
    tied, untied = {"weight": torch.ones(3, 2)}, {"lm_head.weight": torch.ones(3, 2)}
    model = WeightFolder(tmp_path / "model").write(0, (tied | untied).items())
    source = folder.write(1, tied.items())
    assert "error" not in worker.ajet_load_weights(str(source.path), "1", str(model.path))
