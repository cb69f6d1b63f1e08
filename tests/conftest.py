"""What every test starts from."""

import gc
import importlib
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest
from loguru import logger

from tests.e2e.toy_run import ToyRun

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("ajet", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("ajet")

LONG = (
    "tests/e2e/",
    "tests/core/update/test_ranks.py",
    "tests/backbones/",
    "tests/cluster/",
    "tests/cli/",
    "tests/core/run/",
    "tests/core/rollout/test_hostile_values.py",
    "tests/tutorial/",
    "tests/test_guides.py",
)
"""Files whose tests start many processes or runs. They come first, so that where several processes
share the tests (`make test`) none of them is left with a long file at the end."""


RAY_TIMEOUT_S = 2700
"""What a test on Ray may take, which starts a few processes, each with its imports. What any other
test may take is in pyproject.toml."""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("ray") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(RAY_TIMEOUT_S))
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_collection():
    """Stops garbage collection while files are imported: what they make stays, and to visit it
    again and again takes a fifth of the time."""
    gc.disable()


def pytest_collection_finish():
    """Leaves the modules and the tests out of garbage collection, which would visit their millions
    of objects again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def same_torch():
    """A test may set torch's threads and its rounding; the next one gets the number that was there
    before, and subnormal numbers."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)
    if torch := sys.modules.get("torch"):  # the test may have imported it
        torch.set_flush_denormal(False)


@pytest.fixture
def warnings():
    """What was logged as a warning, line by line."""
    lines = []
    sink = logger.add(lambda line: lines.append(line.record["message"]), level="WARNING")
    yield lines
    logger.remove(sink)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A toy run in the working folder; `sys.path` is put back after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return ToyRun(tmp_path)


REFERENCES = Path(__file__).parents[1] / ".venv" / "references"
"""Independent implementations, installed from tests/references.txt."""


@pytest.fixture(scope="session")
def verl_core_algos():
    """verl's estimators and losses, imported once.

    The folder is last on the path and only while the import runs: it has packages `tests` and
    `scripts` of its own. What the import sets for the whole process is taken back.
    """
    if not REFERENCES.is_dir():
        pytest.skip(f"no verl to compare with: {REFERENCES} is missing, `make setup` installs it")
    environ, handlers = set(os.environ), list(logging.root.handlers)
    sys.path.append(str(REFERENCES))
    try:
        return importlib.import_module("verl.trainer.ppo.core_algos")
    finally:
        sys.path.remove(str(REFERENCES))
        logging.root.handlers[:] = handlers
        for name in set(os.environ) - environ:
            del os.environ[name]


@pytest.fixture(scope="session")
def ray_session():
    """One Ray for all tests that need it: it takes ten seconds to start. That of RAY_ADDRESS, if it
    is set."""
    ray = pytest.importorskip("ray")
    from ajet.cluster.session import start_ray

    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: it holds sockets
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False)
    else:
        start_ray(folder, num_cpus=8, num_gpus=0, log_to_driver=False)
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
