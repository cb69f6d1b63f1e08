"""Trackers against stand-ins for their packages: asked nothing, resumed, refused in a line."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

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
        set_experiment=lambda name: None,
        start_run=start_run,
        end_run=lambda: None,
        MlflowException=ValueError,
    )
    for _ in range(2):
        MetricsLogger("mlflow", folder).close()
    assert asked == [None, "first"]
