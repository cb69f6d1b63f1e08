"""What `ajet export` needs to know of a checkpoint that a client of the server saved."""

from __future__ import annotations

import json
from pathlib import Path

from ajet.core.checkpoint.checkpoint import read_state
from ajet.core.config import AjetConfig, load_config
from ajet.core.update.settings import LoraSettings
from ajet.serve.tinker.models import saved_lora
from ajet.serve.tinker.server import CONFIG


def saved_by_client(checkpoint: Path) -> tuple[AjetConfig, LoraSettings | None] | None:
    """Returns a config with the checkpoint's base model, and its adapter's settings; None if no
    client of Tinker's API saved it. The base's path may be relative to the current folder."""
    state = read_state(checkpoint)
    if "base_model" not in state:
        return None
    path = f"ajet.model.path={json.dumps(state['base_model'])}"
    return load_config(CONFIG, [path], backbone="debug"), saved_lora(state)
