"""The guides are true: files are written, commands are run, what they print is compared."""

import json
import os
import sys
from pathlib import Path

import pytest

from scripts.guide_blocks import GuideError, blocks, run

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
    known = {}

    def follow(page):
        if page not in known:
            folder = tmp_path_factory.mktemp(page.stem)
            known[page] = folder, list(run(page, folder, ENVIRONMENT, long=False))
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
