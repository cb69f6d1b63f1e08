"""Tells whether a path is on a network file system, from the mounts of this process (Linux).

SQLite's write-ahead log does not work over one: its processes share memory
(https://sqlite.org/wal.html). 9p and virtiofs count as local, as they mostly are in sandboxes.
"""

from pathlib import Path, PurePath

TYPES = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs",
    "glusterfs", "pvfs2", "ocfs2", "gfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph",
    "fuse.ceph-fuse", "fuse.juicefs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse",
    "fuse.mountpoint-s3",
}  # fmt: skip
MOUNTS = Path("/proc/self/mountinfo")
ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def network_file_system(path: Path) -> str | None:
    """Returns the type of the network file system that the path is on, or None. The path need not
    exist."""
    try:
        mounts = MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    file_system = file_system_type(path.resolve(), mounts)
    return file_system if file_system in TYPES else None


def file_system_type(path: PurePath, mounts: str) -> str:
    """Returns the type of the file system that an absolute path is on, from the text of
    `mountinfo`. The longest mount point wins, and of several mounts there the last."""
    # 36 35 0:52 /runs /mnt/runs rw,noatime shared:1 - nfs4 10.0.0.5:/export rw,vers=4.2
    file_system, longest = "", -1
    for line in mounts.splitlines():
        mount_fields, _, right = line.partition(" - ")
        point = mount_fields.split(" ")[4]
        for escape, letter in ESCAPES.items():
            point = point.replace(escape, letter)
        depth = len(PurePath(point).parts)
        if depth >= longest and path.is_relative_to(point):
            file_system, longest = right.partition(" ")[0], depth
    return file_system
