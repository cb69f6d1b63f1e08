"""Implements `ajet explain`: the meaning of an error's code or a run's warning, and what to do."""

from typing import Annotated

import typer


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            help="A code, such as AJ-CFG-004, or the name of a warning, such as no_signal. "
            "Without it, all of them.",
        ),
    ] = None,
) -> None:
    """Explain the code at the end of an error line.

    Prints usual causes and what to do. Explains the names of a run's warnings, too. Needs no
    network; docs/errors.md has the same text, and docs/warnings.md has the reasons for the
    warnings' bounds.
    """
    typer.echo(_all_names() if code is None else _explanation(code))


def _all_names() -> str:
    from ajet.core.errors.codes import codes_by_area
    from ajet.core.record.warning_names import WARNINGS

    sections = {
        area: [f"{code}  {code.title}" for code in codes] for area, codes in codes_by_area().items()
    }
    sections["What a run warns of"] = list(WARNINGS)
    return "\n\n".join(
        "\n".join([title, *(f"  {name}" for name in names)]) for title, names in sections.items()
    )


def _explanation(text: str) -> str:
    from difflib import get_close_matches

    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.core.record.warning_names import WARNINGS

    if (warning_info := WARNINGS.get(warning := text.strip().lower())) is not None:
        return f"{warning}\n\n{warning_info.when}\n\nWhat to do: {warning_info.look}"
    name = text.strip("[]").upper()
    name = name if name.startswith("AJ-") else f"AJ-{name}"
    codes = {code.value: code for code in Code}
    if name not in codes:
        close = get_close_matches(name, codes, 3, 0.7)
        close += get_close_matches(text.lower(), WARNINGS, 3, 0.7)
        hint = f"did you mean {' or '.join(close)}?" if close else "`ajet explain` lists all"
        raise ConfigError(
            f"{text}: no error has this code and no warning this name; {hint}",
            code=Code.UNKNOWN_NAME,
        )
    code = codes[name]
    return (
        f"{code}: {code.title}\n\n{code.meaning}\n\nUsual causes: {code.causes}\n\n"
        f"What to do: {code.remedy}"
    )
