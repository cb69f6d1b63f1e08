"""One toy run on each backbone, in this process and a Ray that the test has; what it recorded."""

import json
import sqlite3
import sys

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from ajet import assembly
from ajet.backbones.stages import fit_stages
from ajet.core.config import load_config, load_stages
from ajet.core.process.interrupt import Interrupt
from ajet.core.record.run_folder import RunFolder
from tests.e2e.toy_run import ToyRun

STEPS = 8
SETTINGS = [
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.trainer_common.save_freq=0",
    "ajet.data.train_batch_size=3",
    "ajet.rollout.num_repeat=4",
    "ajet.rollout.max_response_length_in_one_turn=12",
    "ajet.trainer_common.optim.lr=1e-6",
    "ajet.model.dtype=float64",
]


def placement(num_ranks=1, num_engines=1, num_workers=2, samples=True):
    from ajet.cluster.placement import Node, ResourceRequest, place_processes

    needs = ResourceRequest(
        colocated=True,
        samples=samples,
        n_trainer_ranks=num_ranks,
        n_engines=num_engines,
        num_workers=num_workers,
    )
    return place_processes(needs, [Node("here", 8.0, 0)])


def train_debug(settings):
    return fit(load_config("toy.yaml", settings, backbone="debug"))


def train_verl(settings, **placed):
    return fit(load_config("toy.yaml", settings, backbone="verl"), **placed)


def train_trinity(settings, **placed):
    return fit(load_config("toy.yaml", settings, backbone="trinity"), **placed)


ON_EACH = {"debug": [], "verl": [], "trinity": ["trinity.max_staleness=0"]}
"""Backbones, and what each needs to train on groups of its own step."""


def run_on_each(folder, settings, stages=""):
    """Returns a toy run of these settings by backbone, each made in a folder below `folder`. With
    `stages`, a part of the YAML, it is a run of several."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        for backbone, own in ON_EACH.items():
            run = made[backbone] = ToyRun(folder / backbone)
            with (run.folder / "toy.yaml").open("a") as file:
                file.write(stages)
            patch.chdir(run.folder)
            configs = load_stages("toy.yaml", [*settings, *own], backbone=backbone)
            if stages:
                fit_stages(configs, fit, Interrupt())
            else:
                fit(configs[0])
    return made


def fit(config, **placed):
    """Trains the run of a config on its backbone."""
    if config.ajet.backbone == "debug":
        from ajet.backbones.debug.training import fit_debug

        return fit_debug(config, Console(quiet=True))
    if config.ajet.backbone == "verl":
        from ajet.backbones.colocated.training import ColocatedTraining as Training
    else:
        from ajet.backbones.disaggregated.training import DisaggregatedTraining as Training
    with RunFolder.open(config.run_folder) as folder:
        console = Console(quiet=True)
        processes = placement(samples=config.samples, **placed)
        parts = (config, folder, Interrupt(), console, processes, lambda process: {})
        return Training(*parts, tasks=assembly.read_tasks(config)).fit()


def episodes(run, stage=""):
    """Who sampled what and what came of it, without clocks; of the run or of one of its stages."""
    with sqlite3.connect(run.path / stage / "episodes.sqlite") as connection:
        return connection.execute(
            "SELECT episode_id, status, seed, episodes.reward, turn_index, token_ids, "
            "policy_version FROM episodes JOIN turns USING (episode_id) "
            "ORDER BY episode_id, turn_index"
        ).fetchall()


def trained_tokens(run):
    """What the update computed for each token, four numbers each, in the order of the turns; and
    the tokens that a bound acted on."""
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        rows = connection.execute(
            "SELECT policy_logprobs, entropies, ratios, reference_logprobs, cuts "
            "FROM trained_tokens ORDER BY episode_id, turn_index"
        ).fetchall()
    arrays = [[np.frombuffer(blob, "<f4") for blob in row[:4]] for row in rows]
    return np.concatenate(arrays, axis=1), [row[4] for row in rows]


def numbers(run, *names, stage=""):
    """A row a step."""
    text = (run.path / stage / "logs/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return np.array([[line[name] for name in names] for line in lines])


def weights(run, step=STEPS, stage=""):
    return load_file(run.path / stage / "checkpoints" / f"step_{step:06d}" / "model.safetensors")
