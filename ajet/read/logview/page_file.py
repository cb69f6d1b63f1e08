"""Writes the page of a run as one HTML file that needs no server, to send to somebody: the page's
scripts, as modules in an import map, and the compressed answers that they would ask a server for.
Its Content-Security-Policy allows no request. Secrets are replaced in texts and in the tokens that
spell them.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError, OptionError
from ajet.core.images.forms import data_url
from ajet.core.record.atomic_file import write_output
from ajet.core.record.run_folder import is_file
from ajet.core.text.redaction import REDACTED, redact
from ajet.read.folders import without_folders
from ajet.read.logview.run_page import MAX_PAGE, RunPage, to_json

MAX_EPISODES = 5000
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
Answers = dict[str, Any]
_IMPORT = re.compile(r'(from |import )"(\.{1,2}/[^"]+)"')


def write_page(page: RunPage, file: Path, episodes: Sequence[str] | None = None) -> tuple[int, int]:
    """Writes the page with these episodes, or all, and with their groups, tasks and steps. Returns
    the size in bytes and the number of episodes."""
    answers = stored_answers(page, episodes)
    text = _html(answers)
    write_output(file, text)
    return len(text.encode()), len(answers["episodes"])


def stored_answers(page: RunPage, episodes: Sequence[str] | None = None) -> Answers:
    """Returns the answers that the file holds, by request, with secrets replaced."""
    rows = _whole(page.episodes, "episodes")["episodes"]
    if episodes is not None:
        names = {page.find(name) for name in episodes}
        rows = [row for row in rows if row["episode_id"] in names]
    if len(rows) > MAX_EPISODES:
        raise OptionError(
            f"{len(rows)} episodes are too many for one file (at most {MAX_EPISODES}); choose with "
            "--episodes ID,…"
        )
    # Without paths of this machine.
    status = without_folders(page.status())
    config = {"keys": without_folders(page.config()["keys"])}
    metrics = page.metrics({"names": ",".join(page.metrics({})["names"])})
    answers: Answers = {
        "runs": {"runs": [page.comparison() | status], "differences": []},
        "run": page.run(),
        "status": status,
        "config": config,
        "origin": {**page.origin(), "folder": page.folder.path.name, "yaml": None},
        "changes": page.changes(),
        "steps": page.steps(),
        "metrics": metrics,
        "episodes": rows,
        "tasks": {},
    }
    is_whole = is_file(page.folder.config_yaml) and is_file(page.folder.origin_json)
    if answers["origin"]["has_agent"] and is_whole:
        with contextlib.suppress(DataError):  # a supervised run has no reward
            answers["why"] = {**page.why(), "run": page.folder.path.name}
    for mode in answers["run"]["modes"]:
        answers["tasks"][mode] = _whole(page.tasks, "tasks", mode=mode)
    for step, mode in sorted({(row["step"], row["mode"]) for row in rows}):
        query = {"mode": mode, "step": str(step)}
        answers[_key("step", query)] = page.step(query)
    for task_id in sorted({row["task_id"] for row in rows}):
        for endpoint, answer in (("task", page.task), ("compare", page.compare)):
            answers[_key(endpoint, {"task_id": task_id})] = answer({"task_id": task_id})
    groups = {(str(row["step"]), row["mode"], row["group_id"]) for row in rows}
    for step, mode, group_id in sorted(groups):
        query = {"step": step, "mode": mode, "group_id": group_id}
        answers[_key("group", query)] = page.group(query)
    for row in rows:
        episode = {**page.episode(row["episode_id"]), "forks": []}
        answers[f"episode/{row['episode_id']}"] = episode
    for item in (answers["run"], answers["runs"]["runs"][0]):
        item["folder"] = page.folder.path.name
    # An image is base64, in which anything might look like a secret.
    keys = {key for row in rows for key in answers[f"episode/{row['episode_id']}"]["images"]}
    images = {f"image/{key}": data_url(page.images.image(key)) for key in sorted(keys)}
    return _redacted(answers) | images


def _whole(
    ask: Callable[[dict[str, str]], dict[str, Any]], name: str, **query: str
) -> dict[str, Any]:
    """Returns an answer whose list `name` comes in pages, with all pages in one."""
    answer = ask(query | {"limit": str(MAX_PAGE)})
    while answer["next"] is not None:
        more = ask(query | {"limit": str(MAX_PAGE), "after": str(answer["next"])})
        answer |= {name: answer[name] + more[name], "next": more["next"]}
    return answer


def _key(endpoint: str, query: dict[str, str]) -> str:
    """Returns the name that static/stored.js gives to a request."""
    return f"{endpoint}?{'&'.join(f'{name}={query[name]}' for name in sorted(query))}"


def _redacted(value: Any) -> Any:
    """Returns the answers without secrets. The texts of tokens are searched as one text."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "texts" in value and "ids" in value:
        # A secret may be split over tokens, none of which looks like one.
        texts, ids = _without_secret_tokens(value["texts"], value["ids"])
        value = {**value, "texts": texts, "ids": ids}
        return {n: v if n in ("texts", "ids") else _redacted(v) for n, v in value.items()}
    return {name: _redacted(item) for name, item in value.items()}


def _without_secret_tokens(
    texts: Sequence[str], ids: Sequence[int | str]
) -> tuple[list[str], list[int | str]]:
    """Replaces all tokens from the first to the last that a secret touches."""
    whole = "".join(texts)
    redacted = redact(whole)
    if redacted == whole:
        return list(texts), list(ids)
    # Only where the two texts differ was something replaced; their common ends stay.
    begin = len(posixpath.commonprefix([whole, redacted]))
    end = len(whole) - len(posixpath.commonprefix([whole[::-1], redacted[::-1]]))
    end = max(end, begin + 1)  # the common ends may overlap
    kept_texts, kept_ids, at = [], [], 0
    for text, token_id in zip(texts, ids, strict=True):
        is_inside = at < end and at + len(text) > begin
        kept_texts.append(REDACTED if is_inside else text)
        kept_ids.append(-1 if is_inside else token_id)
        at += len(text)
    return kept_texts, kept_ids


def _html(answers: Answers) -> str:
    static = files("ajet.read.logview").joinpath("static")
    modules, styles = {}, []
    for path, file in _walk(static, ""):
        if path.endswith(".js"):
            script = file.read_text("utf-8")
            # A module in a data: address has no folder that a relative import could start from.
            folder = posixpath.dirname(path)
            script = _IMPORT.sub(
                lambda match, folder=folder: (
                    f'{match[1]}"ajet/{posixpath.normpath(posixpath.join(folder, match[2]))}"'
                ),
                script,
            )
            encoded = base64.b64encode(script.encode()).decode("ascii")
            modules[f"ajet/{path}"] = f"data:text/javascript;base64,{encoded}"
        elif path.endswith(".css"):
            styles.append(file.read_text("utf-8"))
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<style>{''.join(sorted(styles, key=len))}</style>",
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>',
        '<script type="module">import "ajet/app.js";</script>',
    ]
    packed = base64.b64encode(gzip.compress(to_json(answers), 6, mtime=0)).decode("ascii")
    page = static.joinpath("index.html").read_text("utf-8")
    lines = [line for line in page.splitlines() if "/static/" not in line]
    page = "\n".join(lines).replace("</head>", "\n".join([*head, "</head>"]))
    stored = f'<script type="application/octet-stream" id="stored">{packed}</script>'
    return page.replace("</body>", f"{stored}\n</body>")


def _walk(folder: Traversable, below: str) -> Iterable[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        path = f"{below}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        else:
            yield path, entry
