import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ajet.core.user_code.activity import MAX_CALLS, MAX_NAME, Activity, in_call
from ajet.core.workflow.bridge import run_in_thread


async def begun(work):
    """A task that runs `work`, and its activity."""
    activity = Activity("e")

    async def run():
        activity.enter()
        await work()

    task = asyncio.create_task(run())
    activity.runs_in(task)
    await asyncio.sleep(0.01)
    return activity, task


async def ended(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_oldest_call_that_has_not_returned_is_named_and_the_model_comes_last():
    activity = Activity("e")
    with activity.calling_model():
        assert activity.now().is_model
        with activity.calling("tool a"), activity.calling("tool b"):
            assert activity.now().name == "tool a" and not activity.now().is_model
        assert activity.now().name == "the model"
    assert activity.now().name == "workflow code"


def test_calls_that_have_returned_are_kept_in_their_order_but_for_those_of_the_model():
    activity = Activity("e")
    with activity.calling("tool outer"):
        with activity.calling_model():
            pass
        with suppress(ValueError), activity.calling("tool inner"):
            raise ValueError
    inner, outer = activity.calls
    assert (inner.name, outer.name) == ("tool inner", "tool outer")
    assert 0 <= outer.started_s <= inner.started_s <= inner.ended_s <= outer.ended_s
    for _ in range(MAX_CALLS):
        with activity.calling("x" * 1000):
            pass
    assert len(activity.calls) == MAX_CALLS and len(activity.calls[-1].name) == MAX_NAME


async def test_a_call_in_a_task_or_a_thread_of_the_episode_is_its_call():
    release = threading.Event()

    def blocking():
        with in_call("tool slow"):
            release.wait(10)

    activity, task = await begun(lambda: asyncio.gather(asyncio.to_thread(blocking)))
    while activity.now().name != "tool slow":
        await asyncio.sleep(0.01)
    release.set()
    await ended(task)


async def test_code_without_a_named_call_is_shown_with_its_line():
    async def inner():
        await asyncio.sleep(60)

    async def work():
        await inner()

    activity, task = await begun(work)
    assert activity.now().name.startswith("workflow code at test_activity.py:")
    await ended(task)


async def test_a_workflow_in_a_thread_is_shown_with_its_line():
    release = threading.Event()

    def execute():
        release.wait(10)

    activity, task = await begun(lambda: run_in_thread(execute, is_workflow=True))
    while not activity.now().name.startswith("workflow code at test_activity.py:"):
        await asyncio.sleep(0.01)
    release.set()
    await ended(task)


def test_outside_an_episode_a_call_is_nobodys():
    with ThreadPoolExecutor(1) as pool, in_call("tool"):
        assert pool.submit(lambda: 1).result() == 1
