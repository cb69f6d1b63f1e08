"""What a release consists of beside the code."""

import re
import tomllib
from pathlib import Path

import yaml

import ajet
from scripts.release_notes import notes

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = """# Changelog

## Unreleased

- Not yet.

## 0.2.0 (2026-01-02)

- New.
- Newer.

## 0.1.0

- First.
"""


def test_a_versions_notes_are_its_section_of_the_changelog():
    assert notes(CHANGELOG, "v0.2.0") == "- New.\n- Newer."
    assert notes(CHANGELOG, "0.1.0") == "- First."
    assert notes(CHANGELOG, "Unreleased") == "- Not yet."
    assert notes(CHANGELOG, "0.2") == notes(CHANGELOG, "0.3.0") == ""


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert ajet.__version__ == PROJECT["version"] == citation["version"]
    assert citation["license"] == PROJECT["license"]


def test_ci_runs_the_same_command_as_a_contributor():
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert {"run": ".ci/run"} in ci["jobs"]["linux"]["steps"]
    steps = [step.get("run", "") for job in ci["jobs"].values() for step in job["steps"]]
    named = re.findall(r"(?:tests|scripts)/[\w/.]+", " ".join(steps))
    assert named and all((ROOT / name).exists() for name in named)
