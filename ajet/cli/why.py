"""Implements `ajet why`: what holds back a run's reward, or what the code of an error means."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.notices import show_report
from ajet.cli.options import Overwrite, output_file


def why(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|CODE",
            help="A run folder; or a code, such as AJ-CFG-004, or the name of a warning, such as "
            "no_signal. Without it, all codes and warnings.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a run's causes as JSON here; - prints them alone.", callback=output_file
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Say why a run's reward does not move, or what an error means.

    Of a run, prints the likely cause first: its numbers, an episode to look at and the change to
    make. Reads only the run's folder; the run may have ended, failed, or still be running. Of the
    code at the end of an error line, or a warning, prints usual causes and what to do; needs no
    network (docs/errors.md has the same text, docs/warnings.md the reasons for the bounds).
    """
    if subject is None:
        typer.echo(_all_names())
    elif Path(subject).is_dir() or "/" in subject:
        from ajet.read.recorded_run import RecordedRun
        from ajet.read.why.report import WhyReport

        show_report(WhyReport.of(RecordedRun(Path(subject))), out)
    else:
        typer.echo(_explanation(subject))


def _all_names() -> str:
    from ajet.core.errors.codes import codes_by_area
    from ajet.core.record.warning_names import WARNINGS

    sections = {
        area: [f"{code}  {code.title}" for code in codes] for area, codes in codes_by_area().items()
    }
    sections["What a run warns of"] = list(WARNINGS)
    codes = [code for codes in codes_by_area().values() for code in codes]
    answer(codes={str(code): code.title for code in codes}, warnings=list(WARNINGS))
    return "\n\n".join(
        "\n".join([title, *(f"  {name}" for name in names)]) for title, names in sections.items()
    )


def _explanation(text: str) -> str:
    from difflib import get_close_matches

    from ajet.core.errors import UnknownName
    from ajet.core.errors.codes import Code
    from ajet.core.record.warning_names import WARNINGS

    if (warning_info := WARNINGS.get(warning := text.strip().lower())) is not None:
        answer(warning=warning, meaning=warning_info.when, remedy=warning_info.look)
        return f"{warning}\n\n{warning_info.when}\n\nWhat to do: {warning_info.look}"
    name = text.strip("[]").upper()
    name = name if name.startswith("AJ-") else f"AJ-{name}"
    codes = {code.value: code for code in Code}
    if name not in codes:
        close = get_close_matches(name, codes, 3, 0.7)
        close += get_close_matches(text.lower(), WARNINGS, 3, 0.7)
        hint = f"did you mean {' or '.join(close)}?" if close else "`ajet why` lists all"
        hint += "; docs/glossary.md explains terms"
        raise UnknownName(
            f"{text}: neither a folder nor the code of an error nor the name of a warning; {hint}"
        )
    code = codes[name]
    answer(
        code=code,
        title=code.title,
        meaning=code.meaning,
        causes=code.causes,
        remedy=code.remedy,
    )
    return (
        f"{code}: {code.title}\n\n{code.meaning}\n\nUsual causes: {code.causes}\n\n"
        f"What to do: {code.remedy}"
    )
