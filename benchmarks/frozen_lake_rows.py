"""Trained tokens and the update's time on FrozenLake's conversations: trees against rows of turns.

    python benchmarks/frozen_lake_rows.py [--rounds 3] [--out FILE]

`traj_env_agent` plays 16 lakes, 8 episodes each, with the embedded model as it is. Then the same
episodes are trained in three ways, with the same gradient (see `grad_norm`):

    rows, padded    each turn is a row of its own, with all that was said before it
    rows, packed    the same without padding
    tree            one timeline an episode, and a group shares what its episodes share

Seconds are of the processor, a median of rounds in which the three alternate.
"""

import asyncio
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import medians
from report import ROOT, options, write

from ajet import assembly
from ajet.core.advantage import AdvantageOptions
from ajet.core.advantage.grpo import grpo
from ajet.core.config import AjetConfig, load_config
from ajet.core.learning.credit import credit_of
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings

CONF = ROOT / "tutorial/example_frozen_lake/demo.yaml"
SETTINGS = (
    "ajet.environment.custom_envs.FrozenLake4.env_manager_cls=traj_env_agent",
    "ajet.data.max_prompt_length=128",
    "ajet.data.max_response_length=896",
    "ajet.rollout.max_model_len=1024",
)
LAYOUTS = {"rows, padded": "padded", "rows, packed": "packed", "tree": "tree"}
"""Each arm's `trainer_common.batch_layout`."""


def config_of(layout: str) -> AjetConfig:
    return load_config(CONF, overrides=[*SETTINGS, f"ajet.trainer_common.batch_layout={layout}"])


async def episodes(config: AjetConfig) -> list[Group]:
    """One step's rollout."""
    loaded = assembly.load_policy_model(config)
    template = assembly.make_template(loaded)
    engine = assembly.make_engine(config, loaded, template)
    gateway = assembly.make_gateway(config)
    runner = assembly.make_runner(config, engine, template, judge=None, gateway=gateway)
    tasks = make_reader(config).get_training_tasks()
    try:
        num_repeat = config.ajet.rollout.num_repeat
        return await runner.rollout(
            RolloutRequest(tasks, step=1, mode="train", num_repeat=num_repeat)
        )
    finally:
        gateway.close()
        await engine.close()


def rows(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The same calls with a row for each: what came before a call is context in its row."""
    return [_row(sample, at) for sample in samples for at in range(len(sample.spans))]


def _row(sample: TrainingSample, at: int) -> TrainingSample:
    span = sample.spans[at]
    mask = np.zeros(span.stop, dtype=np.bool_)
    mask[span.start :] = True
    return replace(
        sample,
        token_ids=sample.token_ids[: span.stop],
        loss_mask=mask,
        logprobs=np.where(mask, sample.logprobs[: span.stop], 0).astype(np.float32),
        advantages=np.where(mask, sample.advantages[: span.stop], 0).astype(np.float32),
        spans=(span,),
    )


def make_policy(layout: str) -> Policy:
    config = config_of(layout)
    return Policy(assembly.load_policy_model(config).model, UpdateSettings.from_config(config))


def updates(arms: dict[str, list[TrainingSample]], rounds: int) -> dict[str, dict[str, Any]]:
    """What an update of each arm computes and takes."""
    policies = {name: make_policy(LAYOUTS[name]) for name in arms}
    found: dict[str, dict[str, Any]] = {}
    for name, samples in arms.items():
        metrics = policies[name].update(samples)
        found[name] = {
            "rows": len(samples),
            "tokens_in_rows": sum(map(len, samples)),
            "tokens_computed": int(metrics["tree_tokens"]),
            "tokens_trained": sum(sample.num_trained for sample in samples),
            "grad_norm": metrics["grad_norm"],
        }
    ways = {name: partial(policies[name].update, arms[name]) for name in arms}
    for name, seconds in medians(ways, rounds).items():
        found[name]["median_cpu_s"] = round(seconds, 3)
    return found


def shape(groups: Sequence[Group]) -> dict[str, Any]:
    turns = [len(t.turns) for group in groups for t in group.valid]
    return {
        "groups": len(groups),
        "episodes": len(turns),
        "turns_mean": round(statistics.fmean(turns), 2),
        "turns_largest": max(turns),
    }


def main() -> None:
    args = options(__doc__, "frozen_lake_rows", rounds=3).parse_args()
    torch.set_num_threads(1)
    groups = asyncio.run(episodes(config_of("tree")))
    samples = to_samples(groups, grpo([credit_of(group) for group in groups], AdvantageOptions()))
    apart = rows(samples)
    arms = updates({"rows, padded": apart, "rows, packed": apart, "tree": samples}, args.rounds)
    tree = arms["tree"]
    report = {
        "torch": torch.__version__,
        "threads": 1,
        "shape": shape(groups),
        "arms": arms,
        "tokens_ratio": round(arms["rows, packed"]["tokens_computed"] / tree["tokens_computed"], 2),
        "speedup": {
            name: round(arm["median_cpu_s"] / tree["median_cpu_s"], 2) for name, arm in arms.items()
        },
    }
    write(args.out, report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
