"""The script that tries mutants knows the code and the tests as they are now."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # its dataclasses look for their module there
    yield spec.loader.exec_module(module) or module
    del sys.modules["mutants"]


def test_the_known_mistakes_are_still_those_of_the_code(script):
    changed = [mutant.diff.splitlines()[1].strip("- ") for mutant in script.known_mutants()]
    assert changed == [
        '"temperature": config.ajet.rollout.temperature,',
        'return "before" if self._validates_before else None',
        "os.fsync(file.fileno())",
        'if mode == "eval":',
    ]


def test_a_known_mistake_that_the_code_does_not_have_is_an_error(script, monkeypatch):
    gone = script.Known("gone", "ajet/core/seeding.py", "no such line", "")
    monkeypatch.setattr(script, "KNOWN", (gone,))
    with pytest.raises(SystemExit, match=r"seeding\.py: 'no such line' is there 0 times"):
        script.known_mutants()


def test_every_file_that_is_changed_has_tests_that_are_there(script):
    named = {test for tests in script.TESTS.values() for test in tests}
    assert [test for test in sorted(named) if not (ROOT / test).exists()] == []
    for group in script.GROUPS:
        found = [[*ROOT.glob(pattern)] for pattern in group.files]
        assert all(found), group.name
        paths = [str(path.relative_to(ROOT)) for each in found for path in each]
        for file in (*group.functions, *paths):
            assert (ROOT / file).is_file() and script.nearest_tests(file), file


def test_the_results_are_of_files_that_are_there(script):
    """Where a file is gone, `python scripts/mutants.py --drop-gone` leaves its results out."""
    told = json.loads(script.RESULTS.read_text("utf-8"))
    assert {
        each["file"] for each in told["results"] if not (ROOT / each["file"]).is_file()
    } == set()
    outcomes = [each["killed_by"] is not None for each in told["results"]]
    assert (told["mutants"], told["killed"]) == (len(outcomes), sum(outcomes))
    assert told["mutants"] + len(told.get("files_gone_since_the_run", ())) == 100


def test_results_of_files_that_are_gone_are_left_out_and_named(script, tmp_path):
    here, gone = {"file": "ajet/assembly.py"}, {"file": "ajet/gone.py"}
    results = [here | {"killed_by": "a"}, gone | {"killed_by": "b"}, here | {"killed_by": None}]
    file = tmp_path / "mutants.json"
    file.write_text(json.dumps({"mutants": 3, "killed": 2, "survived": 1, "results": results}))
    script.drop_gone(file)
    told = json.loads(file.read_text())
    assert [told[name] for name in ("mutants", "killed", "survived")] == [2, 1, 1]
    assert told["files_gone_since_the_run"] == ["ajet/gone.py"]
    assert [each["file"] for each in told["results"]] == ["ajet/assembly.py"] * 2


def test_a_hundred_mutants_are_tried(script):
    assert len(script.KNOWN) + sum(group.count for group in script.GROUPS) == 100
