"""The Sokoban tutorial's rooms can be won within the steps that its agent has."""

import pytest

from ajet.core.config import load_config
from ajet.core.environment.registry import environment_maker

CUSTOM_ENVS = {
    tag: custom
    for name in ("demo", "pixels")
    for tag, custom in load_config(
        f"tutorial/example_sokoban/{name}.yaml"
    ).ajet.environment.custom_envs.items()
}


@pytest.mark.parametrize("tag", CUSTOM_ENVS)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_oracle_wins_every_room(tag, split):
    custom = CUSTOM_ENVS[tag]
    game = environment_maker(custom.env_type, custom.env_config, [], tag)()
    assert custom.env_config["max_steps"] == custom.max_steps, "or a room may take too long"
    for seed in range(20):
        game.reset(seed=seed, options={"split": split})
        steps = [game.step(game.oracle_action() or "") for _ in range(custom.max_steps)]
        assert steps[-1][4]["metrics"]["success"]
