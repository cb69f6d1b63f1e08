"""The file that runs inside vLLM's worker: it stands alone, and checks before it loads."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from ajet.core.net.rendezvous import listen
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.broadcast import (
    BroadcastReceiver,
    BroadcastSender,
)
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.group import BroadcastGroup
from ajet.core.weight_sync.manifest import TensorInfo
from ajet.servers.process import free_port
from ajet.servers.settings import EXTENSION_FOLDER, WORKER_EXTENSION
from tests.handover import two_senders

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
    """The paths are those of an ajet in site-packages, beside a torch of its own."""
    site = tmp_path / "site-packages"
    shutil.copytree(ROOT / "ajet", site / "ajet", ignore=shutil.ignore_patterns("embedded"))
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('the torch beside ajet')")
    environment = (
        "import json; from ajet.servers.settings import VllmServerArgs;"
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
def make_worker():
    spec = spec_from_file_location(MODULE, EXTENSION_FOLDER / f"{MODULE}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    class Worker(getattr(module, CLASS)):
        """vLLM's worker: its `reload_weights` sets vLLM's config around that of its runner, so
        that the runner, which is not here, must not be called."""

        loaded, device = None, torch.device("cpu")

        def __init__(self, rank):
            self.rank = rank

        def get_model(self):
            return torch.nn.Linear(2, 3, bias=False)

        def reload_weights(self, *, weights_iterator):
            self.loaded = dict(weights_iterator)

    return Worker


@pytest.fixture
def worker(make_worker):
    return make_worker(1)


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


BASE = {"weight": torch.ones(3, 2), "scale": torch.ones(3)}
ADAPTERS = Adapters({"weight": 0.5}, "float32", "-")
FACTORS = {
    "weight.lora_A": torch.tensor([[1.0, 2.0]]),
    "weight.lora_B": torch.tensor([[1.0], [0.0], [-1.0]]),
}
WITH_ADAPTERS = [[1.5, 2.0], [1.0, 1.0], [0.5, 0.0]]


def test_adapters_alone_are_added_to_the_base_in_the_models_folder(worker, folder, tmp_path):
    model = WeightFolder(tmp_path / "model").write(0, BASE.items())
    source = folder.write(7, FACTORS.items(), ADAPTERS)
    for _ in range(2):  # to the base, and not to what the first time made of it
        report = worker.ajet_load_weights(
            str(source.path), "7", str(model.path), adapters=ADAPTERS.dumps()
        )
        assert report.pop("seconds") > 0
        assert report == {"version": 7, "num_bytes": 8 + 12}
        assert worker.loaded["weight"].tolist() == WITH_ADAPTERS
        assert worker.loaded["scale"].tolist() == [1.0, 1.0, 1.0]


def test_adapters_of_another_model_are_refused_before_any_is_loaded(worker, folder, tmp_path):
    model = WeightFolder(tmp_path / "model").write(0, {"weight": torch.ones(3, 4)}.items())
    source = folder.write(7, FACTORS.items(), ADAPTERS)
    report = worker.ajet_load_weights(str(source.path), "7", str(model.path), ADAPTERS.dumps())
    assert report == {
        "error": "weights of version 7: weight is [3, 4], its adapter [3, 1] times [1, 2]"
    }
    assert worker.loaded is None


def test_adapters_are_received_from_a_broadcast(worker, tmp_path):
    report, sending = received(worker, tmp_path, FACTORS, adapters=ADAPTERS)
    assert report.pop("seconds") > 0
    assert report == {"version": 7, "num_bytes": 8 + 12, "checksum": sending.checksum}
    assert worker.loaded["weight"].tolist() == WITH_ADAPTERS


def received(worker, tmp_path, sent, *, version="7", adapters=None):
    """What the worker reports of a broadcast; it is the second of two workers of its server."""
    model = WeightFolder(tmp_path / "model").write(
        0, {"weight": torch.ones(3, 2), "scale": torch.ones(3)}.items()
    )
    sender = BroadcastSender("127.0.0.1", timeout_s=30, width=2)
    sender.snapshot(7, sent.items())
    (receiver,) = sender.receivers(7, 1)
    where = {"memberships": json.dumps(receiver.memberships())}
    with ThreadPoolExecutor(2) as pool:
        sending = pool.submit(sender.send)
        first = pool.submit(lambda: dict(receiver.tensors()))
        if adapters is not None:
            where["adapters"] = adapters.dumps()
        report = worker.ajet_receive_weights(**where, version=version, model_path=str(model.path))
        assert set(t.name for t in first.result()) == set(sent)  # it is not left waiting
    return report, sending.result()


def test_a_worker_receives_a_broadcast_with_the_rank_it_has_among_its_servers(worker, tmp_path):
    sent = {"weight": torch.arange(6.0).reshape(3, 2), "scale": torch.ones(3)}
    report, sending = received(worker, tmp_path, sent)
    assert report.pop("seconds") > 0
    assert report == {"version": 7, "num_bytes": 24 + 12, "checksum": sending.checksum}
    assert all(torch.equal(worker.loaded[name], sent[name]) for name in sent)


def test_each_worker_of_a_server_is_handed_the_weights_by_the_rank_on_its_gpu(
    make_worker, tmp_path
):
    sent = {"weight": torch.arange(6.0).reshape(3, 2), "scale": torch.ones(3)}
    model = WeightFolder(tmp_path / "model").write(0, sent.items())
    senders, source = two_senders(7, sent)
    memberships, path = json.dumps(source.memberships()), str(model.path)
    workers = [make_worker(0), make_worker(1)]
    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(sender.send) for sender in senders]
        reports = list(
            pool.map(lambda each: each.ajet_receive_weights(memberships, "7", path), workers)
        )
    (checksum,) = {each.result().checksum for each in sending}
    for worker, report in zip(workers, reports, strict=True):
        assert report["num_bytes"] == 24 + 12 and report["checksum"] == checksum
        assert all(torch.equal(worker.loaded[name], sent[name]) for name in sent)


def test_a_broadcast_of_another_model_is_refused_before_any_is_loaded(worker, tmp_path):
    report, _ = received(worker, tmp_path, {"weight": torch.ones(3, 2)})
    assert report == {"error": "weights of version 7: missing scale"} and worker.loaded is None


def test_a_broadcast_of_another_version_is_one_line(worker, tmp_path):
    sent = {"weight": torch.ones(3, 2), "scale": torch.ones(3)}
    report, _ = received(worker, tmp_path, sent, version="8")
    assert report == {"error": "weights of version 8: version 7 came"}


def damaged(worker, tmp_path, sent, adapters=None):
    """What the worker reports of a broadcast whose last tensor is not what its header says."""
    model = WeightFolder(tmp_path / "model").write(0, {"weight": torch.ones(3, 2)}.items())
    store = listen("127.0.0.1", 0, 2, 30)
    meeting = {"size": 2, "backend": "gloo", "timeout_s": 30}
    *_, last = sent

    def send():
        group = BroadcastGroup("127.0.0.1", store.port, rank=0, store=store, **meeting)
        group.send_header({"shapes": {name: list(tensor.shape) for name, tensor in sent.items()}})
        for name, tensor in sent.items():
            group.send_header(TensorInfo.of(name, tensor).to_json())
            group.broadcast(tensor + (name == last))
        group.send_header({"end": 7, "checksum": "-"})

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        own = {"address": "127.0.0.1", "port": store.port, "rank": 1, **meeting}
        report = worker.ajet_receive_weights(
            json.dumps([{}, own]), version="7", model_path=str(model.path), adapters=adapters
        )
        sending.result()
    return report


def test_a_damaged_tensor_of_a_broadcast_is_named(worker, tmp_path):
    assert damaged(worker, tmp_path, {"weight": torch.ones(3, 2)}) == {
        "error": "weights of version 7: weight came damaged (the server now holds a mixture)"
    }


def test_a_damaged_adapter_leaves_the_old_weights(worker, tmp_path):
    report = damaged(worker, tmp_path, FACTORS, ADAPTERS.dumps())
    assert report == {"error": "weights of version 7: weight.lora_B came damaged"}
    assert worker.loaded is None


def test_a_broadcast_that_nobody_sends_is_one_line(worker, tmp_path):
    model = WeightFolder(tmp_path / "model").write(0, {"weight": torch.ones(3, 2)}.items())
    receiver = BroadcastReceiver("127.0.0.1", free_port(), 1, 3, 7, timeout_s=0.5, width=2)
    report = worker.ajet_receive_weights(json.dumps(receiver.memberships()), "7", str(model.path))
    assert report["error"].startswith("weights of version 7: weights by gloo over 127.0.0.1:")
    assert "\n" not in report["error"]
