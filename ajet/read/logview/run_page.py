"""The data of the page: a run, its steps, tasks, groups and episodes, as plain dicts. Methods with
an argument take the query of a URL. Everything is read from the run folder, which may still be
growing; nothing is written.
"""

from __future__ import annotations

import base64
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from statistics import fmean, pvariance
from typing import Any, get_args

from ajet.core.config.rollout import Decoding
from ajet.core.environment.frames import gif_file
from ajet.core.errors import CheckpointError, EpisodeNotFound, OptionError
from ajet.core.record.evaluation import paired_difference, share_over_tasks
from ajet.core.record.run_folder import RunFolder, RunOrigin, is_file
from ajet.core.record.scores import read_scores
from ajet.core.record.summary import RunSummary
from ajet.core.record.warning_log import warning_rows
from ajet.core.run.attempt_record import read_attempts
from ajet.read.episode_reader import EpisodeReader, EpisodeRow
from ajet.read.fork_folder import read_forks
from ajet.read.logview.episode_index import NEWEST_FIRST, EpisodeIndex, Row, Selection
from ajet.read.logview.episode_page import episode_data, group_data, pair_data, same_prefix
from ajet.read.logview.run_difference import keys_of, read_config, starts_of
from ajet.read.logview.run_status import MetricSeries, RunStatus
from ajet.read.logview.token_text import TokenText
from ajet.read.recorded_run import RecordedRun, RunImages
from ajet.read.why.report import WhyReport

MAX_PAGE, MAX_TASKS = 500, 500
SEARCH_S = 0.5  # until a search answers with what it knows
MAX_PICTURE_BYTES = 4_000_000
RENDER_SAVE_DIR = "ajet.environment.render_save_dir"
MAX_NUMBER = 2**62  # SQLite's integers have 64 bits
TASK_SORTS = {"task": "task_id", "episodes": "num", "steps": "num_steps"}
TASK_SORTS |= {name: name for name in ("change", "first", "last", "reward")}
Query = Mapping[str, str]
_SELECTED = tuple(field.name for field in fields(Selection))
_KINDS = {"first_step": int, "last_step": int, "min_tokens": int, "max_tokens": int}
_KINDS |= {"min_staleness": int, "min_reward": float, "max_reward": float}


class RunPage:
    """Answers about one run. The tokenizer is loaded for the first episode that is requested."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.metrics_of_run = MetricSeries(folder.metrics_jsonl)
        self.images = RunImages(folder.images_db)
        self._index = EpisodeIndex(folder.episodes_db)
        self._lock = threading.Lock()
        self._text: TokenText | None = None
        self._config: tuple[tuple[int, int] | None, dict[str, str]] = (None, {})

    def close(self) -> None:
        self._index.close()

    def run(self) -> dict[str, Any]:
        """Returns the run's name, result, attempts and warnings, and the values to filter by."""
        folder, summary = self.folder, None
        if is_file(folder.summary_json):
            summary = RunSummary.read(folder.summary_json).as_json()
            summary.pop("held_out", None)  # `changes` has it
        return {
            "name": folder.path.name,
            "folder": str(folder.path),
            "has_tokenizer": is_file(folder.tokenizer / "tokenizer.json"),
            "summary": summary,
            "attempts": [text for name, text in starts_of(folder).items() if name],
            "warnings": self.warnings(),
            **self._index.whole(),
        }

    def origin(self) -> dict[str, Any]:
        """Returns the folder of the run, the YAML that it was started with, and whether an agent
        made its episodes, for the commands that the page shows; the YAML is None if the run has not
        stored it."""
        file = self.folder.origin_json
        yaml_file = RunOrigin.read(file).yaml if is_file(file) else None
        has_agent = not is_file(self.folder.client_json)
        return {"folder": str(self.folder.path), "yaml": yaml_file, "has_agent": has_agent}

    def warnings(self) -> list[dict[str, Any]]:
        """Returns the run's warnings; unreadable rows are skipped."""
        return [
            {"step": row.step, "name": row.name, "text": row.text}
            for row in warning_rows(self.folder.warnings_jsonl)
            if row is not None
        ]

    def metrics(self, query: Query) -> dict[str, Any]:
        """Returns the series in `names`, separated by commas, and the warnings with their steps."""
        names = [name for name in query.get("names", "").split(",") if name]
        return {**self.metrics_of_run.data(names), "warnings": self.warnings()}

    def why(self) -> dict[str, Any]:
        """Returns what holds back the run's reward, as `ajet why` does."""
        return WhyReport.of(RecordedRun(self.folder.path)).as_plain()

    def changes(self) -> dict[str, Any]:
        """Returns what the run changed on the held-out tasks: success at the first and the last
        evaluation with 95 % intervals, their paired difference, and the tasks that rose and fell,
        the largest changes first."""
        steps, rows = self._index.held_out()
        ends = (steps[0], steps[-1]) if steps else (None, None)
        before, after = ([row for row in rows if row["step"] == step] for step in ends)
        was = {row["task_id"]: row for row in before}
        both = [(was[row["task_id"]], row) for row in after if row["task_id"] in was]
        moved = sorted(both, key=lambda pair: -abs(_share(pair[1]) - _share(pair[0])))
        rose = [pair for pair in moved if _share(pair[1]) > _share(pair[0])]
        fell = [pair for pair in moved if _share(pair[1]) < _share(pair[0])]
        # Paired: only tasks that both evaluations played.
        difference = paired_difference(
            {row["task_id"]: _wins(row) for _, row in both},
            {row["task_id"]: _wins(row) for row, _ in both},
        )
        # Runs may also measure the held-out tasks with the decoding that validation does not use.
        second = None
        for decoding in get_args(Decoding):
            first, last = self.metrics_of_run.ends(f"held_out_{decoding}/success")
            if first is not None:
                second = {"decoding": decoding, "before": first, "after": last}
                break
        return {
            "steps": steps,
            "before": _success(before),
            "after": _success(after) if len(steps) > 1 else None,
            "difference": difference.as_json() if len(steps) > 1 and both else None,
            "second": second,
            "num_rose": len(rose),
            "num_fell": len(fell),
            "num_same": len(both) - len(rose) - len(fell),
            "rose": [_change(*pair) for pair in rose[:MAX_TASKS]],
            "fell": [_change(*pair) for pair in fell[:MAX_TASKS]],
        }

    def steps(self) -> dict[str, Any]:
        """Returns each step that has episodes, with their number and successes, by mode."""
        return {"steps": self._index.steps()}

    def episodes(self, query: Query) -> dict[str, Any]:
        """Returns one page of the list, newest first by default; `next` is the value of `after` for
        the next page, or None. A search takes about `SEARCH_S` seconds; `not_searched` is the
        number of older episodes whose words are not indexed yet."""
        values: dict[str, Any] = {name: query.get(name) or None for name in _SELECTED}
        values |= {name: _number(query, name, kind) for name, kind in _KINDS.items()}
        values["is_success"] = {"true": True, "false": False}.get(query.get("is_success", ""))
        which = Selection(**values)
        limit = min(max(_number(query, "limit", int) or 50, 1), MAX_PAGE)
        not_searched = self._index.add_words(SEARCH_S) if which.needs_words else 0
        rows, following = self._index.list(
            which,
            sort=query.get("sort") or NEWEST_FIRST,
            limit=limit,
            after=_number(query, "after", int),
            whole=False,
        )
        count = self._index.count(which, whole=False)
        return {"episodes": rows, "next": following, "count": count, "not_searched": not_searched}

    def step(self, query: Query) -> dict[str, Any]:
        step, mode = _number(query, "step", int) or 0, query.get("mode") or "train"
        steps = [row for row in self._index.steps() if row["mode"] == mode]
        groups: dict[str, list[Row]] = {}
        for row in self._index.step(step, mode):
            groups.setdefault(row["group_id"], []).append(row)
        numbers = [row["step"] for row in steps]
        return {
            "step": step,
            "mode": mode,
            "modes": self._index.whole()["modes"],
            "previous": max((number for number in numbers if number < step), default=None),
            "following": min((number for number in numbers if number > step), default=None),
            "groups": [_group_row(group_id, rows) for group_id, rows in groups.items()],
            "metrics": self.metrics_of_run.rows().get(step, {}),
            "warnings": [warning for warning in self.warnings() if warning["step"] == step],
        }

    def tasks(self, query: Query) -> dict[str, Any]:
        """Returns some tasks of one mode, by default those that fell most first; `next` is the
        value of `after` for the next ones, or None."""
        modes = self._index.whole()["modes"]
        mode = query.get("mode") or ("train" if "train" in modes or not modes else modes[0])
        limit = min(max(_number(query, "limit", int) or 100, 1), MAX_PAGE)
        after, sort = max(_number(query, "after", int) or 0, 0), query.get("sort") or "change"
        tasks = self._index.tasks(mode)
        never = [task for task in tasks if not task["successes"]]
        name = sort.removeprefix("-")  # descending
        if name not in TASK_SORTS:
            raise OptionError(f"sort={sort!r}: choose from {', '.join(TASK_SORTS)}")
        column, selected = TASK_SORTS[name], never if query.get("solved") == "never" else tasks
        listed = [task for task in selected if task[column] is not None]
        listed.sort(key=lambda task: task[column], reverse=sort.startswith("-"))
        listed += [task for task in selected if task[column] is None]
        return {
            "mode": mode,
            "modes": modes,
            "sort": sort,
            "tasks": listed[after : after + limit],
            "num": len(tasks),
            "num_never": len(never),
            "next": after + limit if after + limit < len(listed) else None,
        }

    def task(self, query: Query) -> dict[str, Any]:
        """Returns how one task went over the steps, and its episodes, oldest first."""
        task_id = query.get("task_id", "")
        rows, _ = self._index.list(Selection(task_id=task_id), sort="step", limit=MAX_PAGE)
        if not rows:
            raise EpisodeNotFound(f"no task {task_id!r} in this run")
        steps = self._index.task(task_id)
        held_out = [row for row in rows if row["mode"] == "eval"]
        # A held-out task is compared between evaluations, a training task between steps.
        ends = held_out if len({row["step"] for row in held_out}) > 1 else rows
        return {
            "task_id": task_id,
            "compared": [ends[0]["episode_id"], ends[-1]["episode_id"]],
            "query": rows[0]["query"],
            "steps": steps,
            "count": sum(row["num"] for row in steps),
            "episodes": rows,
        }

    def compare(self, query: Query) -> dict[str, Any]:
        """Returns two episodes of one task side by side and where they differ: `left` and `right`,
        by default the first and last of its evaluations, or of its steps."""
        task = self.task(query)
        pair = [query.get("left") or task["compared"][0], query.get("right") or task["compared"][1]]
        rows = {row["episode_id"]: row for row in task["episodes"]}
        for name in pair:
            if name not in rows:
                raise EpisodeNotFound(f"no episode {name!r} of this task")
        with EpisodeReader(self.folder.episodes_db) as reader:
            data = pair_data(reader, [rows[name] for name in pair], self._token_text())
        return {
            **{name: task[name] for name in ("task_id", "query", "episodes", "count")},
            **data,
            "left": pair[0],
            "right": pair[1],
        }

    def token(self, query: Query) -> dict[str, Any]:
        """Returns how the model continued, at each step, from exactly the text before one sampled
        token: in episodes of the same task that reached it, and under the checkpoints with which
        `ajet inspect score` was used on this episode."""
        turn, token = _number(query, "turn", int) or 0, _number(query, "token", int) or 0
        with EpisodeReader(self.folder.episodes_db) as reader:
            episode = reader.episode(query.get("episode", ""))
            if not 0 <= turn < len(episode.turns):
                raise EpisodeNotFound(f"no turn {turn} in this episode")
            if not 0 <= token < len(episode.turns[turn].token_ids):
                raise EpisodeNotFound(f"no token {token} in this turn")
            task = Selection(task_id=episode.row.task_id)
            rows, _ = self._index.list(task, sort="step", limit=MAX_PAGE)
            same = same_prefix(reader, episode, rows, turn, token, self._token_text())
        scores = read_scores(self.folder, episode.row.episode_id)
        return {
            **same,
            "num_compared": len(rows),
            "scores": [
                {"step": score.step, "logprob": score.turns[turn][token]}
                for score in scores
                if turn < len(score.turns) and token < len(score.turns[turn])
            ],
        }

    def group(self, query: Query) -> dict[str, Any]:
        """Returns one group: its members side by side, where they differ, and its neighbours."""
        group_id, mode = query.get("group_id", ""), query.get("mode") or "train"
        step = _number(query, "step", int) or 0
        members = self._index.group(step, mode, group_id)
        if not members:
            raise EpisodeNotFound(f"no group {group_id!r} in this step")
        groups = list(dict.fromkeys(row["group_id"] for row in self._index.step(step, mode)))
        at = groups.index(group_id)
        with EpisodeReader(self.folder.episodes_db) as reader:
            data = group_data(reader, members, self._token_text())
        return {
            **_group_row(group_id, members),
            **data,
            "step": step,
            "mode": mode,
            "previous": groups[at - 1] if at else None,
            "following": groups[at + 1] if at + 1 < len(groups) else None,
        }

    def find(self, name: str) -> str:
        """Returns the only id that starts with `name`; raises `DataError` otherwise."""
        with EpisodeReader(self.folder.episodes_db) as reader:
            return reader.find(name)

    def episode(self, episode_id: str) -> dict[str, Any]:
        """Returns one episode with its tokens. Raises `DataError` if it does not exist."""
        with EpisodeReader(self.folder.episodes_db) as reader:
            episode = reader.episode(episode_id)
        row = episode.row
        members = self._index.group(row.step, row.mode, row.group_id)
        data = episode_data(episode, members, self._token_text())
        picture = self._picture(row) if row.mode == "eval" and row.rollout_index == 0 else None
        return {
            **data,
            "images": self.images.sizes(episode),
            "picture": picture,
            "forks": read_forks(self.folder, episode_id),
        }

    def _picture(self, row: EpisodeRow) -> str | None:
        """Returns the GIF that `ajet.environment.render_save_dir` wrote, as a data: URL; None if
        there is none in the run folder."""
        below = self._readable_config().get(RENDER_SAVE_DIR, "None")
        if below == "None":
            return None
        file = gif_file(self.folder.path / below, row.step, row.task_id).resolve()
        if not file.is_relative_to(self.folder.path.resolve()) or not is_file(file):
            return None
        content = file.read_bytes()
        if len(content) > MAX_PICTURE_BYTES or not content.startswith(b"GIF8"):
            return None
        return f"data:image/gif;base64,{base64.b64encode(content).decode('ascii')}"

    def comparison(self) -> dict[str, Any]:
        before, after = self.metrics_of_run.ends("held_out/success")
        rewards = self.metrics_of_run.ends("reward/mean")
        rates = {"": (before, after)}  # until the run is complete
        if is_file(self.folder.summary_json):
            rates = RunSummary.read(self.folder.summary_json).rates
        return {
            "name": self.folder.path.name,
            "folder": str(self.folder.path),
            **self.status(),
            "held_out": {
                decoding: dict(zip(("before", "after"), ends, strict=True))
                for decoding, ends in rates.items()
            },
            "first_reward": rewards[0],
            "last_reward": rewards[1],
            "num_warnings": len(self.warnings()),
            "attempts": len(read_attempts(self.folder)),
        }

    def status(self) -> dict[str, Any]:
        """Returns the run's state, start, duration, model, steps and time left."""
        config = self._readable_config()
        return asdict(RunStatus.of(self.folder, self.metrics_of_run, config, time.time()))

    def config(self) -> dict[str, Any]:
        """Returns the config of the run's last start, key by key."""
        return {"keys": keys_of(self.stored_config())}

    def stored_config(self) -> dict[str, str]:
        """Returns the stored config, which is parsed again only after it was rewritten."""
        stat = _stat(self.folder, "config.yaml")
        if stat != self._config[0]:
            self._config = (stat, read_config(self.folder.config_yaml))
        return self._config[1]

    def _readable_config(self) -> dict[str, str]:
        """Returns the stored config; empty if it is damaged, which `config` says."""
        try:
            return self.stored_config()
        except CheckpointError:
            return {}

    def state(self) -> tuple[object, ...]:
        """Returns a value that changes when the run has written more."""
        names = ("episodes.sqlite", "episodes.sqlite-wal", "logs/metrics.jsonl", "summary.json")
        return tuple(_stat(self.folder, name) for name in (*names, "logs/warnings.jsonl"))

    def _token_text(self) -> TokenText:
        with self._lock:
            if self._text is None:
                self._text = TokenText.of(self.folder)
            return self._text


def compared_configs(pages: Mapping[str, RunPage]) -> list[dict[str, Any]]:
    """Returns the keys that differ between the runs, with each run's value (None if absent)."""
    configs = {name: page.stored_config() for name, page in pages.items()}
    keys = sorted({key for config in configs.values() for key in config})
    rows = [
        {"key": key, "values": {name: c.get(key) for name, c in configs.items()}} for key in keys
    ]
    return [row for row in rows if len(set(row["values"].values())) > 1]


def to_json(data: Any) -> bytes:
    """Returns JSON that browsers accept: numbers that are not finite become null."""
    return json.dumps(_finite(data), ensure_ascii=True, allow_nan=False).encode("ascii")


def _group_row(group_id: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns one group of a list. `has_signal` tells whether a member has an advantage other than
    0; None if nothing was trained."""
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    advantages = [row["advantage"] for row in rows if row["advantage"] is not None]
    names = ("episode_id", "rollout_index", "reward", "advantage", "is_success", "status")
    return {
        "group_id": group_id,
        "task_id": rows[0]["task_id"],
        "query": rows[0]["query"],
        "reward": fmean(rewards) if rewards else None,
        "variance": pvariance(rewards) if rewards else None,
        "tokens": fmean(row["num_sampled_tokens"] for row in rows),
        "seconds": max(row["seconds"] for row in rows),
        "has_signal": any(advantages) if advantages else None,
        "strip": [{name: row[name] for name in names} for row in rows],
    }


def _share(row: Row) -> float:
    return row["successes"] / row["num"]


def _wins(row: Row) -> list[bool]:
    return [True] * row["successes"] + [False] * (row["num"] - row["successes"])


def _success(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Returns the success over the tasks of one evaluation, or None if there was none."""
    if not rows:
        return None
    estimate = share_over_tasks([_share(row) for row in rows], max(row["num"] for row in rows))
    return {**estimate.as_json(), "step": rows[0]["step"], "num_tasks": len(rows)}


def _change(before: Row, after: Row) -> dict[str, Any]:
    return {
        "task_id": after["task_id"],
        "query": after["query"],
        "before": [before["successes"], before["num"]],
        "after": [after["successes"], after["num"]],
    }


def _stat(folder: RunFolder, name: str) -> tuple[int, int] | None:
    """Returns a value that changes with the file, None where it is empty or absent: SQLite makes
    an empty write-ahead log for a reader."""
    try:
        stat = (folder.path / name).stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size) if stat.st_size else None


def _number(query: Query, name: str, number_type: type[int] | type[float]) -> Any:
    value = query.get(name, "").strip()
    if not value:
        return None
    try:
        number = number_type(value)
    except ValueError:
        raise OptionError(f"{name}={value!r} is not a number") from None
    if not -MAX_NUMBER < number < MAX_NUMBER:
        raise OptionError(f"{name}={value!r} is out of range")
    return number


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list) else value
