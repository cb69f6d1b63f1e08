"""Checks names and prose: bounds for words that engineers of this field do not use.

    python scripts/plain_english.py        # prints the counts; exit code 1 if one exceeds its bound
    python scripts/plain_english.py beside # prints where a name or phrase stands

The bounds follow from the same counts over other code bases of the field, where such names are 0 to
0.5 % and most phrases occur less than once in 100,000 words.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = set(
    re.findall(
        r"\w+",
        "each own found given made said named one other others kind known parts shown meant asked "
        "taken wanted left room where what why began",
    )
)
PHRASES = {
    "of its own": r"\bof (?:its|their|one's|his|her) own\b",
    "beside": r"\bbeside\b",
    "goes on": r"\b(?:goes|go|going|gone|went) on\b",
    "is no X": r"\bis no [a-z]+\b",
    "as it is": r"\bas (?:it is|they are)\b",
    "is said": r"\b(?:is|are) said\b",
    "be had": r"\b(?:be|is|are) had\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "becomes of": r"\bbecomes? of\b",
    "Not covered": r"\bNot covered\b",
}
MAX_NAMES = 0.7
"""Bound names from the list, in per cent."""
MAX_PHRASE = 5.0
"""Occurrences of a phrase in 100,000 words."""
MIN_COMMENTS = 25.0
"""Comment lines in 1,000 lines of ajet/core."""


def code_files() -> list[Path]:
    return sorted(ROOT.glob("ajet/**/*.py"))


def prose_files() -> list[Path]:
    pages = {*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")} - {*ROOT.glob("docs/zh/**/*.md")}
    return [*code_files(), *sorted(page for page in pages if page.name != "CHANGELOG.md")]


def bound_names(file: Path) -> Iterator[tuple[str, int]]:
    """Yields each name that the file binds (variables, parameters, fields) with its line."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def places(word: str) -> Iterator[str]:
    """Yields the lines of a name of the list, or of a phrase, as path:line: text."""
    for file in prose_files():
        text = file.read_text("utf-8")
        numbers = set()
        if word in PHRASES:
            numbers = {text.count("\n", 0, m.start()) + 1 for m in re.finditer(PHRASES[word], text)}
        if word in NAMES and file.suffix == ".py":
            numbers |= {line for name, line in bound_names(file) if name == word}
        for number in sorted(numbers):
            yield f"{file.relative_to(ROOT)}:{number}: {text.splitlines()[number - 1].strip()}"


def is_comment(line: str) -> bool:
    return re.search(r"(?:^|\s)#\s", line) is not None


def main() -> int:
    if len(sys.argv) > 1:
        print("\n".join(places(sys.argv[1])))
        return 0
    names = Counter(name for file in code_files() for name, _ in bound_names(file))
    prose = [file.read_text("utf-8") for file in prose_files()]
    num_words = sum(len(re.findall(r"\w+", text)) for text in prose)
    core = [line for file in ROOT.glob("ajet/core/**/*.py") for line in file.open(encoding="utf-8")]
    share = 100 * sum(names[name] for name in NAMES) / names.total()
    comments = 1000 * sum(map(is_comment, core)) / len(core)
    too_many = [f"names of the list: {share:.2f} % > {MAX_NAMES} %"] if share > MAX_NAMES else []
    if comments < MIN_COMMENTS:
        too_many.append(f"comment lines in core: {comments:.1f} < {MIN_COMMENTS} in 1,000")
    print(f"names of the list: {share:.2f} %; comment lines in core: {comments:.1f} in 1,000")
    for phrase, pattern in PHRASES.items():
        rate = 1e5 * sum(len(re.findall(pattern, text)) for text in prose) / num_words
        print(f"{phrase}: {rate:.1f} in 100,000 words")
        if rate > MAX_PHRASE:
            too_many.append(f"{phrase!r}: {rate:.1f} > {MAX_PHRASE} in 100,000 words")
    for line in too_many:
        print(f"error: {line}: see `python scripts/plain_english.py WORD`", file=sys.stderr)
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main())
