"""Builds the data of the page: run, list and episode as plain dicts for JSON.

An episode's turn carries only the prompt tokens that its base turn does not have (see
core/record/episode_schema.py); the page assembles the whole prompt when the user opens it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.record.episode_reader import (
    EpisodeFilter,
    EpisodeReader,
    EpisodeRecord,
    TurnRecord,
)
from ajet.core.record.run_folder import RunFolder, is_file
from ajet.core.record.summary import RunSummary
from ajet.core.record.warning_log import warning_rows
from ajet.core.run.attempt_record import read_attempts
from ajet.logview.token_text import TokenText

MAX_PAGE = 500
MAX_NUMBER = 2**62  # SQLite's integers have 64 bits
Query = Mapping[str, str]


def run_data(folder: RunFolder) -> dict[str, Any]:
    """Returns the run's name, its attempts and warnings, and the choices of the filters."""
    data: dict[str, Any] = {
        "name": folder.path.name,
        "folder": str(folder.path),
        "has_tokenizer": is_file(folder.tokenizer / "tokenizer.json"),
        "summary": None,
        "attempts": [attempt.describe() for attempt in read_attempts(folder)],
        "warnings": [
            {"step": row.step, "name": row.name, "text": row.text}
            for row in warning_rows(folder.warnings_jsonl)
            if row is not None
        ],
        "count": 0,
        "statuses": [],
        "modes": [],
    }
    if is_file(folder.summary_json):
        data["summary"] = RunSummary.read(folder.summary_json).as_json()
    if is_file(folder.episodes_db):
        with EpisodeReader(folder.episodes_db) as reader:
            data["count"] = reader.count()
            data["statuses"], data["modes"] = reader.values("status"), reader.values("mode")
    return data


def list_data(folder: RunFolder, query: Query) -> dict[str, Any]:
    """Returns one page of the list, newest first; `next` is the id after which the following page
    begins, or None."""
    if not is_file(folder.episodes_db):  # the run is still starting
        return {"episodes": [], "next": None, "count": 0}
    which = filter_of(query)
    limit = min(max(_number(query, "limit", int) or 50, 1), MAX_PAGE)
    with EpisodeReader(folder.episodes_db) as reader:
        rows = reader.list(which, limit=limit, after=_number(query, "after", int))
        count = reader.count(which)
    following = rows[-1].id if len(rows) == limit else None
    return {"episodes": [asdict(row) for row in rows], "next": following, "count": count}


def episode_data(folder: RunFolder, episode_id: str, text: TokenText) -> dict[str, Any]:
    """Returns one episode with its tokens, and the members of its group."""
    with EpisodeReader(folder.episodes_db) as reader:
        episode = reader.episode(episode_id)
        same_group = EpisodeFilter(
            group_id=episode.row.group_id,
            mode=episode.row.mode,
            first_step=episode.row.step,
            last_step=episode.row.step,
        )
        members = sorted(reader.list(same_group, limit=MAX_PAGE), key=lambda row: row.rollout_index)
    return {
        **asdict(episode.row),
        **_details(episode),
        "members": [
            {"episode_id": m.episode_id, "reward": m.reward, "status": m.status} for m in members
        ],
        "turns": [turn_data(turn, text) for turn in episode.turns],
    }


def turn_data(turn: TurnRecord, text: TokenText) -> dict[str, Any]:
    """Returns one call: the new part of its prompt, then the sampled tokens with their numbers."""
    new_ids = turn.prompt_ids[turn.prompt_kept :].tolist()
    names = ("turn_index", "agent_name", "target_tag", "trainable", "finish_reason")
    return {
        **{name: getattr(turn, name) for name in names},
        "policy_version": turn.policy_version,
        "reward": turn.reward,
        "state_key": turn.state_key,
        "seconds": turn.ended_s - turn.started_s,
        "base_turn": turn.base_turn,
        "prompt_kept": turn.prompt_kept,
        "tools": turn.tools,
        "messages": turn.messages,
        "reply": turn.reply,
        "notes": turn.notes,
        "prompt": {"ids": new_ids, "texts": text(new_ids)},
        "sampled": {
            "ids": turn.token_ids.tolist(),
            "texts": text(turn.token_ids),
            "logprobs": turn.logprobs.tolist(),
            "advantages": None if turn.advantages is None else turn.advantages.tolist(),
            "mask": None if turn.loss_mask is None else turn.loss_mask.tolist(),
        },
    }


def filter_of(query: Query) -> EpisodeFilter:
    """Returns the filter that a query string asks for; an empty value is no condition."""
    success = {"true": True, "false": False}.get(query.get("is_success", ""))
    return EpisodeFilter(
        first_step=_number(query, "first_step", int),
        last_step=_number(query, "last_step", int),
        mode=query.get("mode") or None,
        status=query.get("status") or None,
        is_success=success,
        min_reward=_number(query, "min_reward", float),
        max_reward=_number(query, "max_reward", float),
        text=query.get("text") or None,
        group_id=query.get("group_id") or None,
    )


def to_json(data: Any) -> bytes:
    """Returns JSON that browsers read: a number that is not finite becomes null."""
    return json.dumps(_finite(data), ensure_ascii=True, allow_nan=False).encode("ascii")


def _details(episode: EpisodeRecord) -> dict[str, Any]:
    names = ("reward_breakdown", "timings", "metadata", "log_metrics")
    return {name: getattr(episode, name) for name in names}


def _number(query: Query, name: str, kind: type[int] | type[float]) -> Any:
    value = query.get(name, "").strip()
    if not value:
        return None
    try:
        number = kind(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is not a number") from None
    if not -MAX_NUMBER < number < MAX_NUMBER:
        raise ConfigError(f"{name}={value!r} is no number of an episode")
    return number


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list) else value
