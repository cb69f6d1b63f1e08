"""What a run on Ray does after a validation, without a Ray: its processes are written out here."""

from types import SimpleNamespace

import pytest

from ajet.cluster.run_processes import RunProcesses


class Engines:
    def __init__(self, events):
        self.events = events

    async def empty_caches(self):
        self.events.append("empty")


class Run:
    def __init__(self, events, is_due):
        self.events, self.is_due = events, is_due

    async def validate_if_due(self, runner, score):
        if self.is_due:
            self.events.append(f"validate with {runner}")
        return self.is_due


class Processes(RunProcesses):
    """The engines and the validator alone."""

    trainer = SimpleNamespace(cross_entropy=None)

    def __init__(self, engines):
        self.engines, self.validator = engines, "workers"


@pytest.mark.parametrize(
    ("is_due", "expected"), [(True, ["validate with workers", "empty"]), (False, [])]
)
async def test_the_engines_forget_what_they_cached_of_a_validation(is_due, expected):
    events = []
    await Processes(Engines(events)).validate_if_due(Run(events, is_due))
    assert events == expected
