"""Sokoban against a simulator and a solver of this file's own, which know nothing of its code."""

import random

import numpy as np
import pytest

from ajet.core.errors import ConfigError
from ajet.environments.sokoban import ACTIONS, Sokoban

ROOM = ["#####", "#P_O#", "#_X_#", "#___#", "#####"]
DELTAS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}


def places(text, symbols):
    rows = enumerate(text.split("\n"))
    return frozenset((y, x) for y, row in rows for x, each in enumerate(row) if each in symbols)


class Simulator:
    """The rules, straight from the book, on coordinates."""

    def __init__(self, text):
        (self.player,) = places(text, "PS")
        self.boxes = places(text, "X√")
        self.walls, self.targets = places(text, "#"), places(text, "O√S")
        self.text = text

    def after(self, player, boxes, action):
        down, right = DELTAS[action]
        ahead, beyond = ((player[0] + times * down, player[1] + times * right) for times in (1, 2))
        if ahead in self.walls or (ahead in boxes and (beyond in self.walls or beyond in boxes)):
            return player, boxes
        return ahead, (boxes - {ahead} | {beyond} if ahead in boxes else boxes)

    def step(self, action):
        """Reward and whether it is solved."""
        on = len(self.boxes & self.targets)
        self.player, self.boxes = self.after(self.player, self.boxes, action)
        solved = self.boxes == self.targets
        return -0.1 + len(self.boxes & self.targets) - on + 10 * solved, solved

    def shows(self, text):
        return (
            places(text, "PS") == {self.player}
            and places(text, "X√") == self.boxes
            and places(text, "O√S") == self.targets
            and places(text, "#") == self.walls
        )

    def solution_length(self):
        """Breadth first, one move after another; None where no moves solve it."""
        frontier, length = {(self.player, self.boxes)}, 0
        seen = set(frontier)
        while frontier:
            if any(boxes == self.targets for _, boxes in frontier):
                return length
            frontier = {self.after(*state, action) for state in frontier for action in DELTAS}
            frontier -= seen
            seen |= frontier
            length += 1
        return None


def started(seed=0, split=None, **config):
    game = Sokoban(**config)
    text, info = game.reset(seed=seed, options={"split": split} if split else None)
    return game, text, info


def played_by_oracle(game):
    """Number of moves and the sum of rewards."""
    moves, total = 0, 0.0
    while True:
        _, reward, terminated, truncated, _ = game.step(game.oracle_action())
        moves, total = moves + 1, total + reward
        assert not truncated
        if terminated:
            return moves, total


SIZES = [(600, (5, 5), 1), (300, (6, 6), 1), (100, (6, 5), 2)]
"""A thousand seeds in all."""


@pytest.mark.parametrize(("seeds", "dim_room", "num_boxes"), SIZES)
def test_a_thousand_seeds_go_step_for_step_as_the_simulator(seeds, dim_room, num_boxes):
    game = Sokoban(dim_room, num_boxes)
    for seed in range(seeds):
        rng = random.Random(seed)
        text, _ = game.reset(seed=seed)
        simulator = Simulator(text)
        for _ in range(20):
            action = rng.choice(ACTIONS)
            text, reward, terminated, truncated, info = game.step(action)
            told, solved = simulator.step(action)
            assert reward == pytest.approx(told) and simulator.shows(text)
            assert (terminated, truncated, info["metrics"]["success"]) == (solved, False, solved)
            if terminated:
                break


@pytest.mark.parametrize(("seeds", "dim_room", "num_boxes"), SIZES)
def test_a_thousand_rooms_are_solvable_and_the_oracle_is_as_short_as_can_be(
    seeds, dim_room, num_boxes
):
    game = Sokoban(dim_room, num_boxes, max_steps=50)
    for seed in range(seeds):
        text, _ = game.reset(seed=seed)
        assert not places(text, "√"), "no box begins on a target"
        assert len(places(text, "X")) == num_boxes
        assert (text.count("\n") + 1, text.index("\n")) == dim_room
        shortest = Simulator(text).solution_length()
        moves, total = played_by_oracle(game)
        assert shortest is not None and moves == shortest <= 50
        assert total == pytest.approx(10 + num_boxes - 0.1 * moves)


@pytest.mark.parametrize(
    ("dim_room", "num_boxes", "max_steps"), [((7, 7), 2, 40), ((8, 8), 3, 60), ((5, 9), 1, 6)]
)
def test_larger_rooms_are_solved_within_their_steps(dim_room, num_boxes, max_steps):
    game = Sokoban(dim_room, num_boxes, max_steps)
    for seed in range(12):
        game.reset(seed=seed)
        assert played_by_oracle(game)[0] <= max_steps


def test_a_room_depends_on_its_seed_alone():
    game, again = Sokoban(), Sokoban()
    texts = []
    for seed in range(60):
        texts.append(game.reset(seed=seed)[0])
        again.reset(seed=seed + 1)
        again.step("Up")
        assert again.reset(seed=seed)[0] == texts[-1]
    assert len(set(texts)) > 50


def test_training_and_validation_share_no_walls_and_targets():
    game, seen = Sokoban((5, 5)), {}
    for split in ("train", "validation"):
        seen[split] = set()
        for seed in range(300):
            text, _ = game.reset(seed=seed, options={"split": split})
            seen[split].add((places(text, "#"), places(text, "OS√")))
    assert not seen["train"] & seen["validation"]
    assert min(map(len, seen.values())) > 20


def test_rewards_worked_out_by_hand():
    game, _, _ = started(room=["######", "#PXO_#", "######"])
    assert game.step("Left")[1] == pytest.approx(-0.1)
    text, reward, terminated, _, info = game.step("Right")
    assert text == "######\n#_P√_#\n######" and terminated
    assert reward == pytest.approx(10.9)
    assert info["metrics"] == {
        "success": True,
        "action_is_valid": True,
        "action_is_effective": True,
        "boxes_on_target": 1,
    }


def test_a_box_pushed_off_its_target_takes_its_reward_back():
    game, _, _ = started(room=["#######", "#P√_XO#", "#######"])
    text, reward, terminated, _, info = game.step("Right")
    assert text == "#######\n#_SXXO#\n#######"
    assert reward == pytest.approx(-1.1) and not terminated
    assert info["metrics"]["boxes_on_target"] == 0
    assert not game.step("Right")[4]["metrics"]["action_is_effective"], "two boxes are too heavy"


@pytest.mark.parametrize("action", ["", " ", "Upp", "1", "up down", "上", "\x00", "Up." * 999])
def test_text_that_is_no_action_leaves_the_state(action):
    game, text, info = started(max_steps=10)
    for _ in range(20):
        told, reward, terminated, truncated, after = game.step(action)
        assert told.endswith(text) and "Up, Down, Left, Right" in told
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert after["state_key"] == info["state_key"]
        assert not after["metrics"]["action_is_valid"]
        assert not after["metrics"]["action_is_effective"]


def test_actions_are_words_in_any_case():
    game, _, _ = started(room=ROOM)
    assert game.step(" dOWN\n")[4]["metrics"]["action_is_effective"]


def test_the_last_step_truncates_and_nothing_moves_afterwards():
    game, _, _ = started(room=ROOM, max_steps=2)
    assert game.step("Down")[2:4] == (False, False)
    ended = game.step("Up")
    assert ended[2:4] == (False, True)
    assert game.step("Down")[:4] == (ended[0], 0.0, False, True)


def test_a_step_after_the_solution_changes_nothing():
    game, _, _ = started(room=["#####", "#PXO#", "#####"])
    ended = game.step("Right")
    assert game.step("Left")[:4] == (ended[0], 0.0, True, False)


def test_equal_states_have_equal_keys_and_only_they():
    game, _, first = started(room=ROOM)
    keys = [game.step(action)[4]["state_key"] for action in ("Down", "Up", "Right", "Left")]
    assert keys[1] == keys[3] == first["state_key"]
    assert len({first["state_key"], *keys}) == 3


def test_the_oracle_finds_its_way_from_wherever_the_player_went():
    game, _, _ = started(room=ROOM)
    game.oracle_action()
    for action in ("Right", "Left", "Down", "Down"):
        game.step(action)
    assert played_by_oracle(game)[0] == 5  # Up, Right, then Down, Right, Up from below


def test_the_oracle_knows_a_dead_end():
    game, _, _ = started(room=["#####", "#_O_#", "#PX_#", "#___#", "#####"])
    game.step("Right")
    assert game.oracle_action() is None


def test_random_actions_are_valid():
    game, rng = Sokoban(), random.Random(0)
    assert {game.sample_action(rng) for _ in range(50)} == set(ACTIONS)


def test_a_frame_is_a_picture_of_the_room():
    game, _, _ = started(room=ROOM)
    before = game.render()
    assert before.shape == (120, 120, 3) and before.dtype == np.uint8
    game.step("Down")
    changed = (game.render() != before).any(axis=2)
    assert changed[24:48, 24:48].any() and changed[48:72, 24:48].any()
    assert not changed[:, 48:].any() and not changed[72:].any()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"dim_room": [6]}, "height and width"),
        ({"dim_room": [2, 6]}, "at least 3"),
        ({"num_boxes": 0}, "at least 1"),
        ({"max_steps": 0}, "at least 1"),
        ({"room": ["#P.#"]}, "'.' is none of"),
        ({"room": ["#PXO#", "#"]}, "not of one length"),
        ({"room": ["#PXO#", "#P__#"]}, "one player"),
        ({"room": ["#PX_#", "#_OO#"]}, "as many boxes"),
        ({"room": ["#P√_#", "#___#"]}, "a box off its target"),
    ],
)
def test_a_config_without_sense_is_one_line(config, told):
    with pytest.raises(ConfigError, match=told) as caught:
        Sokoban(**config)
    assert "\n" not in str(caught.value)


def test_a_room_too_small_is_told_and_not_drawn_for_ever():
    with pytest.raises(ConfigError, match=r"no room with dim_room \[4, 4\], num_boxes 3"):
        started(dim_room=(4, 4), num_boxes=3)


def test_a_room_of_your_own_may_lack_its_outer_wall():
    game, _, _ = started(room=["PXO", "___"])
    for action, at in [("Up", 0), ("Left", 0), ("Down", 4), ("Down", 4), ("Left", 4)]:
        assert game.step(action)[0].index("P") == at


LOOKUP = {0: "W", 1: ".", 2: "G", 3: "C", 4: "B", 5: "A", 6: "@"}  # ROLL's other vocabulary
VOCAB = {"W": "wall", ".": "empty", "G": "target", "C": "box on target", "B": "box"}


def test_a_room_is_drawn_and_explained_in_the_symbols_of_a_vocabulary():
    game = Sokoban(room=ROOM, grid_lookup=LOOKUP, grid_vocab=VOCAB)
    assert game.reset(seed=1)[0] == "WWWWW\nWA.GW\nW.B.W\nW...W\nWWWWW"
    assert (
        "In the grid W is wall, . is empty, G is target, C is box on target, B" in game.instruction
    )
    for action in ("Down", "Down", "Right"):
        game.step(action)
    shown, reward, is_over, _, _ = game.step("Up")
    assert (shown, reward) == ("WWWWW\nW.BGW\nW.A.W\nW...W\nWWWWW", -0.1)
    assert not is_over
    assert game.step("jump")[0].endswith(shown)


def test_keys_of_a_lookup_may_be_text_and_the_others_keep_their_symbols():
    game = Sokoban(room=ROOM, grid_lookup={"0": "W"})
    assert game.reset(seed=1)[0].startswith("WWWWW\nWP_OW")
    assert "W is a wall, _ is the floor, O is a target" in game.instruction
    assert Sokoban(room=ROOM).instruction == Sokoban.instruction


@pytest.mark.parametrize("lookup", [{7: "x"}, {"wall": "x"}, {0: "x", 1: "x"}, {0: "_"}])
def test_a_lookup_without_numbers_or_with_one_symbol_twice_is_refused(lookup):
    with pytest.raises(ConfigError, match=r"grid_lookup .* numbers from 0 to 6, each another"):
        Sokoban(grid_lookup=lookup)
