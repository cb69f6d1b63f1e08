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
    """Say what the code at the end of an error means.

    Its usual causes follow, and what to do. The names of a run's warnings are explained too. Needs
    no network; docs/errors.md has the same text, and docs/warnings.md has the reasons for the
    warnings' bounds.
    """
    if code is None:
        typer.echo(f"{_all_codes()}\n\n{_all_warnings()}")
    else:
        typer.echo(_warning(code) or _explanation(code))


def _all_warnings() -> str:
    from ajet.core.record.warning_names import WARNINGS

    return "\n".join(["What a run warns of", *(f"  {name}" for name in WARNINGS)])


def _warning(name: str) -> str | None:
    """Returns the explanation of a warning, or None where none has this name."""
    from ajet.core.record.warning_names import WARNINGS

    name = name.strip().lower()
    kind = WARNINGS.get(name)
    return None if kind is None else f"{name}\n\n{kind.when}\n\nWhat to do: {kind.look}"


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
    from ajet.core.record.warning_names import WARNINGS

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
    causes = "\n".join(f"- {cause}" for cause in code.causes)
    return (
        f"{code}: {code.title}\n\n{code.meaning}\n\nUsual causes:\n{causes}\n\n"
        f"What to do: {code.remedy}"
    )
