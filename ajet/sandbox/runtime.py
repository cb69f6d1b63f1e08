"""Writes the command line that runs a whole program in the sandbox of `ajet.harness.sandbox`.

This is for programs that people wrote and a model steers. Programs that a model wrote run in
pool.py, which also restricts system calls.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from ajet.core.config.services import HarnessLimits
from ajet.core.errors import ConfigError, KeyMissing
from ajet.core.errors.codes import Code
from ajet.core.process.process_guard import guarded
from ajet.sandbox.limits import MIB

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

Kind = Literal["bwrap", "podman", "docker", "none"]
CONTAINERS = ("podman", "docker")
"""The kinds in which a program has the files of an image."""
WORKSPACE, HOME = "/workspace", "/home/agent"
INNER_PORT = 8080
"""The gateway's port inside: constant, so that prompts that mention it do not differ."""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"

_LOOPBACK, _LIMITER = (Path(__file__).with_name(name) for name in ("loopback.py", "limiter.py"))
_CONTAINER = ("--rm", "--pull=never", "--log-driver=none", "--security-opt=no-new-privileges")
_READ_ONLY = ("--read-only", "--cap-drop=all")
_LIBRARIES = ("/usr", "/lib", "/lib64")
_DOOR, _DOOR_PYTHON, _DOOR_SCRIPT = "/door", "/door-python", "/door.py"
_SHM_BYTES = 64 * MIB
_BACKSTOP = 2
"""The kernel's bounds are this multiple of the limits, so that limiter.py, which reports the
reason, comes first."""
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd", "/etc/group")
_SYSTEM_FILES += ("/etc/nsswitch.conf", "/etc/ssl", "/etc/localtime")
_USER = 1000
"""The program's user inside; outside it is the user who runs ajet."""


@dataclass(frozen=True)
class Runtime:
    """A way to run programs:

        bwrap     the system's folders and the shown ones, read-only; /workspace and /home/agent
                  writable; a separate /tmp, /proc and processes; only the gateway's port
        podman    the same with an image's files instead of the system's
        docker    the same as podman, through a local daemon, as the user running ajet
        none      no confinement: the program has the user, files and network of ajet

    `image` is for podman and docker; `shown_folders` are folders of this machine that a program may
    read, at the same paths. With `owns_root` a program is root, its standard input is ajet's, and
    it may write everywhere: to a container's own files, or in bwrap to the folders of
    `Folders.root`, each of them at the same place below /."""

    kind: Kind
    image: str | None = None
    shown_folders: tuple[str, ...] = ()
    limits: HarnessLimits = field(default_factory=HarnessLimits)
    owns_root: bool = False

    @classmethod
    def from_config(cls, config: AjetConfig, more_folders: Sequence[str] = ()) -> Self:
        """Returns the sandbox of `ajet.harness`, which shows `more_folders` too."""
        section = config.ajet.harness
        key = "ajet.harness.shown_folders"
        folders = [str(found_folder(folder, config, key)) for folder in section.shown_folders]
        return cls(section.sandbox, section.image, (*folders, *more_folders), section.limits)

    @property
    def is_confined(self) -> bool:
        return self.kind != "none"

    @property
    def has_image(self) -> bool:
        """Whether the program has the files of an image."""
        return self.kind in CONTAINERS

    def check(self, key: str) -> None:
        """Raises ConfigError if this machine lacks the runtime, or cannot start a program in it.
        `key` is the config's key."""
        if self.kind == "none":
            return
        self.check_installed(key)
        if self.has_image and self.image is None:
            raise KeyMissing(f"{key} is {self.kind}, which needs ajet.harness.image")
        if self.has_image and (problem := self.image_problem()):
            raise ConfigError(
                f"ajet.harness.image: {self.kind} has no image {self.image!r}, and ajet pulls none "
                f"({problem}): {self.kind} pull or {self.kind} import it",
                code=Code.PROGRAM_MISSING,
            )
        with tempfile.TemporaryDirectory(prefix="ajet-check-") as base:
            folders = Folders(Path(base))
            folders.make()
            line = guarded(self.command(["touch", "written"], folders, {}, None))
            tried = subprocess.run(line, capture_output=True, text=True, check=False)
            has_written = (folders.workspace / "written").exists()
        if tried.returncode != 0:
            raise ConfigError(
                f"{key}: {self.kind} cannot start a program here: {last_line(tried)}",
                code=Code.PROGRAM_MISSING,
            )
        if not has_written:
            raise ConfigError(
                f"{key}: files that a program writes in {self.kind} do not arrive on this machine: "
                "its daemon must run here",
                code=Code.PROGRAM_MISSING,
            )

    def check_installed(self, key: str) -> None:
        """Raises ConfigError if PATH lacks the runtime's program."""
        if shutil.which(self.kind) is None:
            package = "bubblewrap" if self.kind == "bwrap" else self.kind
            raise ConfigError(
                f"{key}: {self.kind} is not on this machine's PATH: install {package}, or set "
                f"{key} to none, which confines nothing",
                code=Code.PROGRAM_MISSING,
            )

    def image_problem(self) -> str | None:
        """Returns why podman or docker does not find the image here, or None if it does."""
        line = [self.kind, "image", "inspect", "--format={{.Id}}", str(self.image)]
        result = subprocess.run(line, capture_output=True, text=True, check=False)
        return None if result.returncode == 0 else last_line(result)

    def command(
        self,
        command: Sequence[str],
        folders: Folders,
        environment: Mapping[str, str],
        port: int | None,
        group: Path | None = None,
    ) -> list[str]:
        """Returns the command line. `port` is the only port of the host that the program reaches
        (None: no network); with kind none it reaches everything. `group` is the cgroup to
        enter."""
        limiter_settings = {
            "limits": self.limits.model_dump(),
            "report": str(folders.report),
            "folders": [str(folders.root), str(folders.workspace), str(folders.home)],
            "group": None if group is None else str(group),
            "containers": [folders.name, folders.door_name] if self.kind == "docker" else [],
        }
        limiter = [*_python(_LIMITER), json.dumps(limiter_settings)]
        if self.kind == "none":
            return [*limiter, *command]
        inner = INNER_PORT if port else 0
        network_settings: dict[str, object] = {"inner": inner, "outer": port or 0}
        if self.kind == "docker":
            door = self._door(folders, inner)
            network_settings |= {"door": door, "door_folder": str(folders.door)}
        else:
            network_settings["most_processes"] = self.most_processes or 0
        network = [*_python(_LOOPBACK), json.dumps(network_settings)]
        match self.kind:
            case "bwrap":
                return [*limiter, *network, *self._bwrap(folders), *command]
            case "podman":
                return [*limiter, *network, *self._podman(folders, environment), *command]
            case "docker":
                return [*limiter, *network, *self._docker(folders, environment), *command]

    @property
    def most_processes(self) -> int | None:
        """How many processes and threads the kernel should allow a program."""
        limit = self.limits.num_processes
        return None if limit is None else _BACKSTOP * limit

    def _bwrap(self, folders: Folders) -> list[str]:
        user = str(0 if self.owns_root else _USER)
        line = ["bwrap", "--unshare-user", "--uid", user, "--gid", user]
        line += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", "sandbox"]
        line += ["--new-session", "--die-with-parent", "--cap-drop", "ALL"]
        # Read-only: if root runs ajet, the program is the host's root without capabilities, who
        # owns the files below /proc/sys.
        line += ["--proc", "/proc", "--remount-ro", "/proc"]
        line += ["--dev", "/dev", "--remount-ro", "/dev"]
        line += ["--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"]
        if self.limits.tmp_mib is not None:
            line += ["--size", str(self.limits.tmp_mib * MIB)]
        line += ["--tmpfs", "/tmp"]
        for path in _SYSTEM_FOLDERS:
            if Path(path).is_symlink():
                line += ["--symlink", str(Path(path).readlink()), path]
            elif Path(path).exists():
                line += ["--ro-bind", path, path]
        for path in (*_SYSTEM_FILES, *self.shown_folders):
            line += ["--ro-bind-try", path, path]
        line += ["--bind", str(folders.workspace), WORKSPACE]
        if self.owns_root:
            for folder in sorted(folders.root.iterdir()):
                line += ["--bind", str(folder), f"/{folder.name}"]
            # As process 1 the program cannot be killed by those that it starts.
            return [*line, "--remount-ro", "/", "--as-pid-1", "--chdir", "/", "--"]
        line += ["--bind", str(folders.home), HOME]
        return [*line, "--remount-ro", "/", "--chdir", WORKSPACE, "--"]

    def _podman(self, folders: Folders, environment: Mapping[str, str]) -> list[str]:
        import resource  # POSIX only, and this module is imported wherever a config is checked

        # "host" is the network of the process that starts podman, which loopback.py has made.
        line = ["podman", "run", "--network=host", "--read-only-tmpfs=false"]
        # Podman asks for more open files, which needs CAP_SYS_RESOURCE.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        line.append(f"--ulimit=nofile={soft}:{hard}")
        if (most := self.most_processes) is not None:
            line.append(f"--ulimit=nproc={most}:{most}")
        return [*line, *self._container(folders, environment)]

    def _docker(self, folders: Folders, environment: Mapping[str, str]) -> list[str]:
        """Returns docker's part of the command line. The daemon runs as root with other rlimits, so
        user and rlimits are passed."""
        line = ["docker", "run"]
        if not self.owns_root:
            line.append(f"--user={os.getuid()}:{os.getgid()}")
        line += [f"--{namespace}=container:{folders.door_name}" for namespace in ("network", "pid")]
        line.append("--ulimit=core=0")
        if self.limits.folder_mib is not None:
            line.append(f"--ulimit=fsize={self.limits.folder_mib * MIB}")
        return [*line, *self._container(folders, environment)]

    def _container(self, folders: Folders, environment: Mapping[str, str]) -> list[str]:
        """Returns the common options of podman and docker, and the image."""
        assert self.image is not None
        limits = self.limits
        line = [*_CONTAINER, f"--name={folders.name}", f"--shm-size={_SHM_BYTES}"]
        if self.owns_root:
            line.append("--interactive")
        else:
            line.append("--entrypoint=")  # the image's would take the command as its arguments
            size = "" if limits.tmp_mib is None else f",size={limits.tmp_mib}m"
            line += [*_READ_ONLY, f"--tmpfs=/tmp:mode=1777{size}"]
            line += [f"--workdir={WORKSPACE}", f"--volume={folders.home}:{HOME}"]
        if limits.memory_mib is not None:
            line.append(f"--memory={_BACKSTOP * limits.memory_mib}m")
        if (most := self.most_processes) is not None:
            line.append(f"--pids-limit={most}")
        line.append(f"--volume={folders.workspace}:{WORKSPACE}")
        line += [f"--volume={path}:{path}:ro" for path in self.shown_folders]
        line += [f"--env={name}={value}" for name, value in environment.items()]
        return [*line, self.image]

    def _door(self, folders: Folders, port: int) -> list[str]:
        """Returns the command line of the container whose network and processes docker's program
        shares (loopback.py). It runs this machine's Python and libraries."""
        assert self.image is not None
        line = ["docker", "run", "--interactive", *_CONTAINER, *_READ_ONLY]
        line.append(f"--name={folders.door_name}")
        line += ["--network=none", "--hostname=sandbox", f"--user={os.getuid()}:{os.getgid()}"]
        line += [f"--volume={path}:{path}:ro" for path in _LIBRARIES if Path(path).exists()]
        line += [f"--volume={_LOOPBACK}:{_DOOR_SCRIPT}:ro", f"--volume={folders.door}:{_DOOR}"]
        python, installed = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
        if not python.is_relative_to("/usr"):  # mounted where no folder of the image hides it
            line += [f"--volume={installed}:{_DOOR_PYTHON}:ro"]
            line += [f"--env=LD_LIBRARY_PATH={_DOOR_PYTHON}/lib"]
            python = Path(_DOOR_PYTHON, python.relative_to(installed))
        line += [f"--entrypoint={python}", self.image]
        return [*line, "-I", "-S", _DOOR_SCRIPT, "door", _DOOR, str(port)]

    def remove_containers(self, folders: Folders) -> None:
        """Removes the containers of a program that was ended from outside."""
        line = {
            "podman": ["podman", "rm", "--force", "--time=0", "--ignore", folders.name],
            "docker": ["docker", "rm", "--force", folders.name, folders.door_name],
        }[self.kind]
        subprocess.run(line, capture_output=True, check=False)


@dataclass(frozen=True)
class Folders:
    """The folders of one program; `inside` has the paths that it sees."""

    base: Path

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def workspace(self) -> Path:
        return self.base / "workspace"

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def root(self) -> Path:
        """The folder with the writable folders of a program that owns its root, in bwrap."""
        return self.base / "root"

    @property
    def door(self) -> Path:
        """The folder through which the door hands over its socket (loopback.py)."""
        return self.base / "door"

    @property
    def door_name(self) -> str:
        return f"{self.name}-door"

    @property
    def report(self) -> Path:
        """The file with the limit that the program has exceeded, if it has."""
        return self.base / "exceeded"

    def make(self) -> None:
        for folder in (self.workspace, self.home, self.root):
            folder.mkdir(parents=True, exist_ok=True)

    def inside(self, runtime: Runtime) -> tuple[str, str]:
        """Returns the paths of workspace and home as the program sees them."""
        if runtime.is_confined:
            return WORKSPACE, HOME
        return str(self.workspace), str(self.home)


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    """Returns the last line of a program's errors, or its exit code if it wrote none."""
    lines = ended.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {ended.returncode}"


def _python(script: Path) -> list[str]:
    """Returns the beginning of a command line for a script that needs only the standard library."""
    return [sys.executable, "-I", "-S", str(script)]


def found_folder(folder: str, config: AjetConfig, key: str) -> Path:
    """Returns a folder that a config or a row names, relative to the YAML's folder or the one in
    which ajet was started. Raises ConfigError if it does not exist."""
    tried = [base / Path(folder).expanduser() for base in config.base_dirs]
    for path in tried:
        if path.is_dir():
            return path.resolve()
    raise ConfigError(
        f"{key}: folder {folder!r} not found; looked for {', '.join(map(str, tried))}",
        code=Code.DATA_NOT_FOUND,
    )
