"""Whatever an environment hands over, wherever: the agent gets plain values or an EnvironmentFault
of one line, which is the status of that episode alone."""

import contextlib
import json

import pytest

from ajet.core.environment.live import open_environment
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import EnvironmentFault
from ajet.core.text.error_text import one_line
from tests.core.environment.hostile_environment import PLACES, RESETS, STEPS, VALUES

HOSTILE = "tests.core.environment.hostile_environment->Hostile"


async def handed_over(isolation, place, name):
    """What the agent gets of an environment that is hostile in this place."""
    settings = {"place": place, "value": name} if place in RESETS or place == "instruction" else {}
    maker = environment_maker(HOSTILE, settings, [], "test")
    async with open_environment(maker, isolation) as environment:
        shown = await environment.reset(1, {})
        step = None
        if place in STEPS or place == "raised":
            step = await environment.step(f"{place}: {name}")
        return [environment.instruction, shown, step]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("isolation", ["inline", "thread"])
async def test_an_environment_may_hand_over_anything_anywhere(isolation, place):
    faults = []
    for name in VALUES:
        try:
            json.dumps(await handed_over(isolation, place, name), allow_nan=False)
        except EnvironmentFault as fault:
            faults.append(name)
            assert len(one_line(fault)) < 1000, name
    assert place == "other info" or len(faults) >= 3


async def test_an_answer_too_long_for_its_process_is_a_fault_and_the_next_has_another():
    with contextlib.suppress(EnvironmentFault):
        await handed_over("process", "observation", "200 MB of text")
    _, _, step = await handed_over("process", "observation", "text")
    assert step[0] == "text"
