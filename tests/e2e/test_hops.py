"""How many calls lie between a training step and the model, counted in a real step."""

import importlib.util
from pathlib import Path

import pytest


def hops_module():
    path = Path(__file__).parents[2] / "scripts" / "hops.py"
    spec = importlib.util.spec_from_file_location("hops", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_in_one_process_ten_calls_lead_from_the_step_to_the_engine():
    found = hops_module().trace("debug")
    assert found.processes[0][0] == "DebugTraining._train_step"
    assert found.processes[-1][-1] == "InProcessEngine.generate"
    assert (found.num_calls, found.num_process_hops) == (10, 0)


@pytest.mark.ray
@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_on_a_cluster_eighteen_calls_and_two_processes_lead_there(backbone):
    found = hops_module().trace(backbone)
    assert found.num_calls <= 18 and found.num_process_hops == 2
    assert [calls[0].partition(".")[0] for calls in found.processes[1:]] == [
        "RolloutWorker",
        "EngineProcess",
    ]
