"""Prints the notes of a version: its section of CHANGELOG.md.

    python scripts/release_notes.py 0.1.0 > notes.md
    python scripts/release_notes.py Unreleased

Exits with 1 where the version has no section, or one without entries.
"""

import argparse
import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def notes(changelog: str, version: str) -> str:
    """Returns the text between the heading of a version and the next one. A heading may have a date
    after the version. The text is empty where there is none."""
    heading = rf"^## \[?{re.escape(version.removeprefix('v'))}\]?(?: [^\n]*)?\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def main() -> int:
    """Prints the notes, and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="such as 0.1.0 or v0.1.0")
    version = parser.parse_args().version
    text = notes(CHANGELOG.read_text(encoding="utf-8"), version)
    if not text:
        print(f"error: {CHANGELOG.name} has no entries of {version}", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
