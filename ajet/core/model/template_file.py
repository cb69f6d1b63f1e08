"""Finds the file that `ajet.model.chat_template` names; imports nothing heavy, for `ajet check`."""

from pathlib import Path

EMBEDDED = "embedded:"
EMBEDDED_DIR = Path(__file__).parents[2] / "embedded"


def template_file(name: str) -> Path:
    """Returns the path of a Jinja file, or of one in this package: ``embedded:qwen2_5``."""
    if name.startswith(EMBEDDED):
        return EMBEDDED_DIR / f"{name.removeprefix(EMBEDDED)}.jinja"
    return Path(name).expanduser()
