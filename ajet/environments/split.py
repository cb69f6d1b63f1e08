"""Decides by a hash of its content which split a generated instance belongs to.

So training never sees an instance of validation, for any seeds and any length of the run.
"""

from ajet.core.seeding import derive

VALIDATION_ONE_IN = 5


def belongs_to(split: str | None, *instance: int | str, of: str = "split") -> bool:
    """Returns whether an instance may be drawn for the split; None takes any. `of` is the first
    part of the hashed path."""
    is_validation = derive(of, *instance) % VALIDATION_ONE_IN == 0
    return split is None or is_validation == (split == "validation")
