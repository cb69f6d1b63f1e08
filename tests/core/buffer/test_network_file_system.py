"""Where a path is, from mounts as Linux lists them."""

from pathlib import PurePosixPath

import pytest

from ajet.core.buffer import network_file_system as module
from ajet.core.buffer.network_file_system import file_system_type

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:5 / /proc rw,nosuid - proc proc rw
30 22 0:44 / /home rw,relatime shared:20 - autofs systemd-1 rw,fd=29
31 30 0:52 / /home rw,noatime shared:21 master:3 - nfs4 10.0.0.5:/export rw,vers=4.2
40 31 0:60 / /home/me/scratch rw - tmpfs tmpfs rw
41 22 0:61 /runs /mnt/my\040runs rw - cifs //server/share rw
42 22 0:62 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
43 22 0:63 / /mnt/windows rw - 9p drvfs rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/srv/run", "ext4", False),
        ("/home/me/run/buffer.sqlite", "nfs4", True),  # the last mount at /home
        ("/home", "nfs4", True),
        ("/homes/run", "ext4", False),  # whole names are compared
        ("/home/me/scratch/run", "tmpfs", False),
        ("/mnt/my runs/run", "cifs", True),
        ("/mnt/ssh/run", "fuse.sshfs", True),
        ("/mnt/windows/run", "9p", False),
    ],
)
def test_the_longest_mount_point_above_a_path_has_its_type(path, kind, is_network):
    assert file_system_type(PurePosixPath(path), MOUNTS) == kind
    assert (kind in module.TYPES) == is_network
