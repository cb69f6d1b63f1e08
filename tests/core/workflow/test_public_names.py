"""`import ajet` is light, and so is a workflow file that imports its names."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ajet
from scripts.public_signatures import public_signatures

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))

HEAVY = ("torch", "ray", "transformers", "datasets", "langchain", "agentscope", "numpy", "pydantic")
SCRIPT = f"""
import sys, time
started = time.perf_counter()
import ajet
print(time.perf_counter() - started)
print([name for name in {HEAVY} if name in sys.modules])
from ajet import ModelTuner, AjetTuner, Workflow, WorkflowTask, WorkflowOutput, Task, BaseJudge
from ajet import ChatClient, GroupJudge, register
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_importing_ajet_and_its_names_loads_nothing_heavy_and_is_fast():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    seconds, at_import, with_names = run.stdout.splitlines()
    assert float(seconds) < 0.150
    assert at_import == "[]"
    assert with_names == "[]"


def test_every_public_name_is_there_and_others_are_not():
    assert all(getattr(ajet, name) is not None for name in ajet.__all__)
    assert ajet.AjetTuner is ajet.ModelTuner
    assert set(ajet.__all__) <= set(dir(ajet))
    assert not hasattr(ajet, "Wrkflow")


def test_the_page_of_public_names_has_each_once():
    assert sorted(re.findall(r"^### (\w+)", PAGE, re.MULTILINE)) == sorted(ajet.__all__)


@pytest.mark.parametrize("name", ajet.__all__)
def test_the_example_of_a_public_name_is_right(name):
    assert re.search(rf"^>>> .*\b{name}\b", SECTIONS[name], re.MULTILINE)
    example = doctest.DocTestParser().get_doctest(SECTIONS[name], {}, name, "docs/api.md", 0)
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)


def test_public_signatures_are_those_that_were_reviewed():
    reviewed = (ROOT / "docs" / "public_signatures.txt").read_text(encoding="utf-8")
    assert public_signatures() == reviewed, (
        "run python scripts/public_signatures.py --write and review the change"
    )


def test_the_imports_for_type_checkers_are_those_at_run_time():
    source = Path(ajet.__file__).read_text(encoding="utf-8")
    typed = re.findall(r"^    from ([\w.]+) import (.+)$", source, re.MULTILINE)
    homes = {name: module for module, names in typed for name in names.split(", ")}
    assert homes.pop("AgentJetJob") == "ajet.compat.agentjet.copilot.job"
    assert homes == {name: home for name, home in ajet._HOMES.items() if name != "AgentJetJob"}
