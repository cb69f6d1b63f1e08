"""Makes the site: copies docs/, writes the reference that the code says, and has it built.

    python scripts/site_pages.py              # build/site: docs and mkdocs.yml, for each language
    python scripts/site_pages.py --check      # the built pages ask no other host for anything, what
                                              # they link to is there, and the search finds what
                                              # readers look for

    docs/**                    copied; a link that leaves docs/ leads to a page of that file
    docs/zh/**                 a second site, below the first: search and menus have one language
    reference/commands/*.md    each command with its options, from Typer
    reference/config/*.md      each key with type, default, sentence (with the version that brought
                               it, after the first) and backbones, from the tree
    reference/metrics.md       each metric, from the docstrings of the modules that compute them
    reference/run_folder.md    files and tables, from the modules that write them

Python's public names are read by mkdocstrings. Nothing written here is committed.
"""

import argparse
import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

import ajet
from ajet.cli.launcher import COMMANDS, SUBCOMMANDS, app
from ajet.core.config.section import ALL_BACKBONES, NoEffect, Section, Since
from ajet.core.config.tree import AjetConfig
from ajet.core.record import episode_schema, run_folder

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build/site"
CHINESE_README = ROOT / "docs/zh/README.md"
"""Like the English one it is for a code host, and on neither site."""
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
METRIC = re.compile(r"^ {4}(\S.*?) {2,}(?:-?[\d.]+ {4,})?(\S.*)$")
METRIC_MODULES = {
    "ajet/core/record/step_metrics.py": "",
    "ajet/core/record/selection.py": "",
    "ajet/core/advantage/metrics.py": "",
    "ajet/core/update/update_metrics.py": "update/",
    "ajet/core/update/critic_metrics.py": "critic/",
    "ajet/serve/tinker/step_data.py": "",
}
"""The modules whose docstrings say what a metric is, with the group of those that have none."""
WIDE = "---\nhide: [toc]\n---\n\n"
"""Gives a page the width of the list of its headings."""
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
"""Keeps a page out of the search: source files and decisions have every word, and answer nothing
that a reader of the guides asks."""
SEARCHES = {
    "resume": "runs.html",
    "out of memory": "memory.html",
    "own model": "models.html",
    "csv": "guides/judge.html",
    "langgraph": "guides/langgraph.html",
}
"""What readers look for, and the page that must be among the first results."""
FIRST = 3
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".sh": "bash"}


class Pages:
    """Collects the pages of the site by their place in its folder of sources."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def copy(self, place: str, source: Path) -> None:
        """Adds a Markdown file, and pages of the files outside docs/ that it links to."""
        self.texts[place] = ""  # it may be linked to from what it links to
        text = source.read_text(encoding="utf-8")
        parts = re.split(r"(^```.*?^```\n)", text, flags=re.DOTALL | re.MULTILINE)
        parts[::2] = [LINK.sub(lambda m: self._link(m, place, source), part) for part in parts[::2]]
        self.texts[place] = "".join(parts)

    def _link(self, match: re.Match[str], place: str, source: Path) -> str:
        before, target, anchor, after = match[1], match[2], match[3] or "", match[4]
        file = (source.parent / target).resolve()
        in_docs = file.is_relative_to(ROOT / "docs")
        if re.match(r"[a-z]+:", target):
            return match[0]
        if not file.exists() and not file.is_relative_to(ROOT / "docs/reference"):  # written here
            raise SystemExit(f"{source}: the link {target} leads to no file")
        page = str(file.relative_to(ROOT / "docs")) if in_docs else self._page_of(file)
        if is_chinese(page) != is_chinese(place):
            page = built(page)  # of the other site
        elif in_docs and place.split("/")[0] != "source":
            return match[0]
        return f"{before}{os.path.relpath(page, Path(place).parent)}{anchor}{after}"

    def _page_of(self, file: Path) -> str:
        """Returns the page that shows a file of the repository, or a folder by its README."""
        if file.is_dir():
            if (file / "README.md").exists():
                return self._page_of(file / "README.md")
            page = f"source/{file.relative_to(ROOT)}/index.md"
            names = "\n".join(f"- `{each.name}`" for each in sorted(file.iterdir()))
            self.texts.setdefault(page, f"# {file.relative_to(ROOT)}\n\n{names}\n")
            return page
        name = str(file.relative_to(ROOT))
        page = f"source/{name}" if file.suffix == ".md" else f"source/{name}.md"
        if page in self.texts:
            return page
        if file.suffix == ".md":
            self.copy(page, file)
        else:
            code = file.read_text(encoding="utf-8")
            self.texts[page] = f"# {name}\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{code}````\n"
        return page


def is_chinese(place: str) -> bool:
    return place.startswith("zh/")


def built(page: str) -> str:
    """Returns the file that the builder makes of a page; other files are copied."""
    path = Path(page)
    name = "index.html" if path.name == "README.md" else re.sub(r"\.md$", ".html", path.name)
    return str(path.with_name(name))


def command_pages() -> Iterator[tuple[str, str]]:
    """Yields a page for each command and subcommand, as (name, text): its `--help`."""
    for name in COMMANDS:
        for words in ([name], *([name, subcommand] for subcommand in SUBCOMMANDS.get(name, ()))):
            arguments = [*words, "--help"]
            shown = CliRunner().invoke(app, arguments, terminal_width=88, max_content_width=88)
            text = shown.output.replace("Usage: root ", "Usage: ajet ").strip()
            yield "-".join(words), f"# ajet {' '.join(words)}\n\n```text\n{text}\n```\n"


def config_pages() -> Iterator[tuple[str, str]]:
    """Yields a page for each section of the tree, as (name, text): what is below `ajet`, and the
    two backbones' own sections."""
    head = (
        "A key that is not here is refused. *Refused* ends the start with a "
        "line unless the key has its default; *no effect* is said in one notice. Which keys are "
        "read may depend on others: `ajet check` says it of your config. A key is there since "
        "0.1.0, the first version, unless its sentence names a later one."
    )
    sections: list[tuple[str, Any, list[str]]] = []
    for root, field in AjetConfig.model_fields.items():
        own = []
        for name, inner in section_of(field).model_fields.items():
            if section_of(inner) is None:
                own.append(name)
            else:
                below = section_of(inner)
                sections.append((f"{root}.{name}", below, [*below.model_fields]))
        sections.append((root, section_of(field), own))
    for path, section, names in sorted(sections, key=lambda each: each[0].split(".")):
        fields = section.model_fields
        rows = [row for name in names for row in key_rows(name, fields[name])]
        if not rows:
            continue
        said = (inspect.getdoc(section) or "").partition("\n\n")[0].replace("\n", " ")
        columns = (f"below `{path}`", "type, default", "what it does", "backbones")
        yield path, f"{WIDE}# {path}\n\n{escaped(said)}\n\n{head}\n\n{table(columns, rows)}"


def section_of(field: FieldInfo) -> Any:
    """Returns the section that a field holds, or None."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def key_rows(path: str, field: FieldInfo) -> Iterator[Sequence[str]]:
    """Yields a key's cells, those of `config_pages`; a section's are those of its keys."""
    section = section_of(field)
    if section is not None:
        for name, inner in section.model_fields.items():
            yield from key_rows(f"{path}.{name}", inner)
        return
    default = field.get_default(call_default_factory=True)
    shown = "" if default is PydanticUndefined else f"`{_yaml(default)}`"
    kind = f"{type_text(field.annotation)}, {shown}".removesuffix(", ")
    since = [f" *Since {mark.version}.*" for mark in field.metadata if isinstance(mark, Since)]
    said = escaped(field.description or "")
    yield f"`{path}`", kind, "".join([said, *since]), _honoured(field)


def escaped(text: str) -> str:
    """Returns plain text as Markdown that shows it: `<name>` would be a tag, and `a*b*c` italic."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [part.replace("<", "&lt;").replace("*", r"\*") for part in parts[::2]]
    return "".join(parts)


def _honoured(field: FieldInfo) -> str:
    """Returns which backbones honour a key; of the others, what they make of it, and why."""
    said = [
        (mark.on, f"no effect: {mark.reason}")
        for mark in field.metadata
        if isinstance(mark, NoEffect)
    ]
    honour = [name for name in ALL_BACKBONES if not any(name in on for on, _ in said)]
    yes = "all" if len(honour) == len(ALL_BACKBONES) else ", ".join(honour)
    others = [f"{', '.join(on)}: *{escaped(text)}*" for on, text in said]
    return "; ".join(filter(None, [yes, *others]))


def _yaml(value: Any) -> str:
    if isinstance(value, Section):
        value = value.model_dump()
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def type_text(kind: Any) -> str:
    """Returns a type in words: `debug | verl | trinity`, `list of text`."""
    origin, inner = get_origin(kind), get_args(kind)
    names = {str: "text", int: "whole number", float: "number", bool: "yes or no"}
    if kind in names:
        return names[kind]
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if each is type(None) else type_text(each) for each in inner)
    if origin in (list, tuple):
        each = [type_text(one) for one in inner if one is not Ellipsis]
        return f"list of {' and '.join(dict.fromkeys(each))}"
    if origin is dict:
        return f"mapping to {type_text(inner[1])}" if type_text(inner[1]) else "mapping"
    if origin is not None:  # Annotated
        return type_text(inner[0])
    if isinstance(kind, type) and issubclass(kind, Section):
        return f"mapping of {', '.join(f'`{name}`' for name in kind.model_fields)}"
    return "any value" if kind is Any else getattr(kind, "__name__", str(kind))


def metric_rows() -> list[tuple[str, str, str]]:
    """Returns (names, what they are, module), from docstrings that say `    group/name    what it
    is`, with more indentation for what continues."""
    rows: list[list[str]] = []
    for module, group in METRIC_MODULES.items():
        text = ast.get_docstring(
            ast.parse((ROOT / module).read_text(encoding="utf-8")), clean=False
        )
        is_row = False
        for line in (text or "").splitlines():
            if found := METRIC.match(line):
                names = [f"{group}{name}" for name in re.split("[ ,]+", found[1])]
                rows.append([", ".join(names), found[2], module])
            elif is_row and line.startswith(" " * 8):
                rows[-1][1] += f" {line.strip()}"
                continue
            is_row = found is not None
            if not is_row and line.startswith("    "):
                raise SystemExit(
                    f"{module}: no metric and its sentence, two spaces apart: {line!r}"
                )
    return [(names, said, module) for names, said, module in rows]


def is_documented(name: str) -> bool:
    """Returns whether a metric is in the reference: by its name, or by a name with an ending `…`;
    a name without a group is in that of the name before it."""
    for names, _, _ in metric_rows():
        group = ""
        for known in names.split(", "):
            group = known.rpartition("/")[0] or group
            known = known if "/" in known else f"{group}/{known}"
            if name == known or ("…" in known and name.startswith(known.partition("…")[0])):
                return True
    return False


def metrics_page() -> str:
    rows = [(f"`{names}`", escaped(said), f"`{module}`") for names, said, module in metric_rows()]
    return (
        "# Metrics\n\nEach step is a line of `logs/metrics.jsonl` in the run folder, and goes to "
        "every tracker of `ajet.trainer_common.logger`. The part before the `/` is the group under "
        "which a page shows it; `…` stands for any ending. "
        "[Warnings of a run](../warnings.md) is computed from them.\n\n"
        + table(("metric", "what it is", "computed in"), rows)
    )


def run_folder_page() -> str:
    folder, tables = (inspect.getdoc(each) or "" for each in (run_folder, episode_schema))
    columns = [
        (f"`{name}`", ", ".join(f"`{column}`" for column in each))
        for name, each in (
            ("episodes", episode_schema.EPISODE_COLUMNS),
            ("turns", episode_schema.TURN_COLUMNS),
        )
    ]
    return (
        f"# Run folder\n\n```text\n{folder}\n```\n\n## Its tables\n\n"
        f"{table(('table of `episodes.sqlite`', 'columns'), columns)}\n```text\n{tables}\n```\n"
    )


def python_page() -> str:
    names = "\n\n".join(f"::: ajet.{name}" for name in ajet.__all__)
    return f"# Python\n\nWhat `from ajet import …` has. Nothing heavy is loaded by it.\n\n{names}\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; a bar within a cell is escaped once."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [
        [re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in row] for row in lines
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def expanded(nav: Any, pages: Pages) -> Any:
    """Returns the navigation with the pages of a folder in the place of the folder's name."""
    if isinstance(nav, list):
        return [expanded(each, pages) for each in nav]
    if isinstance(nav, dict):
        return {title: expanded(inner, pages) for title, inner in nav.items()}
    if not nav.endswith("/"):
        return nav
    return [{Path(page).stem: page} for page in pages.texts if page.startswith(nav)]


def is_searched(place: str) -> bool:
    """Tells whether the search has a page: not a source file, nor a single decision."""
    folder, _, name = place.rpartition("/")
    return not (place.startswith("source/") or (folder == "adr" and name[:4].isdecimal()))


def stage() -> None:
    """Writes the sources of both sites and their configs into build/site."""
    pages = Pages()
    for source in sorted((ROOT / "docs").rglob("*.md")):
        if source != CHINESE_README:
            pages.copy(str(source.relative_to(ROOT / "docs")), source)
    for name, text in command_pages():
        pages.texts[f"reference/commands/{name}.md"] = text
    for name, text in config_pages():
        pages.texts[f"reference/config/{name}.md"] = text
    pages.texts["reference/metrics.md"] = metrics_page()
    pages.texts["reference/run_folder.md"] = run_folder_page()
    pages.texts["reference/python.md"] = python_page()
    shutil.rmtree(OUT, ignore_errors=True)
    for place, text in pages.texts.items():
        text = text if is_searched(place) else UNSEARCHED + text
        file = OUT / ("docs_zh" if is_chinese(place) else "docs") / place.removeprefix("zh/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for source in (ROOT / "docs").rglob("*"):
        if source.suffix in (".svg", ".png", ".css"):
            shutil.copy(source, OUT / "docs" / source.relative_to(ROOT / "docs"))
    shutil.copy(ROOT / "docs/site.css", OUT / "docs_zh")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    chinese = yaml.safe_load((ROOT / "mkdocs.zh.yml").read_text(encoding="utf-8"))
    chinese["theme"] = config["theme"] | chinese["theme"]
    english = {"nav": expanded(config["nav"], pages), "docs_dir": "docs", "site_dir": "html"}
    write_yaml(OUT / "mkdocs.yml", config | english)
    folders = {"docs_dir": "docs_zh", "site_dir": "html/zh"}
    write_yaml(OUT / "mkdocs.zh.yml", config | chinese | folders)
    print(f"{OUT.relative_to(ROOT)}: {len(pages.texts)} pages")


def write_yaml(file: Path, config: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")


ASSET = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|modulepreload))"""
    r"""[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|@import\s+(?:url\()?["']?((?:https?:)?//[^"')\s]+)|url\(["']?((?:https?:)?//[^"')\s]+)"""
)


def foreign_assets(folder: Path) -> list[str]:
    """Returns what the pages below a folder would load from another host, as `page: address`."""
    return [
        f"{file.relative_to(folder)}: {next(filter(None, found))}"
        for file in sorted(folder.rglob("*"))
        if file.suffix in (".html", ".css")
        for found in ASSET.findall(file.read_text(encoding="utf-8"))
    ]


def lost_links(folder: Path) -> list[str]:
    """Returns the links below a folder that lead to no file, as `page: address`. The builder finds
    those within one site; these may lead to the other one."""
    return [
        f"{file.relative_to(folder)}: {target}"
        for file in sorted(folder.rglob("*.html"))
        if file.name != "404.html"  # it is shown at any address
        for target in re.findall(
            r'<a\b[^>]*\bhref="([^":#?]+)["#?]', file.read_text(encoding="utf-8")
        )
        if not (file.parent / target).exists()
    ]


def missed_searches(folder: Path) -> list[str]:
    """Returns the queries of `SEARCHES` whose page is not among the first results of the search
    below a folder of built pages, which node runs."""
    script = Path(__file__).with_name("site_search.mjs")
    command = ["node", str(script), str(folder), *SEARCHES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return [
        f"{query!r} finds {', '.join(found[query][:FIRST]) or 'nothing'}, not {page}"
        for query, page in SEARCHES.items()
        if page not in found[query][:FIRST]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="look at what was built instead")
    if not parser.parse_args().check:
        stage()
        return
    if found := foreign_assets(OUT / "html"):
        sys.exit("\n".join(["error: the site loads from other hosts:", *found[:10]]))
    if found := lost_links(OUT / "html"):
        sys.exit("\n".join(["error: links of the site lead to no file:", *found[:10]]))
    if shutil.which("node") is None:
        print("note: without node the search is not tried")
    elif missed := missed_searches(OUT / "html"):
        sys.exit("\n".join(["error: the search misses what readers look for:", *missed]))
    pages = len(list((OUT / "html").rglob("*.html")))
    print(f"{OUT.relative_to(ROOT)}/html: {pages} pages, which load nothing from elsewhere")


if __name__ == "__main__":
    main()
