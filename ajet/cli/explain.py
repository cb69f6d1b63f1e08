"""Implements `ajet explain`: what the code at the end of an error, or the name of a run's warning,
means, and what to do."""

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

    Its usual causes follow, and what to do. The names of a run's warnings are explained too. Needs
    no network; docs/errors.md has the same text, and docs/warnings.md has the reasons for the
    warnings' bounds.
    """
    typer.echo(_all_names() if code is None else _explanation(code))


def _all_names() -> str:
    from ajet.core.error_codes import codes_by_area
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

    from ajet.core.error_codes import Code
    from ajet.core.errors import ConfigError
    from ajet.core.record.warning_names import WARNINGS

    if (kind := WARNINGS.get(warning := text.strip().lower())) is not None:
        return f"{warning}\n\n{kind.when}\n\nWhat to do: {kind.look}"
    name = text.strip("[]").upper()
    name = name if name.startswith("AJ-") else f"AJ-{name}"
    known = {code.value: code for code in Code}
    if name not in known:
        close = get_close_matches(name, known, 3, 0.7)
        close += get_close_matches(text.lower(), WARNINGS, 3, 0.7)
        hint = f"did you mean {' or '.join(close)}?" if close else "`ajet explain` lists all"
        raise ConfigError(
            f"{text}: no error has this code and no warning this name; {hint}",
            code=Code.UNKNOWN_NAME,
        )
    code = known[name]
    return (
        f"{code}: {code.title}\n\n{code.meaning}\n\nUsual causes: {code.causes}\n\n"
        f"What to do: {code.remedy}"
    )
