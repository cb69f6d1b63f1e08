"""Suggests the name that was probably meant, in the error of a name that there is not."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Returns ``did you mean 'seed'?``; where no name is close, `otherwise`, or all names."""
    existing = list(names)
    if close := get_close_matches(name, existing, 1):
        return f"did you mean {close[0]!r}?"
    return otherwise or f"there are {', '.join(existing) or 'none'}"
