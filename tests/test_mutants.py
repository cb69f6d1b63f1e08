"""The script that tries mutants knows the code and the tests as they are now."""

import importlib.util
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


def test_every_file_that_is_changed_has_tests_that_are_there(script):
    named = {test for tests in script.TESTS.values() for test in tests}
    assert [test for test in sorted(named) if not (ROOT / test).exists()] == []
    for group in script.GROUPS:
        found = [[*ROOT.glob(pattern)] for pattern in group.files]
        assert all(found), group.name
        paths = [str(path.relative_to(ROOT)) for each in found for path in each]
        for file in (*group.functions, *paths):
            assert (ROOT / file).is_file() and script.nearest_tests(file), file
