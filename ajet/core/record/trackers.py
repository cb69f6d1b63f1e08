"""Sends metrics to wandb, swanlab and mlflow, which are imported when the config names them.

A user who is logged in gets the run online. Without a login it stays in the run folder's logs/,
with a warning: a training run must not wait for an answer. A resumed run continues the same one.

Not covered: a server's own idea of steps that go back after a resume.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from loguru import logger

from ajet.core.config.redacted import shown_override
from ajet.core.errors import ConfigError
from ajet.core.record.sink import RunInfo
from ajet.core.redaction import redact

_NOT_IN_A_NAME = re.compile(r"[^/\w.\- :]")
"""MLflow refuses a metric with such a character in its name."""
PACKAGES = ("swanlab", "wandb", "mlflow")


class WandbSink:
    """Logs to Weights & Biases."""

    def __init__(self, run: RunInfo) -> None:
        with _command_line_without_secrets():
            self._begin(_import("wandb"), run)

    def _begin(self, wandb: Any, run: RunInfo) -> None:
        try:
            self._run = wandb.init(
                project=run.project,
                name=run.experiment,
                id=run.folder.run_id(),
                resume="allow",
                dir=str(run.folder.logs),
                config=dict(run.config),
                mode=None if "WANDB_MODE" in os.environ else self._mode(wandb, run.folder.logs),
            )
        except wandb.errors.Error as error:
            raise _refused("wandb", error) from error

    def _mode(self, wandb: Any, logs: Path) -> str:
        if wandb.login(prompt=False, verify=False):
            return "online"
        _warn_offline("wandb", logs / "wandb")
        return "offline"

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class SwanlabSink:
    """Logs to SwanLab. It is told to collect neither the command line, which it reads from the
    system, nor the address of the git repository: both may hold secrets."""

    def __init__(self, run: RunInfo) -> None:
        with _command_line_without_secrets():
            self._begin(_import("swanlab"), run)

    def _begin(self, swanlab: Any, run: RunInfo) -> None:
        self._swanlab = swanlab
        folder = run.folder.logs / "swanlab"
        settings = swanlab.Settings(probe={"runtime": False, "git": False})
        mode = settings.mode
        if mode == "online" and settings.api_key is None:
            _warn_offline("swanlab", folder)
            mode = "offline"
        resumes = {"id": run.folder.run_id(), "resume": "allow"} if mode == "online" else {}
        try:
            swanlab.init(
                project=run.project,
                name=run.experiment,
                log_dir=str(folder),
                config=dict(run.config),
                mode=mode,
                settings=settings,
                **resumes,
            )
        except RuntimeError as error:
            raise _refused("swanlab", error) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._swanlab.log(dict(metrics), step=step)

    def close(self) -> None:
        self._swanlab.finish()


class MlflowSink:
    """Logs to MLflow, at its own tracking address, or in logs/ when none is set."""

    def __init__(self, run: RunInfo) -> None:
        with _command_line_without_secrets():
            self._begin(_import("mlflow"), run)

    def _begin(self, mlflow: Any, run: RunInfo) -> None:
        self._mlflow = mlflow
        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{run.folder.logs / 'mlflow.db'}")
        known = run.folder.logs / "mlflow_run_id"
        try:
            mlflow.set_experiment(run.project)
            run_id = known.read_text(encoding="utf-8") if known.exists() else None
            active_run = mlflow.start_run(run_id=run_id, run_name=run.experiment)
        except mlflow.MlflowException as error:
            raise _refused("mlflow", error) from error
        known.write_text(active_run.info.run_id, encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        named = {_NOT_IN_A_NAME.sub("_", name): value for name, value in metrics.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


@contextmanager
def _command_line_without_secrets() -> Iterator[None]:
    """Hides the secrets of overrides from packages that store the command line beside the
    config."""
    given = list(sys.argv)
    sys.argv[1:] = [shown_override(each) if "=" in each else redact(each) for each in given[1:]]
    try:
        yield
    finally:
        sys.argv[:] = given


def _import(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise not_installed(package) from error


def not_installed(package: str) -> ConfigError:
    return ConfigError(
        f"ajet.trainer_common.logger: {package!r} needs a package that is not installed; "
        f"pip install 'ajet[{package}]' or choose tensorboard"
    )


def _warn_offline(name: str, folder: Path) -> None:
    logger.warning(f"not logged in to {name}: metrics stay in {folder}")


def _refused(name: str, error: Exception) -> ConfigError:
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    return ConfigError(f"ajet.trainer_common.logger: {name} does not start: {first_line}")
