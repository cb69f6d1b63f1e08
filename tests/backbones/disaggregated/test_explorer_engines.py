"""When the explorer's engines on Ray are started, and with what; fakes stand for them. And how long
the weights stay that they are started with.
"""

import sys

import pytest

pytest.importorskip("ray")
from ajet.backbones.disaggregated.training import ExplorerEngines, TrainerOnRay
from ajet.cluster.placement import Node, Placement
from ajet.core.config import load_config
from ajet.core.record.run_folder import RunFolder, RunOrigin
from ajet.core.weight_sync.folder import LOCK, FolderSource
from ajet.core.weight_sync.manifest import WeightsError
from ajet.servers.serving import ServerSpec
from tests.fakes import installed


class ToldEngines:
    """Keeps what it is told; the first start fails where `fails` says so."""

    def __init__(self, fails=False):
        self.told, self.fails = [], fails

    async def check(self, engine, on_gpu):
        self.told.append(("check", engine, on_gpu))

    async def start(self, server=None):
        self.told.append(("start", server))
        if self.fails:
            self.fails = False
            raise WeightsError("removed meanwhile")

    async def load(self, source):
        self.told.append(("load", source.version))


def weights(folder, version):
    """Weights of this version, whose files nobody reads here."""
    path = folder / f"v{version}"
    path.mkdir()
    (path / LOCK).touch()
    return FolderSource(path, version)


@pytest.fixture
def explorers(tmp_path):
    (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}\n")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    RunOrigin(None, None, ".", "2026-01-01", [7, 8]).write(folder.origin_json)

    def of(engines, name, *more, on_gpu):
        asked = [f"ajet.rollout.name={name}", *more]
        config = load_config(tmp_path / "run.yaml", asked, backbone="trinity")
        return ExplorerEngines(engines, config, folder, on_gpu=on_gpu)

    return of


@pytest.mark.parametrize(
    ("name", "on_gpu", "engine"),
    [("auto", True, "sglang"), ("vllm", False, "vllm"), ("sglang", True, "sglang")],
)
async def test_servers_begin_with_the_weights_that_the_trainer_publishes_first(
    explorers, tmp_path, monkeypatch, name, on_gpu, engine
):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    installed(tmp_path, "sglang", "0.5.23")
    engines = ToldEngines()
    serving = explorers(engines, name, on_gpu=on_gpu)
    await serving.start()
    assert engines.told == [("check", engine, on_gpu)]
    first, second = weights(tmp_path, 3), weights(tmp_path, 4)
    await serving.load(first)
    await serving.load(second)
    server = ServerSpec(engine, on_gpu, first, (7, 8))
    assert engines.told[1:] == [("start", server), ("load", 3), ("load", 4)]


async def test_servers_of_several_adapters_begin_with_the_base_that_the_trainer_has_written(
    explorers, tmp_path
):
    engines = ToldEngines()
    several = "ajet.trainer_common.lora={rank: 4, adapters: [pro, con]}"
    serving = explorers(engines, "vllm", several, on_gpu=False)
    await serving.load(weights(tmp_path, 3))
    base = FolderSource(tmp_path / "run" / "weights" / "v00000000", 0)
    assert engines.told == [("start", ServerSpec("vllm", False, base, (7, 8))), ("load", 3)]


async def test_an_in_process_engine_is_there_before_any_weights(explorers, tmp_path):
    engines = ToldEngines()
    serving = explorers(engines, "auto", on_gpu=False)
    await serving.start()
    await serving.load(weights(tmp_path, 1))
    assert engines.told == [("start", None), ("load", 1)]


async def test_weights_that_are_gone_are_found_before_the_engines_hold_requests(
    explorers, tmp_path
):
    engines = ToldEngines()
    serving = explorers(engines, "auto", on_gpu=False)
    await serving.start()
    with pytest.raises(WeightsError, match="v2 is not there"):
        await serving.load(FolderSource(tmp_path / "v2", 2))
    assert engines.told == [("start", None)]


async def test_servers_start_with_newer_weights_where_the_first_are_gone(explorers, tmp_path):
    engines = ToldEngines(fails=True)
    serving = explorers(engines, "vllm", on_gpu=True)
    with pytest.raises(WeightsError):
        await serving.load(weights(tmp_path, 1))
    await serving.load(weights(tmp_path, 2))
    assert [name for name, _ in engines.told] == ["start", "start", "load"]
    assert engines.told[1][1].weights.version == 2


class Attempt(TrainerOnRay):
    """An attempt of a trainer without ranks, which needs no Ray."""

    def __init__(self, config, folder):
        self.config, self.folder = config, folder
        here = Node("here", 2.0, 0)
        self.make_processes(Placement((here,), (), (), ()), lambda process: {})


def test_weights_outlive_the_trainers_attempt_for_engines_that_are_lost_before_the_next(
    tmp_path, monkeypatch
):
    (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}\n")
    config = load_config(tmp_path / "run.yaml", ["trinity.mode=train"], backbone="trinity")
    folder = RunFolder(tmp_path / "run")
    folder.weights.mkdir(parents=True)
    published = weights(folder.weights, 3)
    Attempt(config, folder).close()
    assert published.path.exists()
    Attempt(config, folder)
    assert published.path.exists()
