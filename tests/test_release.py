"""What a release consists of beside the code."""

import re
import subprocess
import sys
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


def test_a_version_without_notes_is_one_line_and_exit_code_1():
    command = [sys.executable, str(ROOT / "scripts" / "release_notes.py"), "99.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: CHANGELOG.md has no entries of 99.0.0\n"


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert ajet.__version__ == PROJECT["version"] == citation["version"]
    assert citation["license"] == PROJECT["license"]


def test_containers_install_extras_that_there_are():
    for file in (ROOT / "docker").glob("*.Dockerfile"):
        [named] = re.findall(r"'\.\[([\w,-]+)\]'", file.read_text())
        assert set(named.split(",")) <= set(PROJECT["optional-dependencies"]), file.name


def test_what_a_container_copies_is_in_its_build_context():
    let_in = (ROOT / ".dockerignore").read_text().splitlines()
    for file in (ROOT / "docker").glob("*.Dockerfile"):
        copied = re.findall(r"^COPY (.+) \S+$", file.read_text(), re.MULTILINE)
        for name in " ".join(copied).split():
            assert f"!{name}" in let_in and (ROOT / name).exists(), name


def test_ci_runs_the_same_command_as_a_contributor():
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert {"run": ".ci/run"} in ci["jobs"]["linux"]["steps"]
    steps = [step.get("run", "") for job in ci["jobs"].values() for step in job["steps"]]
    named = re.findall(r"(?:tests|scripts)/[\w/.]+", " ".join(steps))
    assert named and all((ROOT / name).exists() for name in named)


def test_ci_installs_and_trains_on_the_pythons_that_the_package_names():
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    named = [each for each in PROJECT["classifiers"] if "Python :: 3." in each]
    for job in ("install", "train"):
        tried = ci["jobs"][job]["strategy"]["matrix"]["python"]
        assert [f"Programming Language :: Python :: {each}" for each in tried] == named


def test_the_compose_file_has_a_run_its_page_and_a_tracker():
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    assert set(services) == {"train", "page", "tracker"}
    assert (ROOT / services["train"]["build"]["dockerfile"]).is_file()
