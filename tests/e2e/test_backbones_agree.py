"""One YAML and one seed on backbone debug and on backbone verl: the same run.

Engines batch otherwise than the debug backbone's waves, so log-probabilities differ in their last
bits; the tokens are the same, as each request's seed draws them.
"""

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

pytestmark = pytest.mark.ray
STEPS = 20
SETTINGS = [
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.trainer_common.save_freq=0",
    "ajet.data.train_batch_size=3",
    "ajet.rollout.num_repeat=4",
    "ajet.rollout.max_response_length_in_one_turn=12",
    "ajet.trainer_common.optim.lr=1e-6",
]


def placement(num_ranks=1, num_engines=1, num_workers=2):
    from ajet.cluster.placement import Needs, Node, place

    needs = Needs(
        colocated=True, n_trainer_ranks=num_ranks, n_engines=num_engines, num_workers=num_workers
    )
    return place(needs, [Node("here", 8.0, 0)])


def train_verl(settings, **placed):
    from ajet.backbones.colocated.training import Training

    config = load_config("toy.yaml", settings, backbone="verl")
    with RunFolder.open(config.run_folder) as folder:
        console = Console(quiet=True)
        processes = placement(**placed)
        return Training(config, folder, Interrupt(), console, processes, lambda process: {}).run()


def train_debug(settings):
    from ajet.backbones.debug.backbone import DebugBackbone

    return DebugBackbone(
        load_config("toy.yaml", settings, backbone="debug"), Console(quiet=True)
    ).fit()


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session):
    """The two run folders."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        for name, train in (("debug", train_debug), ("verl", train_verl)):
            run = ToyRun(tmp_path_factory.mktemp("agree") / name)
            patch.chdir(run.folder)
            train(SETTINGS)
            made[name] = run
    return made


def episodes(run):
    """Who sampled what and what came of it, without clocks."""
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        return connection.execute(
            "SELECT episode_id, status, seed, episodes.reward, turn_index, token_ids, "
            "policy_version FROM episodes JOIN turns USING (episode_id) "
            "ORDER BY episode_id, turn_index"
        ).fetchall()


def numbers(run, *names):
    lines = [
        json.loads(line) for line in (run.path / "logs/metrics.jsonl").read_text().splitlines()
    ]
    return np.array([[line[name] for name in names] for line in lines])


def test_the_episodes_are_the_same_to_the_token(runs):
    assert len(episodes(runs["debug"])) == STEPS * 12 * 2
    assert episodes(runs["verl"]) == episodes(runs["debug"])


def test_losses_rewards_and_the_kl_are_the_same_within_a_ten_thousandth(runs):
    names = ("update/loss", "reward/mean", "update/kl")
    debug, verl = (numbers(runs[name], *names) for name in ("debug", "verl"))
    assert debug.shape == (STEPS, 3)
    assert np.abs(verl - debug).max() < 1e-4


def test_the_final_weights_are_the_same_within_a_thousandth(runs):
    def weights(run):
        return load_file(run.path / "checkpoints" / f"step_{STEPS:06d}" / "model.safetensors")

    debug, verl = weights(runs["debug"]), weights(runs["verl"])
    assert debug.keys() == verl.keys()
    assert max(np.abs(verl[name] - debug[name]).max() for name in debug) < 1e-3
    assert (numbers(runs["verl"], "update/grad_norm") > 1.0).all()  # they moved


def test_each_step_says_what_the_weights_cost_to_bring(runs):
    seconds, num_bytes = numbers(runs["verl"], "sync/seconds", "sync/bytes").T
    assert (seconds > 0).all() and (num_bytes > 1e5).all()
