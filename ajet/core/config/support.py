"""What the chosen backbone makes of each key: refuses it, has no use for it, or honours it."""

from ajet.core.config.section import Leaf, NoEffect, NotBuilt, leaves
from ajet.core.config.tree import AjetConfig


def refusals_and_notices(config: AjetConfig) -> tuple[list[tuple[str, str]], list[str]]:
    """Refused keys as (key, reason), and one notice for each key that has no effect."""
    backbone = config.ajet.backbone
    refused: list[tuple[str, str]] = []
    unused: list[str] = []
    for root in ("ajet", "verl", "trinity"):
        for leaf in leaves(getattr(config, root), root):
            if leaf.is_default:
                continue
            refused += [(leaf.path, text) for text in _reasons(leaf, NotBuilt, backbone)]
            unused += [
                f"ignored by backbone {backbone}: {leaf.path}={leaf.value} ({text})"
                for text in _reasons(leaf, NoEffect, backbone)
            ]
    return refused, unused


def _reasons(leaf: Leaf, kind: type[NotBuilt] | type[NoEffect], backbone: str) -> list[str]:
    marks = [mark for mark in leaf.field.metadata if isinstance(mark, kind)]
    return [m.reason for m in marks if backbone in m.on and leaf.value not in m.also_off]
