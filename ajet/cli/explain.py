"""Implements `ajet explain`: what the code at the end of an error means, and what to do."""

from typing import Annotated

import typer


def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A code, such as AJ-CFG-004. Without it, all of them."),
    ] = None,
) -> None:
    """Say what the code at the end of an error means, what its usual causes are, and what to do.

    Needs no network; docs/errors.md has the same text. Warnings of a run are in docs/warnings.md.
    """
    typer.echo(_all_codes() if code is None else _explanation(code))


def _all_codes() -> str:
    from ajet.core.error_codes import codes_by_area

    areas = codes_by_area().items()
    return "\n\n".join(
        "\n".join([area, *(f"  {code}  {code.title}" for code in codes)]) for area, codes in areas
    )


def _explanation(text: str) -> str:
    from difflib import get_close_matches

    from ajet.core.error_codes import Code
    from ajet.core.errors import ConfigError

    name = text.strip("[]").upper()
    name = name if name.startswith("AJ-") else f"AJ-{name}"
    known = {code.value: code for code in Code}
    if name not in known:
        close = get_close_matches(name, known, 3, 0.7)
        hint = f"did you mean {' or '.join(close)}?" if close else "`ajet explain` lists all"
        raise ConfigError(f"{text}: no error has this code; {hint}", code=Code.UNKNOWN_NAME)
    code = known[name]
    causes = "\n".join(f"- {cause}" for cause in code.causes)
    return (
        f"{code}: {code.title}\n\n{code.meaning}\n\nUsual causes:\n{causes}\n\n"
        f"What to do: {code.remedy}"
    )
