"""Makes the gateway and exchange of a config, and refuses configs that clients cannot run."""

from __future__ import annotations

from ajet.core.config import AjetConfig
from ajet.core.errors import KeysConflict
from ajet.core.judge import judge_class, judge_spec
from ajet.core.judge.judge import GroupJudge
from ajet.core.net.address import fixed_port
from ajet.core.rollout.batch import BatchSettings
from ajet.serve.exchange.clients import Shares
from ajet.serve.exchange.exchange import EpisodeExchange
from ajet.serve.exchange.gateway import ExchangeGateway

SETS = ("ajet.rollout.user_workflow=client_owned", "ajet.rollout.deterministic=false")
"""An episode must not wait for the next call of another client, so the engine has no waves."""


def check_can_serve(config: AjetConfig) -> None:
    """Raises a `ConfigError` for settings that `ajet serve` does not support."""
    ajet = config.ajet
    algorithm = ajet.trainer_common.algorithm
    trinity = config.trinity if ajet.backbone == "trinity" else None
    refusals = {
        "trinity.mode": trinity
        and trinity.mode in ("bench", "serve")
        and f"{trinity.mode}: it trains on no episode: set both, colocate, or train for one "
        "command and explore for another",
        "trinity.partial_rollout": trinity
        and trinity.partial_rollout == "recompute"
        and "recompute: episodes that clients have ended would be thrown away with their group: "
        "set continue or finish",
        "ajet.kind": ajet.rows is not None
        and f"{ajet.kind}: rows have their replies, so no client runs an episode: use `ajet "
        "--conf`",
        "ajet.stages": bool(ajet.stages) and "serve one stage at a time: a config without stages",
        "ajet.trainer_common.algorithm.adv_estimator": algorithm.estimator.needs_greedy_episode
        and f"{algorithm.adv_estimator}: its greedy episodes need the client's own tasks again: "
        "use another estimator",
        "ajet.serve.shares": _shares_refusal(config),
    }
    for key, reason in refusals.items():
        if reason:
            raise KeysConflict(f"ajet serve: {key}: {reason}")


def _shares_refusal(config: AjetConfig) -> str | None:
    serve = config.ajet.serve
    if not serve.shares.start:
        return None
    if serve.tasks == "config":
        return "the tasks are the config's, not the clients': set ajet.serve.tasks=client"
    settings = BatchSettings.from_config(config)
    if settings.max_rounds or settings.first_round != settings.train_batch_size:
        return "dynamic sampling or over-sampling plans more groups than a batch has: turn it off"
    return None


def make_exchange_gateway(config: AjetConfig, key: str) -> ExchangeGateway:
    """Makes the gateway and its exchange with the settings of `ajet.serve` and the server's key."""
    serve = config.ajet.serve
    return ExchangeGateway(make_exchange(config), key, serve.host, fixed_port(serve.port))


def make_exchange(config: AjetConfig) -> EpisodeExchange:
    """Makes the exchange of one run."""
    serve = config.ajet.serve
    judge = judge_class(judge_spec(config.ajet.task_judge), config.base_dirs)
    batch_size = config.ajet.data.train_batch_size
    return EpisodeExchange(
        heartbeat_s=serve.heartbeat_s,
        episode_timeout_s=config.ajet.rollout.episode_timeout_s,
        tasks=serve.tasks,
        waits_for_group=judge is not None and issubclass(judge, GroupJudge),
        shares=Shares(serve.shares, batch_size) if serve.shares.start else None,
    )
