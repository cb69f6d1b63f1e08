"""The files that programs see: an allow list of folders, devices and links.

The zygote builds the view once. On top of that each program gets separate processes, mounts,
network and IPC. If the kernel forbids namespaces, nothing here applies.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet.sandbox import kernel
from ajet.sandbox.limits import Limits

CAP_SETUID, CAP_SYS_ADMIN = 7, 21
SCRATCH = "/tmp"
# A second mount of the host's /proc: without privileges a new /proc may only be mounted while
# another one is visible.
HOST_PROC = "/.hostproc"
NOBODY = 65534
FIRST_OWN_USER = 1_900_000_000
"""Without namespaces each of root's programs runs as the user of this number plus its process id,
since the kernel counts processes, and permits signals, per user. No system assigns such numbers."""

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/shm": SCRATCH,
}
_FRESH = ("/proc", SCRATCH)


@dataclass(frozen=True)
class FilesystemView:
    """The files that programs see. `folders` maps host paths to paths inside, `links` maps paths
    inside to their targets."""

    folders: dict[str, str]
    links: dict[str, str]


def path_inside(path: str) -> str:
    """Returns a host folder's path inside: the same, unless the sandbox uses that path."""
    covered = any(path == fresh or path.startswith(fresh + "/") for fresh in (*_FRESH, "/dev"))
    return "/opt/sandbox" + path if covered else path


def view_of(python_folders: Sequence[str]) -> FilesystemView:
    """Returns the view with those folders of the system and the interpreter, and devices, that
    exist."""
    folders: dict[str, str] = {}
    links = dict(_LINKS)
    for path in _SYSTEM_FOLDERS:
        if Path(path).is_symlink():
            links[path] = str(Path(path).readlink())
        elif Path(path).exists():
            folders[path] = path
    folders |= {path: path for path in (*_SYSTEM_FILES, *_DEVICES) if Path(path).exists()}
    for path in python_folders:
        if Path(path).exists() and not path.startswith("/usr/"):
            folders[path] = path_inside(path)
    return FilesystemView(folders, links)


def is_privileged() -> bool:
    """Returns whether this process may make namespaces, and change its user, without a user
    namespace."""
    return (
        os.geteuid() == 0
        and kernel.has_capability(CAP_SYS_ADMIN)
        and kernel.has_capability(CAP_SETUID)
    )


def is_root_of_host() -> bool:
    """Returns whether this process is root of the host, and not of a user namespace that maps root
    to an ordinary user."""
    uid_map = Path("/proc/self/uid_map")
    if os.geteuid() != 0 or not uid_map.exists():
        return os.geteuid() == 0
    return any(line.split()[:2] == ["0", "0"] for line in uid_map.read_text().splitlines())


def enter_user_namespace(inside: int) -> None:
    """Makes this process the user `inside` of a new user namespace, with all capabilities there and
    none outside."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else the maps below belong to root
    kernel.unshare(kernel.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{inside} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{inside} {gid} 1")


def enter_view(view: FilesystemView) -> None:
    """Replaces the host's file tree by the read-only view:

    /usr /bin /lib …       as on the host
    the interpreter        its bin and lib, and the packages of the virtual environment
    /tmp                   a fresh tmpfs for each program: scratch folder, home, working folder
    /proc                  fresh and read-only: the program's own processes
    /dev                   null, zero, full, random, urandom
    """
    if not is_privileged():
        enter_user_namespace(os.geteuid())
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    )
    socket.sethostname("sandbox")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    os.chdir(SCRATCH)
    Path("old").mkdir()
    Path("new").mkdir()
    # pivot_root needs mount points. First the tmpfs becomes the root, with the host's tree in /old;
    # then /new does, and the tmpfs with the host's tree is unmounted.
    kernel.mount("new", "new", None, kernel.MS_BIND)
    kernel.pivot_root(".", "old")
    os.chdir("/")
    _fill("/old", "/new", view)
    os.chdir("/new")
    kernel.pivot_root(".", ".")
    kernel.unmount(".")
    os.chdir("/")
    # All but the host's /proc, which each program's namespace detaches.
    for inside in view.folders.values():
        if not inside.startswith("/dev/"):
            kernel.make_read_only(inside)
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("none", "/", None, flags | kernel.MS_NOSUID | kernel.MS_NODEV)


def _fill(old: str, new: str, view: FilesystemView) -> None:
    for folder in _FRESH:
        Path(new + folder).mkdir(parents=True)
    for source, inside in view.folders.items():
        _show(old + source, new + inside)
    for inside, target in view.links.items():
        Path(new + inside).parent.mkdir(parents=True, exist_ok=True)
        Path(new + inside).symlink_to(target)
    _show(old + "/proc", new + HOST_PROC)


def _show(source: str, target: str) -> None:
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)


def enter_fresh_namespaces(limits: Limits) -> None:
    """Gives a program a fresh /proc, /tmp, network and IPC. Called by the first process of its PID
    namespace."""
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("proc", "/proc", "proc", flags | kernel.MS_NOEXEC)
    kernel.unmount(HOST_PROC)
    options = f"size={limits.scratch_bytes},nr_inodes=4096,mode=1777"
    kernel.mount("tmpfs", SCRATCH, "tmpfs", flags, options)
    os.chdir(SCRATCH)


def make_proc_read_only() -> None:
    """Makes /proc read-only, after the program's process has written its user map and limits there.
    Many files of /proc change the whole machine (/proc/sys, sysrq-trigger)."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    remount = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("none", "/proc", None, remount | flags)
