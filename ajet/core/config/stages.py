"""Makes the values of one stage from those of a config with `ajet.stages`.

    ajet:                                        values of stage `learn`
      trainer_common: {optim: {lr: 1e-5}}          ajet.trainer_common.optim.lr: 1e-6
      stages:                                      ajet.trainer_common.total_training_steps: 60
        imitate: {kind: supervised}
        learn: {trainer_common: {optim: {lr: 1e-6}, total_training_steps: 60}}

A mapping is merged key by key, anything else replaces what is above the stages. Not covered: where
a stage's run is, and the model that it begins from (backbones/stages.py).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ajet.core.config.nested import merge
from ajet.core.config.renames import apply_renames
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import AjetError


def values_of_stage(values: Mapping[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """Returns the values with those of the stage laid over them, without the stages, and notices of
    keys that were taken out."""
    ajet = {key: value for key, value in values["ajet"].items() if key != "stages"}
    overrides = values["ajet"]["stages"][name] or {}
    renamed, notices = apply_renames({"ajet": overrides}, AjetConfig().to_dict())
    merged = dict(values) | {"ajet": ajet}
    return merge(merged, renamed), notices


@contextmanager
def errors_of_stage(name: str | None) -> Iterator[None]:
    """Puts the stage's name before the message of an error, which stays of its class and kind. A
    run without stages has no name to put there."""
    try:
        yield
    except AjetError as error:
        if name is None:
            raise
        raise type(error)(f"stage {name}: {error}", code=error.code) from error
