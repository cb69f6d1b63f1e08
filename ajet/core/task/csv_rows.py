"""Reads the rows of a CSV file: UTF-8, commas, quotes as spreadsheets write them, and a header.

    ticket,team
    "Charged twice, help",billing   ->   {"ticket": "Charged twice, help", "team": "billing"}

Every value is text, since a CSV has no types. An empty cell is None, so that a row without an
answer is a mistake that shows. Not covered: other separators, compressed files.
"""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

from ajet.core.error_codes import Code
from ajet.core.errors import DataError


def rows_of_csv(text: str, path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file's text, named by its header; empty lines are skipped."""
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[dict[str, Any]] = []
    try:
        header = [name.strip() for name in next(lines, [])]
        _check_header(header, path)
        for cells in lines:
            if len(cells) == len(header):
                rows.append(dict(zip(header, (cell or None for cell in cells), strict=True)))
            elif cells:
                raise DataError(
                    f"{path}:{lines.line_num}: {len(cells)} cells, and the header has "
                    f"{len(header)}; put text that has a comma into double quotes",
                    code=Code.ROW_FORM,
                )
    except csv.Error as error:
        raise DataError(
            f"{path}:{lines.line_num}: not valid CSV: {error}", code=Code.ROW_FORM
        ) from error
    return rows


def _check_header(header: list[str], path: Path) -> None:
    twice = next((name for name, number in Counter(header).items() if number > 1), None)
    if twice is not None:
        raise DataError(
            f"{path}:1: the header has {twice!r} twice; give each column a name of its own",
            code=Code.ROW_FORM,
        )
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise DataError(
            f"{path}:1: the header {header[0]!r} has no comma; save the file with commas between "
            "its columns",
            code=Code.ROW_FORM,
        )
