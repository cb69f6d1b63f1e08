"""What a harness is told, and what it answers: how its program is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setting:
    """Holds one episode as the program will see it: the model's address and key, the task's
    prompt, and its folders by the paths that it knows them by. `shown` is the first folder that
    the config shows, else empty."""

    base_url: str
    anthropic_url: str
    api_key: str
    model: str
    prompt: str
    folder: str
    home: str
    shown: str = ""


@dataclass(frozen=True)
class Launch:
    """Says how the program is started: arguments, variables, and files by their paths in its
    home."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    home_files: Mapping[str, str] = field(default_factory=dict)
