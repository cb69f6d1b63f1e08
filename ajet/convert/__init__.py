"""Converts another system's config to an ajet config, and accounts for each of its keys.

source.py                    the file and its overrides, interpolations resolved
script_runs.py               a script, run by bash in the sandbox (sandboxed.py, stand_ins.bash)
command_line.py              what its runs have in common: the arguments, and unknown values
draft.py                     each key in turn: taken, left out with a reason, or unknown
roll.py, verl.py, …          each system: tables of keys, conversion of values
refusals.py, writing.py      values that our config refuses are left out too; the text
"""

from ajet.convert.conversion import convert
from ajet.convert.draft import Conversion
from ajet.convert.writing import yaml_text

__all__ = ["Conversion", "convert", "yaml_text"]
