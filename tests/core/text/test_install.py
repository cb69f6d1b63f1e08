"""Extras are installed from where ajet came from."""

import pytest

from ajet.core.text.install import CODE, command_for, install_command

WHEEL = "file:///home/ada/my%20wheels/ajet-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'ajet[gguf]'"),
        (
            {"url": WHEEL, "archive_info": {}},
            "pip install '/home/ada/my wheels/ajet-0.1.0-py3-none-any.whl[gguf]'",
        ),
        ({"url": "file:///srv/ajet", "dir_info": {}}, "pip install '/srv/ajet[gguf]'"),
        (
            {
                "url": "https://host.example/ajet.git",
                "vcs_info": {"vcs": "git", "commit_id": "3fa1"},
            },
            "pip install 'ajet[gguf] @ git+https://host.example/ajet.git@3fa1'",
        ),
        (
            {"url": "https://host.example/ajet-0.1.0.tar.gz", "archive_info": {}},
            "pip install 'ajet[gguf] @ https://host.example/ajet-0.1.0.tar.gz'",
        ),
    ],
)
def test_an_installed_ajet_names_its_origin(tmp_path, origin, command):
    assert command_for("gguf", tmp_path, origin) == command


def test_a_clone_is_installed_again_with_the_extras(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert command_for("train,ray", tmp_path, None) == f"pip install -e '{tmp_path}[train,ray]'"
    assert install_command("train", "ray") == f"pip install -e '{CODE}[train,ray]'"
