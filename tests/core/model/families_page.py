"""Writes the table of docs/models.md: `python -m tests.core.model.families_page`."""

import math
import re
from pathlib import Path

from ajet.core.model.flat_decoder import flat_decoder, has_flat_decoder
from ajet.core.update.layouts import make_layout
from tests.core.model.families import ALL, FIRST, family_model

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
FLOAT32_INSIDE = {
    "cohere",
    "cohere2",
    "deepseek_v3",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma4_text",
    "helium",
    "mamba2",
    "olmo_hybrid",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
}
"""Families that compute norms or states in float32 at any precision."""


def table():
    """One row for each family: which path its engine and its update take, as the code answers."""
    lines = ["| `model_type` | engine | update | float64 |", "|---|---|---|---|"]
    for name in sorted(FIRST | ALL):
        model = family_model(name)
        longest = flat_decoder(model).longest_plain if has_flat_decoder(model) else 0
        engine = {0: "transformers'", math.inf: "shared"}.get(longest, "shared within the window")
        update = make_layout(model, "auto").name
        wide = "float32 inside" if name in FLOAT32_INSIDE else "whole"
        lines.append(f"| {name} | {engine} | {update} | {wide} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"\| `model_type` .*?\n(?=\n|\Z)", lambda _: table(), text, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")
