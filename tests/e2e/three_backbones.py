"""One toy run on each backbone, in this process and a Ray that the test has; what it recorded."""

import json
import sqlite3
import sys

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from ajet.core.config import load_config
from ajet.core.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from tests.e2e.toy_run import ToyRun

STEPS = 20
SETTINGS = [
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.trainer_common.save_freq=0",
    "ajet.data.train_batch_size=3",
    "ajet.rollout.num_repeat=4",
    "ajet.rollout.max_response_length_in_one_turn=12",
    "ajet.trainer_common.optim.lr=1e-6",
    "ajet.model.dtype=float64",
]


def placement(num_ranks=1, num_engines=1, num_workers=2):
    from ajet.cluster.placement import Node, ResourceRequest, place_processes

    needs = ResourceRequest(
        colocated=True, n_trainer_ranks=num_ranks, n_engines=num_engines, num_workers=num_workers
    )
    return place_processes(needs, [Node("here", 8.0, 0)])


def train_debug(settings):
    from ajet.backbones.debug.backbone import DebugBackbone

    return DebugBackbone(
        load_config("toy.yaml", settings, backbone="debug"), Console(quiet=True)
    ).fit()


def train_verl(settings, **placed):
    from ajet.backbones.colocated.training import ColocatedTraining

    return _train(ColocatedTraining, "verl", settings, placed)


def train_trinity(settings, **placed):
    from ajet.backbones.disaggregated.training import DisaggregatedTraining

    return _train(DisaggregatedTraining, "trinity", settings, placed)


TRAIN = {
    "debug": train_debug,
    "verl": train_verl,
    "trinity": lambda settings: train_trinity([*settings, "trinity.max_staleness=0"]),
}


def run_on_each(folder, settings):
    """Returns a toy run of these settings by backbone, each made in a folder below `folder`."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        for name, train in TRAIN.items():
            run = ToyRun(folder / name)
            patch.chdir(run.folder)
            train(settings)
            made[name] = run
    return made


def _train(training, backbone, settings, placed):
    config = load_config("toy.yaml", settings, backbone=backbone)
    with RunFolder.open(config.run_folder) as folder:
        console = Console(quiet=True)
        processes = placement(**placed)
        return training(config, folder, Interrupt(), console, processes, lambda process: {}).fit()


def episodes(run):
    """Who sampled what and what came of it, without clocks."""
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        return connection.execute(
            "SELECT episode_id, status, seed, episodes.reward, turn_index, token_ids, "
            "policy_version FROM episodes JOIN turns USING (episode_id) "
            "ORDER BY episode_id, turn_index"
        ).fetchall()


def numbers(run, *names):
    """A row a step."""
    lines = [
        json.loads(line) for line in (run.path / "logs/metrics.jsonl").read_text().splitlines()
    ]
    return np.array([[line[name] for name in names] for line in lines])


def weights(run, step=STEPS):
    return load_file(run.path / "checkpoints" / f"step_{step:06d}" / "model.safetensors")
