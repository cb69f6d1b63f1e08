"""Where a run is started makes no difference: its folder's name, the locale, and the clock."""

import os
import re
from pathlib import Path

import pytest

import ajet
from tests.e2e.toy_run import ToyRun, environment, episodes

ONE_STEP = "ajet.trainer_common.total_training_steps=1"
AS_IT_IS = {"LC_ALL": "C"}  # Python itself then takes UTF-8
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
JUMPING_CLOCK = """
import itertools
import time
from pathlib import Path

real, jumps = time.time, itertools.cycle((0, 86400, -86400))


def jumping():
    Path(__file__).with_name("asked").touch()
    return real() + next(jumps)


time.time = jumping
"""
PACKAGE = Path(ajet.__file__).parent
MOMENTS = {
    "core/user_code/activity.py",
    "core/record/metrics.py",
    "core/record/warning_log.py",
    "core/rollout/stops.py",
    "core/workflow/gateway/dialects/chat_completions.py",
    "read/logview/run_page.py",  # compared with moments that the run wrote down
    "core/workflow/gateway/dialects/responses.py",
    "serve/exchange/exchange.py",
    "serve/online/log.py",
    "sandbox/limiter.py",
}


def started(run, locale, fresh=True):
    unset = ("LANG", "LANGUAGE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE")
    plain = {name: value for name, value in environment().items() if name not in unset}
    without = {name: value for name, value in plain.items() if not name.startswith("LC_")}
    return run.finish(ONE_STEP, env=without | locale, fresh=fresh)


@pytest.mark.parametrize(
    ("name", "locale"),
    [("a folder/with spaces é 名", AS_IT_IS), ("a folder/with spaces", ASCII)],
    ids=["letters", "ascii"],
)
def test_a_run_ends_well_whatever_its_folder_and_the_locale(tmp_path, name, locale):
    run = ToyRun(tmp_path / name)
    assert started(run, locale) == 0, run.stderr()
    assert run.steps_saved() == [1]
    assert len(episodes(run)) == 16


def test_a_folder_that_the_locale_has_no_letters_for_is_one_line(tmp_path):
    run = ToyRun(tmp_path / "é")
    assert started(run, ASCII) == 1
    [line] = run.errors()
    assert "cannot express this folder's name; set LC_ALL=C.UTF-8" in line
    assert not run.path.exists()


def test_a_clock_that_jumps_by_a_day_and_back_changes_nothing(tmp_path):
    plain, jumping = ToyRun(tmp_path / "plain"), ToyRun(tmp_path / "jumping")
    clock = tmp_path / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(JUMPING_CLOCK)
    paths = f"{clock}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    assert started(plain, AS_IT_IS, fresh=False) == 0, plain.stderr()
    assert started(jumping, AS_IT_IS | {"PYTHONPATH": paths}) == 0, jumping.stderr()
    assert (clock / "asked").exists()
    assert jumping.final_tensors(1) == plain.final_tensors(1)
    assert episodes(jumping) == episodes(plain)


def test_only_moments_are_read_from_the_clock_that_can_jump():
    """Durations and deadlines are of `time.monotonic`. Here a moment is written down."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\btime\.time\b|\bfrom time import .*\btime\b", path.read_text("utf-8"))
    }
    assert found == MOMENTS
