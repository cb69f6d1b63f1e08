"""Prints the calls from a training step to the model, as a real step makes them, and counts them.

    python scripts/hops.py --backbone debug
    python scripts/hops.py --backbone verl --json hops.json

A small run is trained for one step in a process of its own. In it, and in every process that it
starts, the chain of ajet's own functions is followed from the loop's step to the engine's
`generate`: through awaits, through tasks (a task has the chain of whoever made it), and through
calls of Ray actors. Functions of other packages, and of the agent, are left out. The first chain
that arrives is printed.

Not covered: agents that call the model through a framework or over HTTP, whose adapter adds its own
calls; requests that the engine takes from the replies of the router (they carry no prompt).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
START = {
    "debug": "DebugTraining._train_step",
    "verl": "ColocatedTraining._train_step",
    "trinity": "Explorer._explore_step",
}
"""Where the chain begins: the function that the backbone's loop calls once for each step."""
END = "endpoint"
LIMIT_S = 300

TRACER = '''
"""Imported by every Python process of the run: follows calls through tasks and actors."""
import asyncio
import concurrent.futures
import contextvars
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys

PACKAGE = os.environ["AJET_HOPS_PACKAGE"]
FOLDER = os.environ["AJET_HOPS_FOLDER"]
chain_before = contextvars.ContextVar("chain_before", default=())


def chain():
    """The functions of ajet that led here, the outermost first."""
    frames, frame = [], sys._getframe()
    while frame is not None and frame.f_code not in BOTTOMS:
        if frame.f_code.co_filename.startswith(PACKAGE):
            frames.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return (*chain_before.get(), *reversed(frames))


def write(to, calls):
    path = os.path.join(FOLDER, f"{os.getpid()}.jsonl")
    with open(path, "a") as file:
        file.write(json.dumps({"to": to, "calls": calls}) + "\\n")


async def bottom_of_task(coroutine):
    return await coroutine


def make_task(loop, coroutine, context=None, **options):
    context = context.copy() if context is not None else contextvars.copy_context()
    context.run(chain_before.set, chain())
    return asyncio.Task(bottom_of_task(coroutine), loop=loop, context=context, **options)


def send(coroutine, loop):
    """`asyncio.run_coroutine_threadsafe`, with the chain of the thread that calls it."""
    future = concurrent.futures.Future()
    context = contextvars.copy_context()
    context.run(chain_before.set, chain())

    def bottom_of_callback():
        asyncio.futures._chain_future(asyncio.ensure_future(coroutine, loop=loop), future)

    BOTTOMS.add(bottom_of_callback.__code__)
    loop.call_soon_threadsafe(bottom_of_callback, context=context)
    return future


asyncio.run_coroutine_threadsafe = send
BOTTOMS = {bottom_of_task.__code__, asyncio.Handle._run.__code__}
"""Where a task or a callback begins: what is below on the stack did not lead to it."""
made = asyncio.new_event_loop


def new_loop():
    loop = made()
    loop.set_task_factory(make_task)
    return loop


asyncio.new_event_loop = new_loop


def follow_engine(module):
    generate = module.InProcessEngine.generate

    async def traced(self, *arguments, **options):
        write("endpoint", (*chain(), "InProcessEngine.generate"))
        return await generate(self, *arguments, **options)

    module.InProcessEngine.generate = traced


def follow_actors(module):
    remote = module.ActorMethod._remote

    def traced(self, *arguments, **options):
        write(self._method_name, chain())
        return remote(self, *arguments, **options)

    module.ActorMethod._remote = traced


FOLLOWED = {"ajet.engines.in_process": follow_engine, "ray.actor": follow_actors}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in FOLLOWED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def and_follow(module):
            execute(module)
            FOLLOWED[name](module)

        spec.loader.exec_module = and_follow
        return spec


sys.meta_path.insert(0, Finder())
'''
WORKFLOW = """
from ajet import Workflow, WorkflowOutput


class OneCall(Workflow):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        return WorkflowOutput(reward=float(workflow_task.rollout_index % 2))
"""
CONFIG = """
ajet:
  experiment_name: hops
  model: {path: "embedded:math", device: cpu}
  task_reader: {type: random_dummy}
  data: {train_batch_size: 2, max_prompt_length: 256, max_response_length: 64}
  rollout: {user_workflow: workflow.py->OneCall, num_repeat: 2, max_response_length_in_one_turn: 4}
  trainer_common: {total_training_steps: 1, save_freq: 0, test_freq: 0, logger: [console]}
trinity: {max_staleness: 0}
"""


@dataclass(frozen=True)
class Hops:
    """The calls of one chain, by process: the first is the loop's, the last the engine's."""

    processes: list[list[str]]

    @property
    def num_calls(self) -> int:
        """Calls of ajet's functions after the loop's own step."""
        return sum(map(len, self.processes)) - 1

    @property
    def num_process_hops(self) -> int:
        """How often the prompt goes to another process."""
        return len(self.processes) - 1


def trace(backbone: str) -> Hops:
    """Trains one step on this backbone and returns the first chain that arrives at the engine."""
    with tempfile.TemporaryDirectory() as folder:
        project, records = Path(folder) / "project", Path(folder) / "records"
        for path in (project, records):
            path.mkdir()
        (project / "sitecustomize.py").write_text(TRACER)
        (project / "workflow.py").write_text(WORKFLOW)
        (project / "hops.yaml").write_text(CONFIG)
        command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", "hops.yaml"]
        command += ["--backbone", backbone, *(["--with-ray"] if backbone != "debug" else [])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(project), str(ROOT)]),
            "AJET_HOPS_PACKAGE": str(ROOT / "ajet"),
            "AJET_HOPS_FOLDER": str(records),
            "RAY_USE_UVLOOP": "0",  # tasks are followed through asyncio's own loop
        }
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        if done.returncode:
            raise SystemExit(f"the run ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        lines = [line for file in records.iterdir() for line in file.read_text().splitlines()]
    return joined(START[backbone], [json.loads(line) for line in lines])


def joined(start: str, records: list[dict]) -> Hops:
    """The parts of one chain put together: each goes on in the actor's method that it calls."""
    parts = _parts(start, records)
    if parts is None:
        raise SystemExit(f"no call of the model was found after {start}")
    return Hops(parts)


def _parts(begins: str, records: list[dict]) -> list[list[str]] | None:
    """The chain from the function `begins` to the engine; None where it does not lead there."""
    for record in records:
        calls, method = record["calls"], record["to"]
        at = max((i for i, name in enumerate(calls) if name == begins), default=None)
        if at is None:
            continue
        own = calls[at:]
        if method == END:
            return [own]
        entries = {c["calls"][0] for c in records if c["calls"] and c is not record}
        for entry in sorted(name for name in entries if name.endswith(f".{method}")):
            if entry not in own and (rest := _parts(entry, records)) is not None:
                return [own, *rest]
    return None


def main() -> None:
    """Prints the chain of one backbone and its count."""
    parser = argparse.ArgumentParser(description="The calls from a training step to the model.")
    parser.add_argument("--backbone", choices=START, default="debug")
    parser.add_argument("--json", type=Path, help="also write the chain there")
    chosen = parser.parse_args()
    hops = trace(chosen.backbone)
    number = 0
    for process in hops.processes:
        print("process" if number == 0 else "another process")
        for name in process:
            print(f"  {number:2d}  {name}")
            number += 1
    print(f"{hops.num_calls} calls, {hops.num_process_hops} process hops")
    if chosen.json:
        content = {"calls": hops.num_calls, "process_hops": hops.num_process_hops}
        chosen.json.write_text(json.dumps(content | {"processes": hops.processes}, indent=2) + "\n")


if __name__ == "__main__":
    main()
