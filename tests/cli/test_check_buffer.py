"""Explorer and trainer, as two commands, do not share SQLite on a network file system."""

import pytest

from ajet.cli.preflight import check_run
from ajet.core.buffer import network_file_system
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks a run whose folder is on an NFS."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 d rw\n2 1 0:2 / {tmp_path}/runs rw - nfs4 s rw\n")
    monkeypatch.setattr(network_file_system, "MOUNTS", mounts)
    monkeypatch.setattr(AjetConfig, "runs_on_ray", False)

    def check(mode, backbone="trinity", **buffer):
        ajet = {
            "backbone": backbone,
            "experiment_dir": str(tmp_path / "runs"),
            "model": {"path": "embedded:math"},
            "task_judge": {"judge_protocol": "math"},
        }
        trinity = {"mode": mode, "buffer": buffer}
        check_run(AjetConfig.model_validate({"ajet": ajet, "trinity": trinity}))

    return check


@pytest.mark.parametrize("mode", ["train", "explore"])
def test_two_commands_need_another_database_there(check, mode, tmp_path):
    with pytest.raises(ConfigError, match=r"runs/buffer\.sqlite would be .* \(nfs4\)") as found:
        check(mode)
    assert found.value.code == Code.BUFFER_UNUSABLE and "\n" not in str(found.value)
    check(mode, url=f"sqlite:///{tmp_path}/own.sqlite")
    check(mode, url="postgresql+psycopg://me:secret@db/runs")
    with pytest.raises(ConfigError):
        check(mode, url=f"sqlite:///{tmp_path}/runs/own.sqlite")


def test_one_command_may_have_its_database_there(check):
    check("both")
    check("train", backbone="debug")
