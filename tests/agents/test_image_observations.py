"""Pictures that an environment returns reach the model as parts of the user's message."""

import base64
import io

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from ajet import ModelTuner
from ajet.core.environment.environment import Environment
from ajet.core.environment.live import open_environment
from ajet.core.environment.observations import content_of, read_observation
from ajet.core.environment.registry import environment_maker
from ajet.core.environment.returns import checked_reset, text_alone
from ajet.core.errors import ConfigError, DataError, EnvironmentFault
from ajet.core.images.image import ImageLimits
from ajet.core.images.store import ImageStore
from ajet.core.task.environment import EnvironmentReader
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.workflow.registry import registered_workflow
from ajet.environments.frozen_lake import FrozenLake
from ajet.environments.gymnasium import GymnasiumEnvironment
from ajet.environments.sokoban import Sokoban
from tests.corridor import corridor_config
from tests.seeing_recorder import SeeingRecorder


def picture(shade):
    return np.full((4, 4, 3), shade, np.uint8)


def part(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG", compress_level=1)
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def text(value):
    return {"type": "text", "text": value}


class Gallery(Environment):
    """Shows a picture a step: shade 0, then 1, and so on. It ends after three steps."""

    def reset(self, seed=None, options=None):
        self.shade = 0
        return picture(0), {}

    def step(self, action):
        self.shade += 1
        seen = {"image": picture(self.shade), "text": f"picture {self.shade}"}
        return seen, 1.0, self.shade == 3, False, {}


GALLERY = "tests.agents.test_image_observations->Gallery"


def content(observation):
    """Returns an observation as a message has it."""
    result = checked_reset((observation, {}), "Gallery.reset()")
    return content_of(result.observation, result.images)


RED = Image.new("RGB", (4, 4), "red")
RED_PART = part(np.asarray(RED))


@pytest.mark.parametrize(
    ("observation", "parts"),
    [
        (picture(7), [part(picture(7))]),
        (RED, [RED_PART]),
        ({"text": "See:", "image": RED}, [text("See:"), RED_PART]),
        (["a", "b", RED, "c", picture(7)], [text("a\nb"), RED_PART, text("c"), part(picture(7))]),
        ({"prompt": "See", "image": [RED, RED]}, [text("See"), RED_PART, RED_PART]),
        ([{"type": "text", "text": "See"}, RED_PART], [text("See"), RED_PART]),
        ("text <image>", "text <image>"),
    ],
)
def test_observations_become_parts_in_order(observation, parts):
    assert content(observation) == parts


@pytest.mark.parametrize(
    ("observation", "problem"),
    [
        ({"text": "no picture"}, "the observation is a dict of 1, not text or a picture"),
        (np.zeros((4, 4), np.uint8), "the observation is a value of type ndarray, not text"),
        ([RED, 3], "the observation is a list of 2, not text or a picture"),
        ({"type": "image", "image": b"x"}, "an image is refused: it is not one of PNG"),
        ({"type": "image", "image": "a.png"}, "an image is refused: messages may not name files"),
    ],
)
def test_anything_else_is_an_error_of_one_line(observation, problem):
    with pytest.raises(EnvironmentFault) as fault:
        content(observation)
    assert problem in str(fault.value) and "\n" not in str(fault.value)


def test_equal_pictures_are_equal_observations():
    first, same, other = (checked_reset((picture(n), {}), "") for n in (1, 1, 2))
    assert first == same and first.observation != other.observation


def test_protocols_of_text_refuse_a_picture():
    with pytest.raises(EnvironmentFault, match="serves text"):
        text_alone(checked_reset((picture(1), {}), ""))


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
async def test_pictures_pass_through_each_kind_of_isolation(isolation, tmp_path):
    maker = environment_maker(GALLERY, {}, [tmp_path], "env_type")
    async with open_environment(maker, isolation) as environment:
        start = await environment.reset(1, {})
        step = await environment.step("on")
    assert content_of(start.observation, start.images) == [part(picture(0))]
    assert content_of(step.observation, step.images) == [part(picture(1)), text("picture 1")]


async def seen_by(agent_name, tmp_path, *replies, **custom):
    config = corridor_config(tmp_path, GALLERY, env_manager_cls=agent_name, **custom)
    task = EnvironmentReader(config).get_training_tasks()[0]
    recorder = SeeingRecorder(*replies)
    plan = WorkflowTask(task, "e", "0-0", 0, 0, "train", 1)
    agent = registered_workflow(task.metadata["agent_name"])()
    await agent.execute(plan, ModelTuner(recorder, config=config))
    return recorder.seen


async def test_the_trajectory_agent_shows_each_picture_in_its_message(tmp_path):
    seen = await seen_by("traj_env_agent", tmp_path, "none", "<answer>on</answer>")
    users = [message["content"] for message in seen[-1] if message["role"] == "user"]
    assert users[0][0] == part(picture(0))
    assert users[0][1]["text"].startswith("\n\nStep 1 of 4.")
    note, again, _ = users[1]
    assert note == text("Your reply names no action: write it as <answer>…</answer>.\n")
    assert again == part(picture(0))
    assert users[2][0] == part(picture(1))
    assert users[2][1]["text"].startswith("picture 1\n\nStep 3 of 4.")


async def test_the_step_agent_shows_the_pictures_of_its_window(tmp_path):
    seen = await seen_by("step_env_agent", tmp_path, "<answer>on</answer>", history_length=1)
    last = seen[-1][-1]["content"]
    images = [each for each in last if each["type"] == "image_url"]
    assert images == [part(picture(1)), part(picture(2))]
    assert last[0] == text("Your last steps:\nStep 2: ")


def lake(**settings):
    return FrozenLake(map=["SFF", "FHG"], view="image", **settings)


def test_frozen_lake_shows_its_picture_and_a_line_of_neighbours():
    environment = lake()
    observation, _ = environment.reset(seed=1)
    before = part(environment.render())
    assert content(observation) == [before, text("Left wall Down ice Right ice Up wall")]
    told = environment.step("fly")[0]
    assert content(told)[0]["text"].startswith("That is no action.")
    assert content(told)[1] == before
    moved = environment.step("Right")[0]
    assert content(moved)[0] == part(environment.render()) != before
    assert "In the image the red disc is you" in environment.instruction


def test_frozen_lake_may_show_the_picture_alone():
    environment = lake(show_neighbours=False)
    assert content(environment.reset(seed=1)[0]) == [part(environment.render())]


def test_sokoban_shows_its_picture():
    environment = Sokoban(room=["#####", "#PXO#", "#####"], view="image")
    assert content(environment.reset(seed=1)[0]) == [part(environment.render())]
    told = environment.step("fly")[0]
    assert content(told)[1:] == [part(environment.render())]
    assert content(environment.step("Right")[0]) == [part(environment.render())]
    assert "the blue disc is you" in environment.instruction
    with pytest.raises(ConfigError, match="view 'map': choose grid, image"):
        Sokoban(view="map")


class Screen(gymnasium.Env):
    """Sees pixels, and draws itself."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((32, 32, 3), np.uint8), {}

    def render(self):
        return picture(9)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [({}, np.zeros((32, 32, 3), np.uint8)), ({"view": "image"}, picture(9))],
)
def test_gymnasium_shows_pixels_or_what_it_draws(settings, shown):
    gymnasium.register("ajet-tests/Screen-v0", entry_point=Screen)
    try:
        environment = GymnasiumEnvironment("ajet-tests/Screen-v0", **settings)
        assert content(environment.reset(seed=1)[0]) == [part(shown)]
        told = environment.step("7")[0]
        assert content(told) == [text("Write one action: a number from 0 to 1."), part(shown)]
        environment.close()
    finally:
        del gymnasium.registry["ajet-tests/Screen-v0"]


def test_the_limits_are_those_of_the_run():
    text, images = read_observation(np.zeros((4100, 4100, 3), np.uint8), "reset()")
    message = {"role": "user", "content": content_of(text, images)}
    with pytest.raises(DataError, match=r"4100 x 4100 pixels, and ajet\.model\.images\.max_pixels"):
        ImageStore().taken([message])
    assert len(ImageStore(ImageLimits(max_pixels=1 << 25)).taken([message])) == 1
