"""The agent and the judge of soak.py: one episode in a hundred has a fault, drawn by its id."""

import asyncio
import os
import random
import threading
import time
from typing import Any

from ajet import BaseJudge, ModelTuner, Workflow, WorkflowOutput, WorkflowTask

FAULT_SHARE = float(os.environ.get("SOAK_FAULTS", "0.01"))
LEAKS = os.environ.get("SOAK_LEAKS", "").split()
"""The names of what each episode leaves behind, in a run whose leaks must be found: `descriptor`,
`thread`, `memory`."""
FAULTS = (
    "raises",
    "hangs",
    "exits",
    "swallows its cancellation",
    "calls the model after its end",
    "leaves a connection open",
    "floods",
    "program leaves a process behind",
    "program floods",
    "program hangs",
    "judge raises",
    "judge is no number",
)
FLOOD = "all work and no play " * 100_000
PROGRAMS = {
    "program leaves a process behind": (
        "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nprint('gone')"
    ),
    "program floods": "print('x' * 5_000_000)",
    "program hangs": "import time; time.sleep(600)",
}
left_behind: list[object] = []


def fault_of(workflow_task: WorkflowTask) -> str | None:
    """Returns the fault of an episode; most have none, and those of a validation never."""
    rng = random.Random(workflow_task.episode_id)
    if workflow_task.mode == "eval" or rng.random() >= FAULT_SHARE:
        return None
    return rng.choice(FAULTS)


class Sometimes(Workflow):
    """Asks the model, every fourth time a program in the sandbox too, and then the model again."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        fault = fault_of(workflow_task)
        leave_behind()
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages)
        if fault in PROGRAMS or workflow_task.rollout_index == 0:
            told = await run_program(PROGRAMS.get(fault or "", "print(6 * 7)"))
            messages += [reply, {"role": "user", "content": told}]
            reply = await model_tuner.chat(messages)
        await misbehave(fault, model_tuner, messages)
        digits = sum(letter.isdigit() for letter in str(reply["content"]))
        return WorkflowOutput(is_success=digits > 1, metadata={"digits": digits, "fault": fault})


class Digits(BaseJudge):
    """Gives the number of digits, unless the judge has the fault."""

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[Any, bool]:
        fault = workflow_output.metadata["fault"]
        if fault == "judge raises":
            raise ValueError("no verdict")
        if fault == "judge is no number":
            return "many", False
        return float(workflow_output.metadata["digits"] % 5), bool(workflow_output.is_success)


async def run_program(code: str) -> str:
    from ajet.sandbox.pool import default_pool

    outcome = await default_pool().run(code, timeout=1)
    return f"{outcome.returncode} {outcome.stdout[:40]}"


async def misbehave(fault: str | None, model_tuner: ModelTuner, messages: list) -> None:
    match fault:
        case "raises":
            raise ConnectionError("no such move")
        case "hangs":
            await asyncio.sleep(3600)
        case "exits":
            raise SystemExit(3)
        case "swallows its cancellation":
            for _ in range(3):
                try:
                    await asyncio.sleep(3)
                except asyncio.CancelledError:
                    continue
        case "calls the model after its end":
            task = asyncio.create_task(call_later(model_tuner, messages))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        case "leaves a connection open":
            await leave_connection(model_tuner)
        case "floods":
            await model_tuner.chat([*messages, {"role": "user", "content": FLOOD}])


async def call_later(model_tuner: ModelTuner, messages: list) -> None:
    await asyncio.sleep(0.5)
    await model_tuner.chat(messages)


async def leave_connection(model_tuner: ModelTuner) -> None:
    """Begins a request to the gateway, and never ends it."""
    base_url, _ = model_tuner.as_oai_baseurl_apikey()
    host, _, port = base_url.removeprefix("http://").partition("/")[0].partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1000\r\n")
    await writer.drain()


def leave_behind() -> None:
    if "descriptor" in LEAKS:
        left_behind.append(os.open(os.devnull, os.O_RDONLY))
    if "thread" in LEAKS:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    if "memory" in LEAKS:
        left_behind.append(bytearray(os.urandom(1 << 18)))
