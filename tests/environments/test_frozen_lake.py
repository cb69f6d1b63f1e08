"""Our FrozenLake is Gymnasium's, told in words: the same steps, maps that can be crossed."""

import random

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from ajet.core.errors import ConfigError
from ajet.environments.frozen_lake import ACTIONS, FrozenLake

SMALL = ["SFF", "FHF", "FFG"]


def started(seed=0, split=None, **config):
    lake = FrozenLake(**config)
    text, info = lake.reset(seed=seed, options={"split": split} if split else None)
    return lake, text, info


def player_in(text):
    """The player's number as it is seen in the grid."""
    return next(i for i, symbol in enumerate(text.replace("\n", "")) if symbol in "PX√")


def way_length(rows):
    """Steps from S to G, breadth first; None without a way."""
    frontier, seen, steps = {(0, 0)}, {(0, 0)}, 0
    while frontier:
        if any(rows[y][x] == "G" for y, x in frontier):
            return steps
        beside = {
            (y + d, x + r) for y, x in frontier for d, r in ((0, 1), (1, 0), (0, -1), (-1, 0))
        }
        frontier = {(y, x) for y, x in beside if 0 <= y < len(rows) and 0 <= x < len(rows[0])}
        frontier = {(y, x) for y, x in frontier if rows[y][x] != "H"} - seen
        seen, steps = seen | frontier, steps + 1
    return None


@pytest.mark.parametrize("is_slippery", [False, True])
def test_a_thousand_seeds_go_step_for_step_as_gymnasium(is_slippery):
    ours = FrozenLake(is_slippery=is_slippery, show_neighbours=False)
    for seed in range(1000):
        rng = random.Random(seed)
        text, _ = ours.reset(seed=seed)
        theirs = FrozenLakeEnv(desc=list(ours.map), is_slippery=is_slippery)
        state, _ = theirs.reset(seed=seed)
        assert player_in(text) == state
        for _ in range(15):
            action = rng.randrange(4)
            text, reward, terminated, truncated, info = ours.step(ACTIONS[action])
            state, their_reward, their_end, _, _ = theirs.step(action)
            assert (player_in(text), reward, terminated) == (state, their_reward, their_end)
            assert not truncated and info["metrics"]["success"] == (their_reward == 1)
            if terminated:
                break


@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_generated_map_can_be_crossed_and_depends_on_its_seed_alone(size):
    lake, again = FrozenLake(size=size), FrozenLake(size=size)
    maps = []
    for seed in range(100):
        lake.reset(seed=seed)
        again.reset(seed=seed + 1)
        again.reset(seed=seed)
        assert lake.map == again.map
        assert way_length(lake.map) is not None
        maps.append(lake.map)
    assert len(set(maps)) > 1


def test_training_and_validation_share_no_map():
    lake, seen = FrozenLake(), {}
    for split in ("train", "validation"):
        seen[split] = set()
        for seed in range(400):
            lake.reset(seed=seed, options={"split": split})
            seen[split].add(lake.map)
    assert not seen["train"] & seen["validation"]
    assert min(map(len, seen.values())) > 100


def test_the_observation_shows_the_map_and_the_next_cells():
    lake, text, _ = started(map=SMALL, show_position=True)
    assert text == "P__\n_O_\n__G\nYou 0 0 Goal 2 2\nLeft wall Down ice Right ice Up wall"
    assert lake.step("Right")[0].splitlines()[-1] == "Left ice Down hole Right ice Up wall"
    assert lake.step("Down")[0].startswith("___\n_X_\n__G\n")


def test_the_view_may_be_gymnasiums_letters_or_nothing():
    assert started(map=SMALL, view="letters", show_neighbours=False)[1] == "PFF\nFHF\nFFG"
    assert started(map=SMALL, view="none")[1] == "Left wall Down ice Right ice Up wall"


def test_rewards_of_the_goal_a_hole_and_ice():
    lake, _, _ = started(map=SMALL, hole_reward=-1, step_reward=-0.1)
    rewards = [lake.step(action)[1] for action in ("Right", "Right", "Down", "Down")]
    assert rewards == [-0.1, -0.1, -0.1, 1.0]
    lake, _, _ = started(map=SMALL, hole_reward=-1)
    lake.step("Right")
    assert lake.step("Down")[1:4] == (-1.0, True, False)


@pytest.mark.parametrize(
    "action", ["", "  ", "Leftt", "2", "left right", "左", "\x00", "Left." * 999]
)
def test_text_that_is_no_action_leaves_the_state(action):
    lake, text, info = started(is_slippery=True)
    told, reward, terminated, truncated, after = lake.step(action)
    assert told.endswith(text) and "Left, Down, Right, Up" in told
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert after["state_key"] == info["state_key"]
    assert after["metrics"] == {
        "success": False,
        "action_is_valid": False,
        "action_is_effective": False,
    }
    lake.step("Right")
    fresh, _, _ = started(is_slippery=True)
    fresh.step("Right")
    assert lake.position == fresh.position, "a word that is no action draws nothing"


def test_actions_are_words_in_any_case():
    lake, _, _ = started(map=SMALL)
    assert lake.step(" rIGHT\n")[4]["metrics"]["action_is_effective"]


def test_a_step_against_the_wall_is_valid_without_effect():
    metrics = started(map=SMALL)[0].step("Up")[4]["metrics"]
    assert metrics["action_is_valid"] and not metrics["action_is_effective"]


def test_a_step_after_the_end_changes_nothing():
    lake, _, _ = started(map=["SG"])
    ended = lake.step("Right")
    assert ended[1:4] == (1.0, True, False)
    assert lake.step("Left")[:4] == (ended[0], 0.0, True, False)


def test_equal_states_have_equal_keys_and_only_they():
    lake, _, first = started(map=SMALL)
    keys = [lake.step(action)[4]["state_key"] for action in ("Right", "Left", "Down", "Up")]
    assert keys[1] == keys[3] == first["state_key"]
    assert len({first["state_key"], *keys}) == 3
    assert started(map=["SFF", "FFF", "FFG"])[2]["state_key"] != first["state_key"]


def test_the_oracle_goes_a_shortest_way():
    lake = FrozenLake(size=5)
    for seed in range(50):
        lake.reset(seed=seed)
        steps, reward = 0, 0.0
        while not reward:
            _, reward, terminated, _, _ = lake.step(lake.oracle_action())
            steps += 1
            assert not terminated or reward
        assert steps == way_length(lake.map)


def test_the_oracle_on_slippery_ice_arrives_as_often_as_anybody_can():
    lake, _, _ = started(map="4x4", is_slippery=True)
    table = FrozenLakeEnv(map_name="4x4", is_slippery=True).P
    chances = np.zeros((16, 16))
    goal = np.zeros(16)
    for state in range(16):
        lake.position = state
        for chance, following, reward, ended in table[state][ACTIONS.index(lake.oracle_action())]:
            goal[state] += chance * reward
            chances[state, following] += chance * (not ended)
    arrives = np.linalg.solve(np.eye(16) - chances, goal)
    assert arrives[0] == pytest.approx(14 / 17)


def test_random_actions_are_valid():
    lake, rng = FrozenLake(), random.Random(0)
    lake.reset(seed=0)
    assert {lake.sample_action(rng) for _ in range(50)} == set(ACTIONS)


def test_a_frame_is_a_picture_of_the_grid():
    lake, _, _ = started(map=["SFF", "FHG"])
    before = lake.render()
    assert before.shape == (48, 72, 3) and before.dtype == np.uint8
    lake.step("Right")
    changed = (lake.render() != before).any(axis=2)
    assert changed[:24, :24].any() and changed[:24, 24:48].any()
    assert not changed[24:].any() and not changed[:, 48:].any()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"size": 1}, "size 1"),
        ({"p": 0}, "p 0"),
        ({"view": "map"}, "view 'map'"),
        ({"view": "none", "show_neighbours": False}, "shows nothing"),
        ({"map": "9x9"}, "write 4x4, 8x8 or a list of rows"),
        ({"map": []}, "the rows differ in length"),
        ({"map": ["SF", "G"]}, "the rows differ in length"),
        ({"map": ["SX", "FG"]}, "'X'"),
        ({"map": ["SH", "HG"]}, "no way"),
        ({"map": ["FF", "FG"]}, "no way"),
    ],
)
def test_a_config_without_sense_is_one_line(config, told):
    with pytest.raises(ConfigError, match=told) as caught:
        FrozenLake(**config)
    assert "\n" not in str(caught.value)


def test_a_split_without_maps_is_an_error_and_no_endless_draw():
    with pytest.raises(ConfigError, match="split validation"):
        started(size=2, p=1.0, split="validation")
    with pytest.raises(ConfigError, match="can be crossed and"):
        started(size=8, p=0.01)
