"""What a run on Ray does at its start and after a validation, without a Ray: its processes are
written out here."""

from types import SimpleNamespace

import pytest

from ajet.cluster.run_processes import RunProcesses
from ajet.core.errors import ConfigError


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


class Told:
    """Any of the processes: keeps its calls, and fails at the one named."""

    def __init__(self, name, events, fails=None):
        self.name, self.events, self.fails = name, events, fails

    async def check(self, *arguments):
        self.events.append((f"{self.name}.check", *arguments))
        if self.fails == "check":
            raise ConfigError("no vllm for GPUs is installed on this machine")

    async def start(self, *arguments):
        self.events.append((f"{self.name}.start",))


class Starting(RunProcesses):
    """Processes that have been made, with engines that are vLLM servers on GPUs."""

    def __init__(self, events):
        self._engine, self._on_gpu = "vllm", True
        self.workers = Told("workers", events)
        self.engines = Told("engines", events, fails="check")
        self.trainer = Told("trainer", events)


async def test_a_server_that_an_engines_machine_lacks_is_said_before_the_trainer_loads_its_model():
    events = []
    with pytest.raises(ConfigError, match="no vllm for GPUs is installed"):
        await Starting(events).start()
    assert events == [("workers.check",), ("engines.check", "vllm", True)]
