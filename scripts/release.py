"""Prepares a release: everything that is published, and the command that publishes it.

    make release                                builds dist/ and build/site, then runs this
    SIGNING_KEY=~/.ssh/id_ed25519 make release  signs the list of hashes, too
    make release RELEASE=--draft                only warns of a changed tree, a missing section, …
    make release RELEASE=--tagged               for a tag that is there, as CI has it

    dist/             wheel and sdist, checked by twine
    build/release/    notes.md, SHA256SUMS and its signature, ajet-V-docs.tar.gz; docs/ with a
                      folder for each version

Nothing is uploaded. Attestations (PEP 740) need the identity of the service that builds:
.github/workflows/release.yml makes them for a tag.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from scripts.release_notes import CHANGELOG, notes

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "release"
NAMESPACE = "ajet-release"
REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={version}/index.html">\n'


def main() -> int:
    """Prepares the release, and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draft", action="store_true", help="Only warn of what is missing.")
    parser.add_argument("--tagged", action="store_true", help="The version has its tag.")
    options = parser.parse_args()
    is_draft = options.draft
    version, repository = project()
    found = problems(version, repository, is_tagged=options.tagged)
    for problem in found:
        print(f"{'warning' if is_draft else 'error'}: {problem}", file=sys.stderr)
    if found and not is_draft:
        return 1
    artifacts = sorted((ROOT / "dist").glob(f"ajet-{version}*"))
    if len(artifacts) != 2:
        print(f"error: dist/ has not one wheel and one sdist of {version}: make dist")
        return 1
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, artifacts)]
    subprocess.run(twine, check=True)
    OUT.mkdir(parents=True, exist_ok=True)
    text = notes(CHANGELOG.read_text(encoding="utf-8"), version) or "See CHANGELOG.md."
    (OUT / "notes.md").write_text(f"{text}\n", encoding="utf-8")
    archive = write_docs(ROOT / "build" / "site" / "html", OUT, version)
    sums = OUT / "SHA256SUMS"
    sums.write_text(hash_lines([*artifacts, archive]))
    signature = sign(sums, os.environ.get("SIGNING_KEY"))
    print(publish_commands(version, artifacts, sums, signature))
    return 0


def project() -> tuple[str, str]:
    """Returns the version and the public address, which may be empty, of pyproject.toml."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return content["project"]["version"], content["tool"]["ajet"]["repository"]


def problems(version: str, repository: str, *, is_tagged: bool = False) -> list[str]:
    """Returns what must be done before this version may be published."""
    git = ["git", "-C", str(ROOT)]
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    tagged = subprocess.run([*git, "tag", "--list", f"v{version}"], capture_output=True, text=True)
    checks = {
        f"{CHANGELOG.name} has no section of {version}: rename Unreleased": bool(
            notes(CHANGELOG.read_text(encoding="utf-8"), version)
        ),
        "there are changes without a commit": not status.stdout,
        f"the tag v{version} is there already: set the next version": is_tagged
        or not tagged.stdout,
        "pyproject.toml: [tool.ajet] repository is empty: write the public address": bool(
            repository
        ),
    }
    return [problem for problem, is_done in checks.items() if not is_done]


def write_docs(site: Path, out: Path, version: str) -> Path:
    """Puts the built site next to those of earlier versions in `out`/docs, whose first page leads
    to the newest, and returns an archive of this version's."""
    docs = out / "docs"
    shutil.rmtree(docs / version, ignore_errors=True)
    shutil.copytree(site, docs / version)
    versions = sorted((path.name for path in docs.iterdir() if path.is_dir()), key=_order)
    (docs / "index.html").write_text(REDIRECT.format(version=versions[-1]))
    (docs / "versions.json").write_text(json.dumps(versions[::-1]) + "\n")
    archive = out / f"ajet-{version}-docs.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(docs / version, version)
    return archive


def _order(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def hash_lines(files: Sequence[Path]) -> str:
    """Returns what `sha256sum --check` reads, in a folder with all of the files."""
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def sign(file: Path, key: str | None) -> Path | None:
    """Signs the file with an SSH key, as git signs tags; without a key it returns None."""
    signature = file.with_name(f"{file.name}.sig")
    signature.unlink(missing_ok=True)
    if not key:
        return None
    path = str(Path(key).expanduser())
    command = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", path, str(file)]
    subprocess.run(command, check=True)
    return signature


def publish_commands(
    version: str, artifacts: Sequence[Path], sums: Path, signature: Path | None
) -> str:
    """Returns the lines that a person copies to publish the release."""
    shown = [str(path.relative_to(ROOT)) for path in [*artifacts, sums]]
    signed = f"  {signature.relative_to(ROOT)}\n" if signature else ""
    how = "" if signature else "not signed: SIGNING_KEY=~/.ssh/id_ed25519 make release\n"
    return (
        f"ready: ajet {version}\n"
        + "".join(f"  {name}\n" for name in shown)
        + signed
        + how
        + "publish it:\n"
        f"  git tag -s v{version} -m 'ajet {version}' && git push origin v{version}"
        "    # release.yml builds, attests and uploads\n"
        f"or from here, without attestations:\n  uv publish {' '.join(shown[:2])}"
    )


if __name__ == "__main__":
    sys.exit(main())
