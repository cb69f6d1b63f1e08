"""One episode of a command-line agent against a scripted model, judged by hidden tests."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.trajectory.samples import to_samples
from ajet.core.workflow.gateway.gateway import Gateway
from ajet.core.workflow.registry import registered_workflow
from ajet.judges.hidden_tests import HiddenTestsJudge
from ajet.read.episode_reader import EpisodeReader
from ajet.read.reports.audit import Audit
from ajet.sandbox.runtime import Runtime
from ajet.tool_parsers import parser_for
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
WRONG, RIGHT = "return a - b", "return a + b"
PYTHON = ["/usr/bin/env", "python3"] if sys.platform == "linux" else [sys.executable]
ROW = {
    "files": {"calc.py": f"def add(a, b):\n    {WRONG}\n"},
    "hidden_files": {
        "test_one.py": "import calc\nassert calc.add(2, 3) == 5\n",
        "test_two.py": "import calc\nassert calc.add(2, 0) == 2\n",
    },
}
ROOMY = {
    "max_prompt_length": 400_000,
    "max_response_length": 400_000,
    "max_model_len": 900_000,
    "max_response_length_in_one_turn": 20_000,
    "max_failure_rate": 1.0,
}


def config_of(timeout_s=30.0, **harness):
    """The defaults, without a sandbox unless one is given; `timeout_s` is that of a hidden test."""
    ajet = {
        "model": {"path": "m"},
        "harness": {"sandbox": "none"} | harness,
        "task_judge": {"hidden_tests": {"command": [*PYTHON, "{test}"], "timeout_s": timeout_s}},
    }
    return AjetConfig.model_validate({"ajet": ajet})


def call(name, **arguments):
    """A tool call as the model of the tokenizer writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def shell(script, *arguments, **harness):
    """The config of harness:cmd with this shell script."""
    return config_of(command=["sh", "-c", script, "agent", *arguments], **harness)


async def play(name, reply, config, row=ROW, prompt="Repair add in calc.py.", **limits):
    """The judged episode of `reply(prompt_text, request_id)`."""
    return (await play_group(name, reply, config, row, prompt, **limits)).trajectories[0]


async def play_group(name, reply, config, row=ROW, prompt="Repair add in calc.py.", **limits):
    kind = registered_workflow(name)
    kind.check_config(config)
    gateway = Gateway()
    endpoint = ScriptedEndpoint(TOKENIZER, reply)
    runner = episode_runner(
        kind,
        endpoint,
        TOKENIZER,
        judge=HiddenTestsJudge(config),
        gateway=gateway,
        config=config,
        **ROOMY | limits,
    )
    task = Task("t0", prompt, metadata=row)
    try:
        request = RolloutRequest([task], step=1, mode="train", num_repeat=1)
        (group,) = await runner.rollout(request)
    finally:
        gateway.close()
    return group


def audit_of(path, group):
    """The figures of `ajet inspect audit` over the group, recorded as a step of a run."""
    advantages = {
        t.episode_id: [np.ones(len(turn.completion.token_ids)) for turn in t.turns]
        for t in group.valid
    }
    with EpisodeStore(path) as store:
        store.write(1, [group], advantages, to_samples([group], advantages))
    template = ChatTemplate(TOKENIZER)
    audit = Audit(template, parser_for(template))
    with EpisodeReader(path) as reader:
        audit.add_all(reader.walk())
    return audit.figures


IMAGES = {"podman": "AJET_TEST_PODMAN_IMAGE", "docker": "AJET_TEST_DOCKER_IMAGE"}
"""The variables that name an image with a shell and python3, for the tests of each."""


def sandboxed(kind):
    """The keys of `ajet.harness` for this sandbox; the test is skipped where it does not run."""
    keys = {"sandbox": kind}
    if kind in IMAGES:
        keys["image"] = os.environ.get(IMAGES[kind])
    try:
        Runtime(kind, keys.get("image")).check("ajet.harness.sandbox")
    except ConfigError as error:
        pytest.skip(str(error))
    return keys


def process_lines():
    return subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout
