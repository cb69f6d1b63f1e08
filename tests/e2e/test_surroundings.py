"""Where a run is started makes no difference: its folder's name, and the locale."""

import pytest

from tests.e2e.toy_run import ToyRun, environment, episodes

ONE_STEP = "ajet.trainer_common.total_training_steps=1"
AS_IT_IS = {"LC_ALL": "C"}  # Python itself then takes UTF-8
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def started(run, locale):
    unset = ("LANG", "LANGUAGE", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCOERCECLOCALE")
    plain = {name: value for name, value in environment().items() if name not in unset}
    without = {name: value for name, value in plain.items() if not name.startswith("LC_")}
    return run.finish(ONE_STEP, env=without | locale)


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
    assert "has no letters for this folder's name; set LC_ALL=C.UTF-8" in line
    assert not run.path.exists()
