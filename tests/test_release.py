"""What a release consists of beside the code."""

import json
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

import ajet
from scripts import release
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


def made_with(repository, folder, monkeypatch):
    """What setuptools makes of setup.py and pyproject.toml with this public address."""
    from setuptools.build_meta import prepare_metadata_for_build_wheel

    text = (ROOT / "pyproject.toml").read_text()
    set_to = text.replace('repository = ""', f'repository = "{repository}"')
    for name in ("setup.py", "README.md", "LICENSE"):
        (folder / name).write_text((ROOT / name).read_text())
    (folder / "pyproject.toml").write_text(set_to)
    for name in ("ajet", "tutorial"):
        (folder / name).mkdir()
    monkeypatch.chdir(folder)
    made = prepare_metadata_for_build_wheel(str(folder))
    metadata = (folder / made / "METADATA").read_text()
    return re.findall(r"^Project-URL: (.*)$", metadata, re.MULTILINE)


def test_the_urls_of_the_project_follow_from_its_one_address(tmp_path, monkeypatch):
    assert made_with("https://host.example/org/ajet", tmp_path, monkeypatch) == [
        "Repository, https://host.example/org/ajet",
        "Documentation, https://host.example/org/ajet/tree/main/docs",
        "Changelog, https://host.example/org/ajet/blob/main/CHANGELOG.md",
        "Issues, https://host.example/org/ajet/issues",
    ]


def test_a_release_is_not_ready_without_a_section_of_the_changelog_and_an_address():
    found = release.problems("9.9.9", "")
    assert "CHANGELOG.md has no section of 9.9.9: rename Unreleased" in found
    assert any(problem.startswith("pyproject.toml: [tool.ajet] repository") for problem in found)
    kept = release.problems("9.9.9", "https://host.example/org/ajet")
    assert not any("repository" in problem for problem in kept)


def test_the_docs_of_each_version_stay_and_the_newest_is_shown_first(tmp_path):
    site = tmp_path / "html"
    site.mkdir()
    for version in ("0.9.0", "0.10.0"):
        (site / "index.html").write_text(version)
        archive = release.write_docs(site, tmp_path, version)
    docs = tmp_path / "docs"
    assert (docs / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert 'url=0.10.0/index.html"' in (docs / "index.html").read_text()
    assert json.loads((docs / "versions.json").read_text()) == ["0.10.0", "0.9.0"]
    with tarfile.open(archive) as tar:
        assert "0.10.0/index.html" in tar.getnames()


def test_the_hashes_are_those_that_sha256sum_checks(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"abc")
    # The digest of "abc" in FIPS 180-2.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert release.hash_lines([tmp_path / "a.whl"]) == f"{digest}  a.whl\n"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_a_signature_of_the_hashes_is_verified_and_one_of_others_is_not(tmp_path):
    key, sums = tmp_path / "key", tmp_path / "SHA256SUMS"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    sums.write_text("0  a.whl\n")
    assert release.sign(sums, None) is None
    signature = release.sign(sums, str(key))
    signers = tmp_path / "signers"
    signers.write_text(f"ada@host.example {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "ada@host.example"]
    verify += ["-n", release.NAMESPACE, "-s", signature]
    assert subprocess.run(verify, input=b"0  a.whl\n", capture_output=True).returncode == 0
    assert subprocess.run(verify, input=b"1  a.whl\n", capture_output=True).returncode != 0


def test_a_tag_is_released_by_the_same_command_and_published_without_a_token():
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    commands = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert "make release RELEASE=--tagged" in commands
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
