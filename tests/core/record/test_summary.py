import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ajet.core.errors import CheckpointError
from ajet.core.record.summary import RunSummary, peak_rss_bytes
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.read.reports.summary_table import print_summary, shown_path


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


def test_the_table_says_before_and_after_with_intervals_and_what_to_do_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("launcher_record/math/tensorboard").mkdir(parents=True)
    Path("launcher_record/math/tensorboard/events").touch()
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
    assert "ajet view launcher_record/a_long_experiment_name\n" in out.file.getvalue()


def test_curves_that_another_logger_has_are_not_looked_for_in_tensorboard():
    out = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(out, SUMMARY, Path("run"))
    assert "tensorboard" not in out.file.getvalue()


def test_the_commands_can_be_typed_where_the_environment_is_not_activated(monkeypatch):
    program = Path(sys.executable).parent / "ajet"
    monkeypatch.setenv("PATH", "/usr/bin")
    out = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(out, SUMMARY, Path("run"))
    assert f"{shown_path(program)} view run\n" in out.file.getvalue()


def test_an_unevaluated_run_says_so():
    out = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(out, RunSummary(1, 8, 0, 3.0, 1, num_held_out_available=9), Path("run"))
    assert out.file.getvalue().count("not evaluated") == 2


def test_a_run_without_held_out_tasks_names_no_command_that_needs_them():
    out = Console(file=io.StringIO(), width=100, color_system=None)
    print_summary(out, RunSummary(1, 8, 0, 3.0, 1), Path("run"), conf=Path("x.yaml"))
    assert "not measured: the task reader has none" in out.file.getvalue()
    assert "ajet eval" not in out.file.getvalue()


def shown(counts):
    out = Console(file=io.StringIO(), width=160, color_system=None)
    print_summary(out, replace(SUMMARY, timelines=counts.report()), Path("run"))
    return out.file.getvalue()


def test_the_table_says_what_became_of_calls_and_tokens():
    text = shown(
        TimelineCounts(
            episodes=1000,
            calls=4000,
            timelines=1250,
            row_tokens=210_000,
            timeline_tokens=100_000,
            sampled=80_000,
            trained=79_000,
            not_trained={"timeout": 300, "other_agent": 700},
            splits={"one prompt was sampled again": 250},
            malformed={"nonsense": 3},
            drift_checked=500,
            drift_at={"120": 2, "240": 3},
        )
    )
    for part in (
        "4,000 / 1,250  a row for each call would have 2.1x the tokens",
        "98.8% of 80,000  700 not: other_agent, 300 not: timeout",
        "250 one prompt was sampled again",
        "3 nonsense",
        "1.0% of 500 calls checked  encoded again: other ids, first at 120, median 240; "
        "trained as sampled",
    ):
        assert part in text


def test_the_summary_has_no_rows_for_events_that_did_not_happen():
    text = shown(TimelineCounts(calls=2, timelines=1, sampled=5, trained=5, drift_checked=2))
    assert "100.0% of 5" in text and "0.0% of 2 calls checked" in text
    assert "broke off" not in text and "malformed" not in text
    assert "timelines" not in shown(TimelineCounts())


def test_peak_memory_counts_living_children():
    before = peak_rss_bytes()
    code = "data = b'x' * 100_000_000; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        assert peak_rss_bytes() > before + 95_000_000
        child.communicate("\n")
