"""Converts another system's config to an ajet config, and accounts for each of its keys."""

from ajet.convert.conversion import convert
from ajet.convert.draft import Conversion
from ajet.convert.writing import yaml_text

__all__ = ["Conversion", "convert", "yaml_text"]
