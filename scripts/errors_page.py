"""Writes docs/errors.md: each kind of error with its code, its causes and what to do.

    python scripts/errors_page.py            # writes the page
    python scripts/errors_page.py --check    # exits with 1 where it would change

The text is that of ajet/core/errors/codes.py. The heading of a kind is its code alone, so that the
link to it (errors.md#aj-cfg-004) stays when a title is improved.
"""

import argparse
import re
import sys
import textwrap
from pathlib import Path

from ajet.core.errors.codes import Code, codes_by_area

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
HEAD = """# Errors and their codes

An error of the command line is one line: what is wrong, where, and what to do. It ends with the
code of its kind:

```text
error: x.yaml:7: ajet.rollout.temprature: no such key; did you mean 'temperature'? [AJ-CFG-004]
```

`ajet why AJ-CFG-004` prints what is here, without a network; `ajet why` lists all codes. A
code keeps its meaning from version to version. With --json an error is JSON; that page has the
[exit codes](json.md#exit-codes) too. Warnings of a run have names instead of codes: see
[warnings](warnings.md).

This page is written by `scripts/errors_page.py` from `ajet/core/errors/codes.py`.
"""


def page() -> str:
    """Returns the text of the page."""
    areas = codes_by_area().items()
    return "\n".join(
        [HEAD, *(f"## {title}\n\n{''.join(map(_section, codes))}" for title, codes in areas)]
    )


def _section(code: Code) -> str:
    title = code.title[0].upper() + code.title[1:]
    paragraphs = (
        f"**{_escaped(title)}.** {_escaped(code.meaning)}",
        f"*Usual causes:* {_escaped(code.causes)}.",
        f"*What to do:* {_escaped(code.remedy)}",
    )
    return "\n\n".join([f"### {code}", *map(_wrapped, paragraphs)]) + "\n\n"


def _wrapped(paragraph: str) -> str:
    """Returns the paragraph in lines of at most 110 columns, code spans unbroken."""
    unbroken = re.sub(r"`[^`]*`", lambda span: span[0].replace(" ", "\0"), paragraph)
    return textwrap.fill(unbroken, 110, break_long_words=False, break_on_hyphens=False).replace(
        "\0", " "
    )


def _escaped(text: str) -> str:
    """Returns the text with what Markdown would take for emphasis or a tag, outside of code."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        for mark in ("*", "_", "<", ">"):
            parts[index] = parts[index].replace(mark, f"\\{mark}")
    return "`".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes docs/errors.md.")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    args = parser.parse_args()
    text = page().rstrip("\n") + "\n"
    if args.check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/errors.md is not what scripts/errors_page.py writes: run it")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
