"""A comparison in its four forms: the same figures, and texts of a run never as markup."""

import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from ajet.core.errors import ConfigError, DataError
from ajet.read.reports.comparison_html import WRITTEN, as_html
from ajet.read.reports.comparison_report import ComparisonReport, RecordedEvaluation
from ajet.read.reports.suite_report import SuiteReport

EVIL = "</pre><script>alert(1)</script> | ``` & <b>"


def task(*success, query="What is 1 + 1 ?", answer="2", tag=None):
    row = {
        "success": list(map(bool, success)),
        "reward": list(map(float, success)),
        "status": ["ok"] * len(success),
        "query": query,
        "answers": [answer] * len(success),
    }
    return row if tag is None else row | {"tag": tag}


def written(folder, name, tasks, temperature=1.0):
    plain = {
        "subject": f"model {name}",
        "split": "validation",
        "sampling": {"temperature": temperature},
        "tasks": tasks,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(plain))
    return RecordedEvaluation.read(file, "--compare")


@pytest.fixture
def report(tmp_path):
    a = {"t1": task(0, 0, query=EVIL, answer=EVIL, tag="x|y"), "t2": task(1, 1), "t3": task(1, 0)}
    b = {"t1": task(1, 1, tag="x|y"), "t2": task(0, 1, answer="3"), "t4": task(1, 1)}
    return ComparisonReport.of(
        written(tmp_path, "a", a), written(tmp_path, "b", b, temperature=0.5)
    )


class Tags(HTMLParser):
    """The elements of a page, and the texts of its `pre` elements."""

    def __init__(self):
        super().__init__()
        self.names, self.attributes, self.pres = [], [], []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag == "pre":
            self.pres.append("")

    def handle_data(self, data):
        if self.names and self.names[-1] == "pre":
            self.pres[-1] += data


def test_the_json_has_every_figure_and_every_task_that_changed(report):
    [part] = json.loads(report.as_json())["parts"]
    names = ("num_compared", "num_rose", "num_fell", "num_same")
    assert [part[name] for name in names] == [2, 1, 1, 0]
    assert part["success"]["difference"]["value"] == pytest.approx((1 - 1 / 2) / 2)
    assert set(part["pass_at_k"]) == {"1", "2"} and set(part["by_tag"]) == {"x|y"}
    [rose] = part["rose"]
    assert (rose["task"], rose["a"]["successes"], rose["b"]["successes"]) == ("t1", "0/2", "2/2")
    assert rose["a"]["answer"] == EVIL and part["fell"][0]["b"]["answer"] == "3"


def test_the_notes_say_in_what_the_two_differ_besides_the_model(report):
    assert report.sections[0].notes == [
        "replies were sampled differently: A temperature 1.0 and B temperature 0.5",
        "A has 3 tasks and B 3: only the 2 that both have are compared",
    ]


def test_markdown_keeps_cells_and_texts_whole(report):
    text = report.as_markdown()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table[0] == "|  | A | B | B - A | tasks |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {6}
    assert any(line.startswith("| tag: x\\|y | ") for line in table)
    assert f"````text\n{EVIL}\n````" in text  # a fence that the text does not hold


def test_the_page_is_one_file_without_a_script_and_shows_texts_as_they_are(report):
    page = Tags()
    page.feed(html := as_html(report))
    assert "script" not in page.names and "img" not in page.names and "link" not in page.names
    assert not [value for name, value in page.attributes if name in ("src", "href", "onclick")]
    assert page.pres.count(EVIL) == 2  # the query, and A's answer
    assert page.names.count("polyline") == page.names.count("polygon") == 2
    assert page.names.count("details") == 2
    assert "+0.250 [" in html


def test_a_page_of_many_tasks_shows_the_first_and_says_so(tmp_path):
    a = {f"t{n}": task(0) for n in range(WRITTEN + 5)}
    b = {f"t{n}": task(1) for n in range(WRITTEN + 5)}
    report = ComparisonReport.of(written(tmp_path, "a", a), written(tmp_path, "b", b))
    page = Tags()
    page.feed(html := as_html(report))
    assert page.names.count("details") == WRITTEN and "svg" not in page.names  # k = 1 alone
    assert f"Rose: the first {WRITTEN} of {WRITTEN + 5}" in html
    assert len(json.loads(report.as_json())["parts"][0]["rose"]) == WRITTEN + 5


def test_the_terminal_shows_the_tasks_that_changed_most(report):
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(report.shown())
    text = console.export_text()
    assert "1 of 2 tasks rose, 1 fell, 0 did not change" in text
    assert "rose  0/2 → 2/2  t1: </pre><script>" in text and "fell  2/2 → 1/2  t2: What" in text


def test_the_report_is_three_files_in_one_folder(report, tmp_path):
    files = report.write(tmp_path / "out.html")
    assert [file.name for file in files] == ["out.json", "out.md", "out.html"]
    assert all(file.stat().st_size > 200 for file in files)


def test_a_device_gets_the_json_and_no_file_beside_it(report, tmp_path):
    device = tmp_path / "out.html"
    device.symlink_to("/dev/null")
    before = set(tmp_path.iterdir())
    assert report.write(device) == SuiteReport([]).files(device) == (device,)
    assert set(tmp_path.iterdir()) == before and device.is_symlink()


def test_evaluations_of_suites_are_compared_suite_by_suite(tmp_path):
    def suites(name, **parts):
        plain = [{"name": part, "tasks": {"t": task(*won)}} for part, won in parts.items()]
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"subject": name, "suites": plain}))
        return RecordedEvaluation.read(file, "--compare")

    a, b = suites("a", gsm8k=[1], arc=[0]), suites("b", gsm8k=[0], bfcl=[1])
    assert [part.name for part in ComparisonReport.of(a, b).sections] == ["gsm8k"]
    with pytest.raises(ConfigError, match=r"no task in common \(a: gsm8k, arc and c: bfcl\)"):
        ComparisonReport.of(a, suites("c", bfcl=[1]))


NO_TASK = '{"subject": "a", "split": "v", "tasks": {"t": 1}}'


@pytest.mark.parametrize("content", ["[]", "{", NO_TASK])
def test_a_file_that_is_not_an_evaluation_is_one_line(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(DataError, match=r"--compare .*x\.json: not a result of `ajet eval "):
        RecordedEvaluation.read(file, "--compare")
