"""Runs a page as a reader would: writes its files, types its commands, compares what they print.

    ```python title="agent.py"              is written into the folder
    ```bash                                 is run there by bash, which ends at the first error
    ```bash title="minutes of computing"    the same, unless `long=False`
    ```bash title="for reading"             is not run
    ```text title="it prints, …"            the lines that the bash block before it prints, in this
                                            order; others may stand between them where it has a …

Blocks of other kinds are for reading. `tests/test_guides.py` runs every guide without what takes
minutes; `scripts/try_install.py` runs some in a new environment, with the wheel.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
READING = "for reading"
MINUTES = "minutes of computing"
PRINTS = "it prints"


class GuideError(Exception):
    """Says that a page does not do what it says, with the block."""


@dataclass(frozen=True)
class Block:
    """Holds one fenced block of a page."""

    language: str
    title: str
    text: str

    @property
    def is_file(self) -> bool:
        return bool(re.fullmatch(r"[\w./-]+\.\w+", self.title))

    @property
    def first_line(self) -> str:
        return self.title if self.is_file else self.text.partition("\n")[0]


@dataclass(frozen=True)
class Done:
    """Says what became of a block: its seconds, and what it printed."""

    block: Block
    seconds: float
    output: str


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page that are files, commands, or what these print."""
    found = [Block(*match) for match in FENCE.findall(page.read_text(encoding="utf-8"))]
    return [
        block
        for block in found
        if block.is_file
        or (block.language == "bash" and block.title != READING)
        or block.title.startswith(PRINTS)
    ]


def run(page: Path, folder: Path, environment: Mapping[str, str], *, long: bool) -> Iterator[Done]:
    """Follows a page in a folder and yields each block that was done. Raises `GuideError` where a
    command fails or prints something else than the page shows."""
    output = ""
    for block in blocks(page):
        started_s = time.monotonic()
        if block.is_file:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "bash":
            if block.title == MINUTES and not long:
                continue
            output = _bash(block, folder, environment)
        else:
            _compare(block, output)
            continue
        yield Done(block, time.monotonic() - started_s, output)


def _bash(block: Block, folder: Path, environment: Mapping[str, str]) -> str:
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "TERM": "dumb", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode:
        raise GuideError(f"exit code {ended.returncode} of\n{block.text}\n{ended.stdout}")
    return ended.stdout


def _compare(block: Block, output: str) -> None:
    printed = [" ".join(line.split()) for line in output.splitlines()]
    place, may_skip = 0, True
    for line in block.text.splitlines():
        if line.strip() == "…":
            may_skip = True
            continue
        wanted = " ".join(line.split())
        later = [n for n in range(place, len(printed)) if printed[n].startswith(wanted)]
        if not later or (not may_skip and later[0] != place):
            raise GuideError(f"the page shows {line!r}, which is not printed there:\n{output}")
        place, may_skip = later[0] + 1, False
