"""The toy run of the folder that a test is in (fixture `toy`), trained in its own process."""

import io

from rich.console import Console

from ajet.backbones.debug.training import fit_debug
from ajet.core.config import load_config


def config(*overrides):
    return load_config("toy.yaml", overrides, backbone="debug")


def train(*overrides):
    return fit_debug(config(*overrides), Console(file=io.StringIO()))
