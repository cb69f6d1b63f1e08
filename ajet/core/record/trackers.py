"""Sends metrics to wandb, swanlab, mlflow and Prometheus, imported if the config names them.

Without a login the metrics stay in the run folder's logs/, with a warning, because a training run
must not wait for a prompt. A resumed run continues the same one.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from loguru import logger

from ajet.core.config.redacted import shown_override
from ajet.core.errors import ConfigError, PackageMissing
from ajet.core.errors.codes import Code
from ajet.core.record.run_folder import RunFolder
from ajet.core.text.error_text import extra_advice
from ajet.core.text.redaction import redact

_NOT_IN_A_NAME = re.compile(r"[^/\w.\- :]")
"""Characters that MLflow refuses in the name of a metric."""
_NOT_IN_A_METRIC = re.compile(r"[^a-zA-Z0-9_]")
"""Characters that a name of Prometheus may not have."""
PACKAGES = {
    "swanlab": "swanlab",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "prometheus": "prometheus_client",
}
"""The module that each logger needs; its name is also that of ajet's extra."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    folder: RunFolder
    project: str
    experiment: str
    start_step: int
    config: Mapping[str, Any] = field(default_factory=dict)


class Sink(Protocol):
    """Receives the metrics of each step and writes them somewhere."""

    def __init__(self, run: RunInfo) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class WandbSink:
    """Logs to Weights & Biases."""

    def __init__(self, run: RunInfo) -> None:
        with _command_line_without_secrets():
            self._begin(_import("wandb"), run)

    def _begin(self, wandb: Any, run: RunInfo) -> None:
        try:
            mode = None  # WANDB_MODE decides
            if "WANDB_MODE" not in os.environ:
                mode = "online"
                if not wandb.login(prompt=False, verify=False):
                    _warn_offline("wandb", run.folder.logs / "wandb")
                    mode = "offline"
            self._run = wandb.init(
                project=run.project,
                name=run.experiment,
                id=run.folder.run_id(),
                resume="allow",
                dir=str(run.folder.logs),
                config=dict(run.config),
                mode=mode,
            )
        except wandb.errors.Error as error:
            raise _refused("wandb", error) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class SwanlabSink:
    """Logs to SwanLab."""

    def __init__(self, run: RunInfo) -> None:
        with _command_line_without_secrets():
            self._begin(_import("swanlab"), run)

    def _begin(self, swanlab: Any, run: RunInfo) -> None:
        self._swanlab = swanlab
        folder = run.folder.logs / "swanlab"
        # It would collect the command line and the address of the git repository, which may hold
        # secrets.
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
    """Logs to MLflow at its tracking address, or to logs/ without one."""

    def __init__(self, run: RunInfo) -> None:
        with _command_line_without_secrets():
            self._begin(_import("mlflow"), run)

    def _begin(self, mlflow: Any, run: RunInfo) -> None:
        self._mlflow = mlflow
        id_file = run.folder.logs / "mlflow_run_id"
        try:
            choose_mlflow_experiment(mlflow, run.folder, run.project)
            run_id = id_file.read_text(encoding="utf-8") if id_file.exists() else None
            active_run = mlflow.start_run(run_id=run_id, run_name=run.experiment)
        except mlflow.MlflowException as error:
            raise _refused("mlflow", error) from error
        # MLflow makes the id, so a resumed run has to remember it.
        id_file.write_text(active_run.info.run_id, encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        by_name = {_NOT_IN_A_NAME.sub("_", name): value for name, value in metrics.items()}
        self._mlflow.log_metrics(by_name, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class PrometheusSink:
    """Serves the newest step's metrics at ``/metrics`` during the run, for Prometheus to
    scrape: `reward/mean` is the gauge ``ajet_reward_mean``, with the run's name as a label. The
    address is localhost:9464, or that of OpenTelemetry's variables for it,
    `OTEL_EXPORTER_PROMETHEUS_HOST` and `OTEL_EXPORTER_PROMETHEUS_PORT`; 0 takes any free port."""

    def __init__(self, run: RunInfo) -> None:
        self._client: Any = _import("prometheus")
        self._run = run.experiment
        self._registry = self._client.CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost")
        port = os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464")
        if not port.isdecimal() or int(port) >= 2**16:
            raise ConfigError(
                f"OTEL_EXPORTER_PROMETHEUS_PORT={port}: give a port of 0 to 65535",
                code=Code.WRONG_VALUE,
            )
        try:
            self._server, self._thread = self._client.start_http_server(
                int(port), host, self._registry
            )
        except OSError as error:
            raise ConfigError(
                f"ajet.trainer_common.logger: prometheus cannot serve at {host}:{port}: "
                f"{error.strerror}; set OTEL_EXPORTER_PROMETHEUS_PORT, 0 for any free one",
                code=Code.PORT_IN_USE,
            ) from error
        logger.info(f"metrics for Prometheus: http://{host}:{self._server.server_port}/metrics")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in {"step": float(step), **metrics}.items():
            if name not in self._gauges:
                gauge = _NOT_IN_A_METRIC.sub("_", f"ajet_{name}")
                self._gauges[name] = self._client.Gauge(
                    gauge, name, ["run"], registry=self._registry
                ).labels(self._run)
            self._gauges[name].set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def choose_mlflow_experiment(
    mlflow: Any, folder: RunFolder, project: str, uri: str | None = None
) -> str:
    """Makes the project's experiment MLflow's current one, and returns its id. The store is `uri`,
    or that of MLFLOW_TRACKING_URI, or ``logs/mlflow.db`` with its files in the run folder."""
    if uri is not None:
        mlflow.set_tracking_uri(uri)
    elif "MLFLOW_TRACKING_URI" not in os.environ:
        mlflow.set_tracking_uri(f"sqlite:///{folder.logs / 'mlflow.db'}")
        if mlflow.get_experiment_by_name(project) is None:
            files = (folder.logs / "mlflow").absolute().as_uri()
            mlflow.create_experiment(project, artifact_location=files)
    return mlflow.set_experiment(project).experiment_id


@contextmanager
def _command_line_without_secrets() -> Iterator[None]:
    """Hides secrets in overrides from packages that store the command line."""
    arguments = list(sys.argv)
    sys.argv[1:] = [
        shown_override(argument) if "=" in argument else redact(argument)
        for argument in arguments[1:]
    ]
    try:
        yield
    finally:
        sys.argv[:] = arguments


def _import(package: str) -> ModuleType:
    try:
        return importlib.import_module(PACKAGES[package])
    except ModuleNotFoundError as error:
        raise not_installed(package, PACKAGES[package]) from error


def not_installed(
    package: str, module: str, key: str = "logger", instead: str = "choose tensorboard"
) -> ConfigError:
    return PackageMissing(
        f"ajet.trainer_common.{key}: {package!r} needs a package that is not installed; "
        f"{extra_advice(module)} or {instead}"
    )


def _warn_offline(name: str, folder: Path) -> None:
    logger.warning(f"not logged in to {name}: metrics stay in {folder}")


def _refused(name: str, error: Exception) -> ConfigError:
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    return ConfigError(
        f"ajet.trainer_common.logger: {name} does not start: {first_line}",
        code=Code.LOGGER_NOT_STARTED,
    )
