import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ajet.core.errors import CheckpointError
from ajet.core.record.summary import RunSummary, peak_rss_bytes
from ajet.core.record.summary_table import print_summary, shown_path


@pytest.fixture(autouse=True)
def activated(monkeypatch):
    """The environment's programs are found by name."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")


SUMMARY = RunSummary(
    steps=60,
    episodes=15360,
    seed=7,
    wall_seconds=412.34,
    peak_rss_bytes=1_520_000_000,
    success_before=0.31,
    success_after=0.885,
    num_held_out=200,
    extra={"backbone": "debug"},
)


def test_a_summary_reads_back_and_extra_fields_lie_flat(tmp_path):
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    content = json.loads(path.read_text())
    assert (content["success_after"], content["backbone"], content["seed"]) == (0.885, "debug", 7)
    assert RunSummary.read(path) == SUMMARY
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]  # nothing left aside


def test_a_summary_that_cannot_be_written_or_read_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        SUMMARY.write(tmp_path / "absent" / "summary.json")
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        RunSummary.read(tmp_path / "summary.json")


def test_the_table_says_before_and_after_with_intervals_and_what_to_do_next():
    out = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(out, SUMMARY, Path("launcher_record/math"), Path("a.yaml"), ["b.c=[1, 2]"])
    shown = out.file.getvalue()
    for part in (
        "31.0%  95 % interval 25.0% to 37.7%",
        "88.5%  95 % interval 83.3% to 92.2%",
        "6 min 52 s",
        "1.52 GB",
        "ajet view launcher_record/math\n",
        "tensorboard --logdir launcher_record/math/tensorboard",
        "ajet eval --conf a.yaml --checkpoint launcher_record/math 'b.c=[1, 2]'",
    ):
        assert part in shown


def test_a_command_is_not_broken_at_the_edge_of_a_narrow_screen():
    out = Console(file=io.StringIO(), width=40, color_system=None)
    print_summary(out, SUMMARY, Path("launcher_record/a_long_experiment_name"))
    assert "tensorboard --logdir launcher_record/a_long_experiment_name/tensorboard" in (
        out.file.getvalue()
    )


def test_the_commands_can_be_typed_where_the_environment_is_not_activated(monkeypatch):
    program = Path(sys.executable).parent / "ajet"
    monkeypatch.setenv("PATH", "/usr/bin")
    out = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(out, SUMMARY, Path("run"))
    assert f"{shown_path(program)} view run\n" in out.file.getvalue()


def test_an_unevaluated_run_says_so():
    out = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(out, RunSummary(1, 8, 0, 3.0, 1), Path("run"))
    assert out.file.getvalue().count("not evaluated") == 2


def test_peak_memory_counts_living_children():
    before = peak_rss_bytes()
    code = "data = b'x' * 100_000_000; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        assert peak_rss_bytes() > before + 95_000_000
        child.communicate("\n")
