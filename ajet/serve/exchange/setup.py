"""Makes the gateway and exchange of a config, and refuses configs that clients cannot run."""

from __future__ import annotations

from ajet.core.config import AjetConfig
from ajet.core.errors import KeysConflict
from ajet.core.judge import judge_class, judge_spec
from ajet.core.judge.judge import GroupJudge
from ajet.serve.exchange.exchange import EpisodeExchange
from ajet.serve.exchange.gateway import ExchangeGateway


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
    }
    for key, reason in refusals.items():
        if reason:
            raise KeysConflict(f"ajet serve: {key}: {reason}")


def make_exchange_gateway(config: AjetConfig, key: str) -> ExchangeGateway:
    """Makes the gateway and its exchange with the settings of `ajet.serve` and the server's key."""
    serve = config.ajet.serve
    judge = judge_class(judge_spec(config.ajet.task_judge), config.base_dirs)
    exchange = EpisodeExchange(
        heartbeat_s=serve.heartbeat_s,
        episode_timeout_s=config.ajet.rollout.episode_timeout_s,
        tasks=serve.tasks,
        waits_for_group=judge is not None and issubclass(judge, GroupJudge),
    )
    port = None if serve.port == "auto" else serve.port
    return ExchangeGateway(exchange, key, serve.host, port)
