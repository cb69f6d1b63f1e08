"""A Chinese page says what its English page says: paragraph by paragraph the same commands, code,
numbers and links. Whether the words say the same is for people to compare."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHINESE = ROOT / "docs/zh"
NAMES = """
README index glossary reward_does_not_move
guides/index guides/langgraph guides/openai guides/game guides/pictures guides/judge guides/learning
guides/serve guides/cluster
coming_from/index coming_from/agentjet coming_from/verl coming_from/roll coming_from/chatlearn
coming_from/trinity
"""
ENGLISH = {
    CHINESE / f"{name}.md": (ROOT if name == "README" else ROOT / "docs") / f"{name}.md"
    for name in NAMES.split()
}
"""Each Chinese page with its English one."""
GLOSSARY = CHINESE / "glossary.md"
"""Says which Chinese word stands for which English one, and so differs from the English page."""
TITLES = {
    "it prints": "输出",
    "it prints, among other lines": "输出（节选）",
    "minutes of computing": "需计算数分钟",
    "for reading": "仅供阅读",
}
"""What stands above a block that is no file."""
UNITS = {"million": "M", "billion": "B", "seconds": "秒"}
NUMBER = re.compile(
    rf"\d(?:[\d.,]*\d)?(?:e-?\d+)?(?:x\b|\s?(?:[MB]\b|{'|'.join(['%', *UNITS, *UNITS.values()])}))?"
)
FENCE = re.compile(r'```(\w+)(?: title="([^"]+)")?')
COMMENT = re.compile(r"(?:^|(?<=\s))# .*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)]+)\)")
CODE = re.compile(r"`([^`]+)`")


@dataclass
class Part:
    """A heading, paragraph, row, item or block of a page, by its first line."""

    line: int
    kind: str
    text: str


def parts(text: str) -> list[Part]:
    """Returns what a page consists of, without the line that leads to the other language."""
    found: list[Part] = []
    is_open = False  # whether the next line belongs to the last part
    for number, line in enumerate(text.splitlines(), 1):
        if found and found[-1].kind.startswith("```") and is_open:
            found[-1].text += f"{line}\n"
            is_open = line != "```"
        elif line.startswith("```"):
            found.append(Part(number, line, ""))
            is_open = True
        elif not line.strip() or "[中文](" in line or "[English](" in line or "<a id=" in line:
            is_open = False
        elif is_open and kind(line) == "paragraph":
            found[-1].text += f" {line.strip()}"
        else:
            found.append(Part(number, kind(line), line))
            is_open = not line.startswith(("#", "|"))
    return found


def kind(line: str) -> str:
    mark = re.match(r"#+ |\||- |\d+\. |!!! |> ", line)
    return re.sub(r"\d+", "1", mark[0]).strip() if mark else "paragraph"


def same_kind(english: Part, chinese: Part) -> bool:
    if not english.kind.startswith("```"):
        return english.kind == chinese.kind
    language, title = FENCE.fullmatch(english.kind).groups()
    return FENCE.fullmatch(chinese.kind).groups() == (language, TITLES.get(title, title))


def facts(part: Part, page: Path) -> Counter[str]:
    """Counts what must be the same in both languages."""
    prose, found = part.text, Counter()
    if part.kind.startswith("```"):
        prose = " ".join(COMMENT.findall(part.text))
        lines = COMMENT.sub("", part.text).splitlines()
        found.update(f"line {n} `{line.rstrip()}`" for n, line in enumerate(lines, 1))
    else:
        found.update(f"link {address(page, target)}" for target in LINK.findall(prose))
        prose = LINK.sub("]", prose)
        found.update(f"`{code}`" for code in CODE.findall(prose))
        prose = CODE.sub("", prose)
    for number in NUMBER.findall(prose):
        for english, chinese in UNITS.items():
            number = number.replace(english, chinese)
        found[number.replace(" ", "")] += 1
    return found


def address(page: Path, target: str) -> str:
    """Returns where a link leads to, for a Chinese page by the name of the English one."""
    if re.match(r"[a-z]+:", target):
        return target
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve()
    is_left = page in ENGLISH and file in ENGLISH.values()  # there is a Chinese page
    path = ENGLISH.get(file, file).relative_to(ROOT)
    return f"{path}{'#' if anchor else ''}{anchor}{' in English' if is_left else ''}"


def differences(chinese: str, english: str, page: Path) -> Iterator[str]:
    """Yields a line for each part of a page that differs from the English page."""
    name, other = (path.relative_to(ROOT) for path in (page, ENGLISH[page]))
    for ours, theirs in zip_longest(parts(chinese), parts(english)):
        if ours is None or theirs is None:
            yield f"{name}, {other}: one ends before {(ours or theirs).text!r}"
            return
        where = f"{name}:{ours.line}, {other}:{theirs.line}:"
        if not same_kind(theirs, ours):
            yield f"{where} {ours.kind} {ours.text[:40]!r} and {theirs.kind} {theirs.text[:40]!r}"
            return
        here, there = facts(ours, page), facts(theirs, ENGLISH[page])
        if here != there:
            only = [
                f"only {which}: {', '.join(some)}"
                for which, some in (("Chinese", here - there), ("English", there - here))
                if some
            ]
            yield f"{where} {'; '.join(only)}"


@pytest.mark.parametrize(
    "page", [page for page in ENGLISH if page != GLOSSARY], ids=lambda p: p.stem
)
def test_commands_numbers_code_and_links_are_those_of_the_english_page(page):
    found = [*differences(page.read_text("utf-8"), ENGLISH[page].read_text("utf-8"), page)]
    assert not found, "\n".join(found)


def test_each_page_of_the_list_exists_and_leads_to_its_other_language():
    assert {*CHINESE.rglob("*.md")} == {*ENGLISH}
    for page, english in ENGLISH.items():
        assert f"[English]({os.path.relpath(english, page.parent)}) · 中文\n" in page.read_text(
            "utf-8"
        ), page
        assert f"English · [中文]({os.path.relpath(page, english.parent)})\n" in english.read_text(
            "utf-8"
        ), english


@pytest.mark.parametrize(
    ("english", "chinese", "difference"),
    [
        ("It takes 5 seconds.", "需要 5 秒。", ""),
        ("It takes 5 seconds.", "需要 6 秒。", "only Chinese: 6秒; only English: 5秒"),
        ("A model of 7 billion.", "7B 的模型。", ""),
        ("A share of 95 %.", "95% 的比例。", ""),
        ("A share of 95 %.", "95 的比例。", "only Chinese: 95; only English: 95%"),
        ("`a` is 1, `b` is 2.", "1 是 `a`，2 是 `b`。", ""),
        ("`lr: 1e-6`", "`lr: 1e-5`", "only Chinese: `lr: 1e-5`; only English: `lr: 1e-6`"),
        ("See [it](game.md).", "见[它](game.md)。", ""),
        ("See [it](../runs.md).", "见[它](../../runs.md)。", ""),
        ("See [it](game.md#a).", "见[它](game.md)。", "only Chinese: link docs/guides/game.md; "
         "only English: link docs/guides/game.md#a"),
        ("[it](game.md)", "[它](../../guides/game.md)", "only Chinese: link docs/guides/game.md in "
         "English; only English: link docs/guides/game.md"),
        ("```bash\najet a # one\n```", "```bash\najet a # 一\n```", ""),
        ("```bash\najet a # 1\n```", "```bash\najet a # 一\n```", "only English: 1"),
        ("```bash\najet a\n```", "```bash\najet b\n```", "only Chinese: line 1 `ajet b`"),
        ('```bash title="for reading"\na\n```', '```bash title="仅供阅读"\na\n```', ""),
        ('```text title="it prints"\na\n```', '```text title="输出（节选）"\na\n```', " and "),
        ("- a\n- b", "- 甲", "one ends before '- b'"),
        ("a\n\nb", "甲\n\n- 乙", "- '- 乙' and paragraph 'b'"),
        ("a line\nand more", "一行", ""),
    ],
)  # fmt: skip
def test_a_difference_is_one_line(english, chinese, difference):
    found = [*differences(chinese, english, CHINESE / "guides/serve.md")]
    assert len(found) == bool(difference)
    assert not found or (found[0].endswith(difference) or difference in found[0]), found


def terms(page: Path) -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \|", page.read_text("utf-8"), re.MULTILINE)
    return [term for row in rows[1:] for term in row.split(", ")]


def test_the_terms_of_the_glossary_are_english_terms():
    assert len(terms(GLOSSARY)) > 30
    assert {*terms(GLOSSARY)} - {*terms(ENGLISH[GLOSSARY])} == set()


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.stem)
def test_chinese_is_set_as_chinese(page):
    """A space between Chinese and Latin, full-width punctuation, a paragraph on one line."""
    for part in parts(page.read_text("utf-8")):
        text = "" if part.kind.startswith("```") else LINK.sub("]", part.text)
        text = CODE.sub("`x`", text)
        for wrong in (
            r"[\u4e00-\u9fff][A-Za-z0-9`]",
            r"[A-Za-z0-9`][\u4e00-\u9fff]",
            r"[\u4e00-\u9fff] +[\u4e00-\u9fff]",
            r"[\u4e00-\u9fff][,.:;!?()]|！",
        ):
            assert not re.findall(f".{{,9}}(?:{wrong}).{{,9}}", text), f"{page}:{part.line}"
