"""Pictures of validation episodes; whatever fails at them costs no episode anything."""

import numpy as np
import pytest
from PIL import Image

from ajet.core.environment.frames import frame_to_image, save_frames
from tests.corridor import Corridor, answers, corridor_config, play


class Painted(Corridor):
    """Each place is a picture of one colour."""

    def render(self):
        return np.full((4, 6, 3), 100 * self.place, np.uint8)


class Odd(Corridor):
    def render(self):
        return np.zeros((4, 6))


class Broken(Corridor):
    def render(self):
        raise RuntimeError("no brush")


def config_of(tmp_path, kind="Painted", **environment):
    environment = {"render_save_dir": "frames", **environment}
    ajet = {"experiment_dir": str(tmp_path / "run")}
    spec = f"tests.agents.test_frame_recorder->{kind}"
    return corridor_config(tmp_path, spec, environment=environment, ajet=ajet)


def files(tmp_path):
    folder = tmp_path / "run" / "frames"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))


async def test_a_validation_episode_is_a_gif_with_a_frame_a_state_and_a_sheet(tmp_path):
    await play(config_of(tmp_path), answers("Right"), mode="eval", num=2)
    assert files(tmp_path) == ["step_000001/Walk-0000.gif", "step_000001/Walk-0000.png"]
    folder = tmp_path / "run" / "frames" / "step_000001"
    with Image.open(folder / "Walk-0000.gif") as film:
        assert (film.n_frames, film.size) == (3, (6, 4))
    with Image.open(folder / "Walk-0000.png") as sheet:
        assert sheet.size == (3 * 6 + 2 * 4, 4)
        assert [sheet.getpixel((x, 0))[0] for x in (0, 10, 20)] == [0, 100, 200]


@pytest.mark.parametrize("environment", [{"render_save_dir": None}, {}])
async def test_nothing_is_drawn_in_training_or_unasked(tmp_path, environment):
    mode = "train" if not environment else "eval"
    await play(config_of(tmp_path, **environment), answers("Right"), mode=mode)
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", ["Odd", "Broken"])
async def test_a_state_that_cannot_be_drawn_is_shown_as_text_and_keeps_its_reward(tmp_path, kind):
    [episode] = await play(config_of(tmp_path, kind), answers("Right"), mode="eval")
    assert episode.reward == pytest.approx(0.9)
    assert files(tmp_path) == ["step_000001/Walk-0000.gif", "step_000001/Walk-0000.png"]


async def test_a_folder_that_cannot_be_written_costs_no_reward(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "frames").write_text("a file")
    [episode] = await play(config_of(tmp_path), answers("Right"), mode="eval")
    assert episode.reward == pytest.approx(0.9)


def test_frames_of_different_sizes_and_kinds_share_one_size(tmp_path):
    save_frames(["You are here.\n#_#", np.zeros((90, 5, 3), np.uint8), ""], tmp_path / "mixed.gif")
    with Image.open(tmp_path / "mixed.gif") as film:
        assert film.n_frames == 3
        assert film.size[0] > 50
        assert film.size[1] == 90


def test_text_stands_in_columns_without_a_terminals_colours_and_long_lines_are_broken():
    def pixels(text):
        return np.asarray(frame_to_image(text))

    assert pixels("i|i").shape == pixels("W|W").shape
    assert (pixels("i|")[:, 16:24] == pixels("n|")[:, 16:24]).all()  # a margin and one cell on
    assert (pixels("\x1b[43mP\x1b[0m_") == pixels("P_")).all()
    assert pixels("a long line " * 300).shape[1] <= 80 * 8 + 2 * 8
