"""A small run of the real command, as a user starts it: 4 tasks x 4 episodes, 6 steps, a second
each. The workflow talks to the model twice, with a tool's result in between, and leaves a line in
`episodes.log` when an episode begins and ends, so that a test knows where the run is.
"""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ajet.cli.launcher import app
from tests.warm_start import WarmProcess, warm_start

STEPS, EPISODES = 6, 16
WORKFLOW = '''
import asyncio
import contextlib
import os
import random
import time
from pathlib import Path

from ajet import Workflow, WorkflowOutput

LOG = Path(__file__).with_name("episodes.log")
HOLD = Path(__file__).with_name("hold")  # the step whose episodes wait in their middle


def tell(what, workflow_task):
    with LOG.open("a") as file:
        file.write(f"{what} {workflow_task.step} {workflow_task.task.main_query}\\n")


class Plain(Workflow):
    async def tool(self, question):
        return f"The tool says {len(question)}."

    async def execute(self, workflow_task, model_tuner):
        tell("begin", workflow_task)
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages)
        while HOLD.exists() and int(HOLD.read_text()) == workflow_task.step:
            await asyncio.sleep(0.01)
        result = await self.tool(str(reply["content"]))
        messages += [reply, {"role": "user", "content": result}]
        again = str((await model_tuner.chat(messages))["content"])
        digits = sum(letter.isdigit() for letter in again)
        tell("end", workflow_task)
        return WorkflowOutput(reward=float(digits % 5), is_success=digits > 3)


class Uneven(Plain):
    """Two members ask twice more: a group that begins more members than it needs stops them. The
    tool takes a while that nobody can foresee. Every third task earns all members the same."""

    async def tool(self, question):
        await asyncio.sleep(random.random() / 100)
        return await super().tool(question)

    async def execute(self, workflow_task, model_tuner):
        output = await super().execute(workflow_task, model_tuner)
        for _ in range(2 * (workflow_task.rollout_index in (1, 3))):
            await model_tuner.chat([{"role": "user", "content": "Are you sure?"}])
        if int(workflow_task.task.main_query.split()[2]) % 3 == 0:
            output.reward = 1.0
        return output


class Awaits(Plain):
    """The second step's episodes wait in their middle for a file, whose name is in `awaited`."""

    async def execute(self, workflow_task, model_tuner):
        self.waits = workflow_task.step == 2
        return await super().execute(workflow_task, model_tuner)

    async def tool(self, question):
        file = LOG.with_name(LOG.with_name("awaited").read_text())
        while self.waits and not file.exists():
            await asyncio.sleep(0.01)
        return await super().tool(question)


class HalfAwaits(Awaits):
    """Of the third step's groups, the last two members do."""

    async def execute(self, workflow_task, model_tuner):
        output = Plain.execute(self, workflow_task, model_tuner)
        self.waits = workflow_task.step == 3 and workflow_task.rollout_index > 1
        return await output


class OneIsSlow(Plain):
    """A group of the first step ends when a group of the fourth has."""

    async def execute(self, workflow_task, model_tuner):
        output = await super().execute(workflow_task, model_tuner)
        while workflow_task.group_id == "000001-train-0001" and "end 4" not in LOG.read_text():
            await asyncio.sleep(0.01)
        return output


class AllEqual(Plain):
    async def execute(self, workflow_task, model_tuner):
        output = await super().execute(workflow_task, model_tuner)
        output.reward = 0.5
        return output


class Unrewarded(Plain):
    """Says nothing of how well it went."""

    async def execute(self, workflow_task, model_tuner):
        await super().execute(workflow_task, model_tuner)
        return WorkflowOutput()


class AllFail(Plain):
    """Every episode of the second step."""

    async def execute(self, workflow_task, model_tuner):
        if workflow_task.step == 2 and workflow_task.mode == "train":
            raise ValueError("no such move")
        return await super().execute(workflow_task, model_tuner)


class Stepwise(Plain):
    """Notes the state and the reward of each call."""

    async def execute(self, workflow_task, model_tuner):
        output = await super().execute(workflow_task, model_tuner)
        model_tuner.credit_turn(reward=output.reward, state_key="second")
        return output


class TwoSides(Plain):
    """Two agents speak, the second one after the tool, and each earns what the other loses."""

    async def execute(self, workflow_task, model_tuner):
        tell("begin", workflow_task)
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(messages, agent_name="pro")
        while HOLD.exists() and int(HOLD.read_text()) == workflow_task.step:
            await asyncio.sleep(0.01)
        messages += [reply, {"role": "user", "content": await self.tool(str(reply["content"]))}]
        again = await model_tuner.chat(messages, agent_name="con")
        digits = [sum(map(str.isdigit, str(each["content"]))) for each in (reply, again)]
        gain = float(digits[0] - digits[1])
        tell("end", workflow_task)
        return WorkflowOutput(reward=gain, agent_rewards={"pro": gain, "con": -gain})


class Sandboxed(Plain):
    """Its tool is a program in the sandbox, each of another length, so that results race."""

    async def tool(self, question):
        from ajet.sandbox.pool import default_pool

        naps = f"import time; time.sleep({sum(question.encode()) % 7 / 1000}); "
        outcome = await default_pool().run(f"{naps}print({len(question)} * 7)", timeout=10)
        assert outcome.returncode == 0, outcome
        return outcome.stdout


class Sees(Plain):
    """Its tool answers with a picture, of one of three colours."""

    async def tool(self, question):
        import numpy as np

        picture = np.full((96, 96, 3), len(question) % 3 * 80, np.uint8)
        return [{"type": "text", "text": "see"}, {"type": "image", "image": picture}]


class Raises(Plain):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        raise ValueError("no such move")


class RaisesFromStepTwo(Plain):
    async def execute(self, workflow_task, model_tuner):
        if workflow_task.step >= 2 and "mended" not in os.environ:
            raise ValueError("no such move")
        return await super().execute(workflow_task, model_tuner)


class ToolHangs(Plain):
    """The tool of one episode of the second step does."""

    async def execute(self, workflow_task, model_tuner):
        self.hangs = workflow_task.episode_id == "000002-train-0001-02"
        return await super().execute(workflow_task, model_tuner)

    async def tool(self, question):
        if self.hangs:
            LOG.with_name("hangs").touch()
            await asyncio.sleep(3600)
        return await super().tool(question)


class NeverLeaves(Plain):
    """One episode swallows every cancellation; another blocks a thread for ever."""

    async def execute(self, workflow_task, model_tuner):
        while workflow_task.rollout_index == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        if workflow_task.rollout_index == 2:
            await asyncio.to_thread(time.sleep, 3600)
        return await super().execute(workflow_task, model_tuner)


class Slow(Sandboxed):
    """Leaves time to interrupt a step; its programs and the judge's process are there then."""

    async def tool(self, question):
        from ajet.judges.math_process import MathProcess
        from ajet.sandbox.pool import default_pool

        await asyncio.to_thread(MathProcess.shared().is_equal, "1/2", "0.5")
        await default_pool().run("import time; time.sleep(2)", timeout=60)
        return "done"
'''
ALGORITHM = "ajet.trainer_common.algorithm"
UNEVEN_PPO = (
    "ajet.rollout.user_workflow=workflow.py->Uneven",
    "ajet.rollout.group_size_redundancy=2",
    "ajet.trainer_common.use_kl_loss=false",
    "ajet.trainer_common.critic.lr=0.001",
    "ajet.trainer_common.critic.warmup_steps=1",
    f"{ALGORITHM}.adv_estimator=gae",
    f"{ALGORITHM}.use_kl_in_reward=true",
    f"{ALGORITHM}.kl_ctrl.type=adaptive",
    f"{ALGORITHM}.kl_ctrl.horizon=100",
    f"{ALGORITHM}.dynamic_sampling.enable=true",
)
"""A critic, an adaptive KL in the reward, dynamic sampling, and groups that stop early."""
SEES = (
    "ajet.model.path=embedded:frozen_lake_pixels",
    "ajet.model.images.enabled=true",
    "ajet.model.images.train_tower=true",
    "ajet.rollout.user_workflow=workflow.py->Sees",
)
TWO_SIDES = (
    "ajet.rollout.user_workflow=workflow.py->TwoSides",
    "ajet.trainer_common.lora={rank: 4, target_modules: [q_proj, down_proj], "
    "adapters: [pro, con], adapter_by: agent_name}",
    "ajet.trainer_common.optim.lr=0.01",
)
"""An adapter for each of two agents, over one base."""
CONFIG = """
ajet:
  experiment_name: toy
  model: {path: "embedded:math", device: cpu}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: tasks.jsonl}}
  data: {train_batch_size: 4, max_prompt_length: 256, max_response_length: 256}
  rollout:
    user_workflow: workflow.py->Plain
    num_repeat: 4
    temperature: 1.0
    max_response_length_in_one_turn: 12
    max_model_len: 512
  task_judge: {judge_protocol: null}
  trainer_common:
    total_training_steps: 6
    save_freq: 1
    test_freq: 0
    torch_threads: 1
    mini_batch_num: 2
    kl_loss_coef: 0.01
    optim: {lr: 0.001, warmup_steps: 4}
"""


class ToyRun:
    """A project in `folder`, and the command over it. An epoch of 13 tasks ends within a batch."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder = folder
        self.overrides = overrides
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "workflow.py").write_text(WORKFLOW)
        (folder / "toy.yaml").write_text(CONFIG)
        rows = [{"query": f"What is {n} + {n * n}?", "answer": "-"} for n in range(13)]
        (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def shrink(self) -> None:
        """Makes its steps small, for tests of what is around the training: 2 tasks x 2 episodes in
        one mini-batch."""
        text = (self.folder / "toy.yaml").read_text()
        smaller = {"train_batch_size: 4": 2, "num_repeat: 4": 2, "mini_batch_num: 2": 1}
        for line, number in smaller.items():
            text = text.replace(line, f"{line[:-1]}{number}")
        (self.folder / "toy.yaml").write_text(text)

    @property
    def path(self) -> Path:
        return self.folder / "launcher_record" / "toy"

    @property
    def program(self) -> list[str]:
        return ["-m", "ajet.cli.launcher"]

    @property
    def arguments(self) -> list[str]:
        return ["--conf", "toy.yaml", "--backbone", "debug", *self.overrides]

    def start(
        self, *overrides: str, env=None, stdin=None, fresh: bool | None = None
    ) -> subprocess.Popen | WarmProcess:
        """The command in a process group of its own; its output goes to files. It is a fork of a
        process that has imported ajet, unless it is `fresh`, as by default on Ray."""
        command = [*self.program, *self.arguments, *overrides]
        env = env or environment()
        with (
            (self.folder / "stdout").open("a") as stdout,
            (self.folder / "stderr").open("a") as stderr,
        ):
            if fresh is None:
                fresh = not {"verl", "trinity"}.isdisjoint(self.arguments)
            if not fresh:
                files = {"stdin": stdin, "stdout": stdout.fileno(), "stderr": stderr.fileno()}
                return warm_start(command, cwd=self.folder, env=env, **files)
            return subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env=env,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def call(self, *arguments: str) -> Result:
        """A command line in this process, in the project's folder; `sys.path` is put back."""
        with contextlib.chdir(self.folder), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", list(sys.path))
            return CliRunner().invoke(app, list(arguments))

    def finish(self, *overrides: str, timeout: float = 120, **options) -> int:
        """Run the command to its end."""
        with ended(self.start(*overrides, **options)) as process:
            return process.wait(timeout)

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    def errors(self) -> list[str]:
        """What the command said on standard error, notices left out."""
        lines = self.stderr().splitlines()
        return [line for line in lines if not line.startswith(("notice: ", "warning: "))]

    def episodes(self, what: str, step: int) -> int:
        """How many episodes of a step have begun, or have ended (also in an earlier attempt)."""
        return sum(line.startswith(f"{what} {step} ") for line in self.told())

    def told(self) -> list[str]:
        log = self.folder / "episodes.log"
        return log.read_text().splitlines() if log.exists() else []

    def hold(self, step: int | None) -> None:
        """Let the episodes of one step wait in their middle, or none."""
        (self.folder / "hold").unlink(missing_ok=True)
        if step is not None:
            (self.folder / "hold").write_text(str(step))

    def forget_told(self) -> None:
        (self.folder / "episodes.log").unlink(missing_ok=True)

    def steps_saved(self) -> list[int]:
        return sorted(int(p.name[5:]) for p in (self.path / "checkpoints").glob("step_*"))

    def final_tensors(self, step: int = STEPS) -> dict[str, bytes]:
        """The bytes of everything that is learned: weights, and the optimizer's state."""
        folder = self.path / "checkpoints" / f"step_{step:06d}"
        return {
            name: (folder / name).read_bytes()
            for name in ("model.safetensors", "tensors.safetensors")
        }


class VerlRun(ToyRun):
    """On a Ray of its own."""

    @property
    def arguments(self) -> list[str]:
        return ["--conf", "toy.yaml", "--backbone", "verl", "--with-ray", *self.overrides]


def environment(**more: str) -> dict[str, str]:
    """One thread: two tests then fit on two cores, and the numbers don't depend on the machine."""
    return os.environ | {"OMP_NUM_THREADS": "1"} | more


@contextlib.contextmanager
def ended(process: subprocess.Popen | WarmProcess):
    """Whatever the test finds, the process is over afterwards."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(condition, process, timeout: float = 240, every_s=0.002) -> bool:
    """Whether it came true before the process ended."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(every_s)
    raise TimeoutError("it never came to that")


def episodes(run: ToyRun) -> list[tuple]:
    """All that was sampled and earned, without times."""
    with contextlib.closing(sqlite3.connect(run.path / "episodes.sqlite")) as connection:
        return connection.execute(
            "SELECT group_id, query, episodes.episode_id, status, episodes.reward, turn_index, "
            "token_ids, logprobs, advantages FROM episodes JOIN turns USING (episode_id) "
            "WHERE turn_index = 1 ORDER BY episodes.episode_id"
        ).fetchall()


def metrics(run: ToyRun) -> list[dict]:
    """All that was logged, without times and the numbers of attempts."""
    lines = (run.path / "logs" / "metrics.jsonl").read_text().splitlines()
    clocks = ("time", "rollout/seconds", "rollout/episodes_per_s", "rollout/tokens_per_s")
    trainer = [f"trainer/{name}_s" for name in ("waited", "update", "publish")]
    timed = (*clocks, *trainer, "critic/seconds", "run/attempt")

    def is_timed(name: str) -> bool:
        return name in timed or name.startswith("update/seconds")  # also of each adapter

    return [{k: v for k, v in json.loads(line).items() if not is_timed(k)} for line in lines]
