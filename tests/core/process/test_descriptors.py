"""The limit of open files: raised, compared, and named where an episode fails because of it."""

import errno
import os
import resource
import subprocess
import sys

from ajet.core.process.descriptors import (
    MAX_DESCRIPTORS,
    descriptor_limit,
    descriptors_needed,
    is_out_of_descriptors,
)
from ajet.core.record.step_warnings import warn_of_failures
from ajet.core.text.error_text import one_line
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.core.record.record_fixtures import episode, group_of

ENVIRONMENT = """
import resource
from ajet.core.environment.environment import Environment

class Env(Environment):
    instruction = "Go."

    def reset(self, seed, options=None):
        with open("limit", "w") as file:
            print(*resource.getrlimit(resource.RLIMIT_NOFILE), file=file)
        return "go", {}

    def step(self, action):
        return "end", 1.0, True, False, {}
"""


def test_a_command_that_runs_episodes_has_the_hard_limit(tmp_path):
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = 4000 if hard == resource.RLIM_INFINITY else min(4000, hard)
    subprocess.run(
        [sys.executable, "-m", "ajet.cli.launcher", "env-check", "env.py->Env", "--episodes", "1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)),
        timeout=120,
        check=False,
    )
    assert (tmp_path / "limit").read_text().split() == [str(hard), str(hard)]


def test_the_limit_is_the_hard_one_within_reason():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft <= descriptor_limit() <= max(soft, MAX_DESCRIPTORS)
    if hard <= MAX_DESCRIPTORS:
        assert descriptor_limit() == hard


def test_512_episodes_need_more_than_the_usual_soft_limit_and_64_do_not():
    assert descriptors_needed(512) > 1024 >= descriptors_needed(64)


def test_an_error_whose_cause_is_a_missing_descriptor_says_so():
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        try:
            raise full
        except OSError as error:
            raise ConnectionError("Connection error.") from error
    except ConnectionError as error:
        text = one_line(error)
    assert "ConnectionError: Connection error. (Errno 24: no file descriptor was left)" in text
    assert not is_out_of_descriptors(OSError(errno.ENOSPC, "full"))
    looped = RuntimeError()
    looped.__context__ = looped.__cause__ = looped
    assert not is_out_of_descriptors(looped)


def test_episodes_without_a_descriptor_are_named_in_the_warnings_with_what_to_do(warnings):
    error = one_line(OSError(errno.EMFILE, "Too many open files"))
    failed = episode(member=1, reward=None, status=EpisodeStatus.AGENT_ERROR, error=error)
    warn_of_failures("step 1", [group_of(episode(member=0), failed)])
    assert warnings[1].startswith(
        "step 1: 1 of 2 episodes failed because no file descriptor was left (a process may have "
    )
    assert "ulimit -Hn" in warnings[1] and "ajet.rollout.max_env_worker" in warnings[1]
