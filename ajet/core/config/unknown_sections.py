"""Finds top-level keys that are surely a mistake, and not a section of the user's own.

ajt.seed=1 -> did you mean 'ajet'?        seed: 1 -> write it under 'ajet:' as ajet.seed
"""

from difflib import get_close_matches

from ajet.core.config.tree import AjetConfig, AjetSection

RESERVED = {name for name in dir(AjetConfig) if not name.startswith("__")} - {
    *AjetConfig.model_fields
}


def unknown_section_problem(name: str) -> str | None:
    """Says what is wrong with this name for a section; None where nothing is."""
    typed = list(AjetConfig.model_fields)
    if name in typed:
        return None
    if close := get_close_matches(name, typed, 1, cutoff=0.8):
        return f"no such section; did you mean {close[0]!r}?"
    if name in AjetSection.model_fields:
        return f"stands at the top level; write it under 'ajet:' as ajet.{name}"
    if name == "actor_rollout_ref":
        return "is verl's own key; set ajet.rollout, ajet.trainer_common or verl instead"
    return "is a reserved name; rename this section of yours" if name in RESERVED else None
