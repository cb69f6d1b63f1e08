"""The guides are true: files are written, commands are run, what they print is compared. `ajet` is
a fork of a process that has imported it; `make personas` follows two pages with the wheel's."""

import json
import os
import sys
from pathlib import Path

import pytest

from scripts.guide_blocks import GuideError, blocks, run
from tests.warm_start import write_warm_ajet

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = sorted(
    page
    for folder in ("guides", "coming_from")
    for page in (DOCS / folder).glob("*.md")
    if page.name != "index.md" and any(block.language == "bash" for block in blocks(page))
)
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Follows a page once, and returns its folder with what was done there."""
    known, commands = {}, tmp_path_factory.mktemp("commands")
    write_warm_ajet(commands / "ajet")
    environment = ENVIRONMENT | {"PATH": f"{commands}{os.pathsep}{ENVIRONMENT['PATH']}"}

    def follow(page):
        if page not in known:
            folder = tmp_path_factory.mktemp(page.stem)
            known[page] = folder, list(run(page, folder, environment, long=False))
        return known[page]

    return follow


@pytest.mark.guide
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_does_what_it_says(page, followed):
    _, done = followed(page)
    assert any(each.block.language == "bash" for each in done)


@pytest.mark.guide
def test_every_metric_that_a_run_writes_is_in_the_reference(followed):
    from scripts.site_pages import is_documented

    folder, _ = followed(DOCS / "guides/game.md")
    rows = (folder / "launcher_record/trial/logs/metrics.jsonl").read_text().splitlines()
    names = {name for row in rows for name in json.loads(row)} - {"step", "time"}
    assert len(names) > 20
    assert [name for name in sorted(names) if not is_documented(name)] == []


def page(folder, text):
    file = folder / "page.md"
    file.write_text(text)
    return file


def test_files_are_written_and_commands_run_in_their_order(tmp_path):
    text = '```python title="a/b.py"\nprint(6 * 7)\n```\n\n```bash\npython a/b.py\n```\n'
    shown = '\n```text title="it prints"\n42\n```\n'
    done = list(run(page(tmp_path, text + shown), tmp_path, ENVIRONMENT, long=False))
    assert [each.block.first_line for each in done] == ["a/b.py", "python a/b.py"]
    assert done[-1].output == "42\n"


@pytest.mark.parametrize(
    ("shown", "is_true"),
    [
        ("1\n2\n", True),
        ("1\n…\n3\n", True),
        ("1\n3\n", False),
        ("3\n…\n1\n", False),
        ("4\n", False),
    ],
)
def test_what_a_page_shows_must_be_printed_in_its_order(tmp_path, shown, is_true):
    text = f'```bash\nprintf "1\\n2\\n3\\n"\n```\n\n```text title="it prints"\n{shown}```\n'
    if is_true:
        list(run(page(tmp_path, text), tmp_path, ENVIRONMENT, long=False))
        return
    with pytest.raises(GuideError, match="not printed there"):
        list(run(page(tmp_path, text), tmp_path, ENVIRONMENT, long=False))


def test_a_command_that_fails_is_an_error_and_what_takes_minutes_is_left_out(tmp_path):
    text = '```bash title="minutes of computing"\nfalse\n```\n'
    assert list(run(page(tmp_path, text), tmp_path, ENVIRONMENT, long=False)) == []
    with pytest.raises(GuideError, match="exit code 1"):
        list(run(page(tmp_path, text), tmp_path, ENVIRONMENT, long=True))
