"""Trackers against stand-ins for their packages: asked nothing, resumed, refused in a line."""

import socket
import sys
from types import ModuleType, SimpleNamespace
from urllib.request import urlopen

import pytest
from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        yield folder


def installed(monkeypatch, name, **content):
    module = ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


def fake_wandb(monkeypatch, *, logged_in, fails=False):
    begun = []

    class Refused(Exception):
        pass

    def init(**options):
        if fails:
            raise Refused("the key is too short\nand more")
        begun.append(options)
        return SimpleNamespace(log=lambda metrics, step: None, finish=lambda: None)

    def login(prompt, verify):
        assert not prompt  # a training run waits for nobody
        return logged_in

    monkeypatch.delenv("WANDB_MODE", raising=False)
    installed(monkeypatch, "wandb", init=init, login=login, errors=SimpleNamespace(Error=Refused))
    return begun


@pytest.mark.parametrize(("logged_in", "mode"), [(True, "online"), (False, "offline")])
def test_wandb_is_online_for_whoever_is_logged_in(monkeypatch, folder, warnings, logged_in, mode):
    begun = fake_wandb(monkeypatch, logged_in=logged_in)
    config = AjetConfig.model_validate({"mine": {"api_key": "s3cret"}})
    MetricsLogger("wandb", folder, experiment="exp", config=config).close()
    assert [run["mode"] for run in begun] == [mode]
    assert begun[0]["id"] == folder.run_id() and begun[0]["resume"] == "allow"
    assert "s3cret" not in str(begun)
    assert len(warnings) == (mode == "offline")


def test_a_tracker_that_does_not_start_is_one_line(monkeypatch, folder):
    fake_wandb(monkeypatch, logged_in=True, fails=True)
    with pytest.raises(ConfigError, match=r"wandb does not start: the key is too short$"):
        MetricsLogger("wandb", folder)


@pytest.mark.parametrize(
    ("mode", "key", "begun_as"),
    [("online", None, "offline"), ("online", "k", "online"), ("local", None, "local")],
)
def test_swanlab_keeps_what_it_cannot_send(monkeypatch, folder, warnings, mode, key, begun_as):
    begun = []
    installed(
        monkeypatch,
        "swanlab",
        Settings=lambda probe: SimpleNamespace(mode=mode, api_key=key, probe=probe),
        init=lambda mode, settings, **options: begun.append((mode, settings.probe)),
        log=lambda metrics, step: None,
        finish=lambda: None,
    )
    MetricsLogger("swanlab", folder).close()
    assert begun == [(begun_as, {"runtime": False, "git": False})]
    assert len(warnings) == (mode != begun_as)


def test_mlflow_goes_on_in_the_same_run(monkeypatch, folder):
    asked = []

    def start_run(run_id, run_name):
        asked.append(run_id)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "first"))

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    installed(
        monkeypatch,
        "mlflow",
        set_tracking_uri=lambda uri: None,
        get_experiment_by_name=lambda name: None,
        create_experiment=lambda name, artifact_location: None,
        set_experiment=lambda name: SimpleNamespace(experiment_id="1"),
        start_run=start_run,
        end_run=lambda: None,
        MlflowException=ValueError,
    )
    for _ in range(2):
        MetricsLogger("mlflow", folder).close()
    assert asked == [None, "first"]


def scraped(text):
    """The samples of a page of Prometheus's."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_prometheus_scrapes_the_newest_step(monkeypatch, folder):
    said = []
    sink = logger.add(said.append, format="{message}")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "0")
    metrics = MetricsLogger("prometheus", folder, experiment="lake")
    logger.remove(sink)
    address = said[0].split()[-1]
    metrics.log(1, {"reward/mean": 0.25, "update/loss": -1.5})
    metrics.log(2, {"reward/mean": 0.5})
    text = urlopen(address.replace("localhost", "127.0.0.1")).read().decode()
    assert scraped(text) == {
        'ajet_step{run="lake"}': 2.0,
        'ajet_reward_mean{run="lake"}': 0.5,
        'ajet_update_loss{run="lake"}': -1.5,
    }
    metrics.close()


def test_a_port_that_prometheus_cannot_have_is_one_line(monkeypatch, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_HOST", "127.0.0.1")
        monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(port))
        with pytest.raises(ConfigError, match=f"cannot serve at 127.0.0.1:{port}: .*; set OTEL"):
            MetricsLogger("prometheus", folder)
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "many")
    with pytest.raises(ConfigError, match=r"PROMETHEUS_PORT=many: give a port of 0 to 65535$"):
        MetricsLogger("prometheus", folder)
