"""Writes the table of docs/convert.md: what of the four other systems runs here, and how.

    python scripts/convert_table.py            # writes the table into the document
    python scripts/convert_table.py --check    # exits with 1 where it would change, or a row errs

The rows are those of convert_table.yaml. Each names a test that shows it, and the script finds that
test in its file; what is refused has the line that a user reads, which is found among the texts of
ajet and of the test, or is what `ajet convert` says of a key. Not covered: whether the tests pass.
"""

import argparse
import ast
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from ajet.convert import convert
from ajet.convert.writing import grouped

ROOT = Path(__file__).parents[1]
ROWS = Path(__file__).with_suffix(".yaml")
DOCUMENT = ROOT / "docs" / "convert.md"
BEGIN = "<!-- scripts/convert_table.py writes from here -->"
END = "<!-- to here -->"
HERE = {
    "unchanged": "runs unchanged",
    "import": "runs with the import changed",
    "converted": "converted by `ajet convert`",
    "refused": "refused",
}
LEFT_OUT_TEST = "tests/convert/test_convert_table.py::test_a_key_of_the_table_is_left_out_in_a_line"
KEYS = {"feature", "here", "test", "said", "key"}


@dataclass(frozen=True)
class Row:
    """Describes one feature of another system."""

    system: str
    feature: str
    here: str
    test: str
    said: str = ""
    key: str = ""

    def text(self) -> str:
        """Returns the row as Markdown."""
        said = left_out_line(self.system, self.key) if self.key else self.said
        here = HERE[self.here] + (f": {_code(said)}" if said else "")
        return f"| {self.feature} | {_escaped(here)} | `{self.test}` |"


def read_rows() -> dict[tuple[str, str], list[Row]]:
    """Returns the rows of each (system, what its features are taken from)."""
    systems = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    return {
        (each["system"], each["source"]): [_row(each["system"], row) for row in each["rows"]]
        for each in systems
    }


def _row(system: str, given: dict[str, str]) -> Row:
    if unknown := given.keys() - KEYS:
        raise ValueError(f"{system}: {given.get('feature')}: no key {unknown.pop()!r} here")
    test = LEFT_OUT_TEST if "key" in given else given["test"]
    return Row(system, **{**given, "test": test})


def problems(rows: list[Row]) -> Iterator[str]:
    """Yields a line for each row that says what nothing shows."""
    for row in rows:
        where = f"{row.system}: {row.feature}"
        if row.here not in HERE:
            yield f"{where}: here is {row.here!r}; there are {', '.join(HERE)}"
        if (row.here == "refused") != bool(row.said or row.key):
            yield f"{where}: what is refused has said or key, and nothing else has"
        file, _, name = row.test.partition("::")
        if name not in tests_of(file):
            yield f"{where}: no test {row.test} is collected"
        for part in filter(None, (part.strip() for part in row.said.split("…"))):
            if not any(part in text for text in (*texts_of_ajet(), *texts_of(ROOT / file))):
                yield f"{where}: nothing in ajet says {part!r}"


def left_out_line(system: str, key: str) -> str:
    """Returns what `ajet convert` writes about the setting `name=value`. Raises ValueError where it
    does not leave it out."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.yaml"
        source.write_text("{}\n", encoding="utf-8")
        result = convert(system.lower(), source, [f"+{key}"])
    name = key.partition("=")[0]
    found = [each for each in result.left_out if f"{each.key}.".startswith(f"{name}.")]
    found += [each for each in result.left_out if f"{name}.".startswith(f"{each.key}.")]
    if not found:
        raise ValueError(f"{system}: ajet convert does not leave {key} out")
    return next(iter(grouped(found[:1])))


@cache
def tests_of(file: str) -> frozenset[str]:
    """Returns the names of the tests that pytest collects from a file and does not skip."""
    path = ROOT / file
    if not (path.is_file() and file.startswith("tests/") and path.name.startswith("test_")):
        return frozenset()
    functions = [
        node
        for node in _parsed(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return frozenset(
        each.name
        for each in functions
        if each.name.startswith("test_")
        and not any(ast.unparse(mark).endswith("mark.skip") for mark in each.decorator_list)
    )


@cache
def texts_of_ajet() -> tuple[str, ...]:
    """Returns all texts of ajet's files."""
    return tuple(text for file in (ROOT / "ajet").rglob("*.py") for text in texts_of(file))


@cache
def texts_of(file: Path) -> tuple[str, ...]:
    """Returns the texts of a Python file; one that stands on several lines is one text, with … for
    each of its values."""
    if not file.is_file():
        return ()
    return tuple(filter(None, map(_text_of, ast.walk(_parsed(file)))))


def _text_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _code(text: str) -> str:
    """Returns the text as code; text that has backticks itself is set between two of them."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def table() -> str:
    """Returns the tables of all systems as Markdown."""
    lines = []
    for (system, source), rows in read_rows().items():
        lines += [
            f"### {system}: {source}",
            "",
            "| feature | in ajet | shown by |",
            "|---|---|---|",
        ]
        lines += [*(row.text() for row in rows), ""]
    return "\n".join(lines)


def with_table(document: str) -> str:
    """Returns the document with the present table between its two marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{DOCUMENT}: the lines {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the table of docs/convert.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where stale")
    check = parser.parse_args().check
    found = [line for rows in read_rows().values() for line in problems(rows)]
    for line in found:
        print(line, file=sys.stderr)
    if found:
        return 1
    document = DOCUMENT.read_text(encoding="utf-8")
    if (fresh := with_table(document)) == document:
        return 0
    if check:
        print(f"{DOCUMENT} is stale: run python scripts/convert_table.py", file=sys.stderr)
        return 1
    DOCUMENT.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
