"""A browser for the page, and a run with something to find on it; the tests that need the browser
are skipped where there is none."""

import shutil
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from logview_fixtures import HOSTILE, byte_tokenizer
from record_fixtures import advantages_of, episode, group_of, sample_of, two_turns

from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.warning_log import RunWarning, WarningLog
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.trajectory.trajectory import EpisodeStatus, Group

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")


def chromium():
    """The browser's path. Skips the test where it or Playwright is not installed."""
    pytest.importorskip("playwright.sync_api", reason="no Playwright to drive a browser with")
    found = next(filter(None, map(shutil.which, EXECUTABLES)), None)
    if found is None:
        pytest.skip(f"no browser to look at the page with ({', '.join(EXECUTABLES)})")
    return found


@contextmanager
def opened_browser():
    executable = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened_page(browser, url, **context):
    """A page on which nothing may go wrong: no error in its console, no request beyond `url`."""
    with browser.new_context(viewport={"width": 1280, "height": 900}, **context) as opened:
        page, wrong = opened.new_page(), []
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request",
            lambda sent: None if sent.url.startswith((url, "data:")) else wrong.append(sent.url),
        )
        page.goto(url)
        page.wait_for_selector("main h1")
        yield page
        assert wrong == [], wrong


def _held_out(step, *rewards):
    return [
        group_of(
            episode(step=step, mode="eval", group=task, reward=reward, query=f"Held out {task}?")
        )
        for task, reward in enumerate(rewards)
    ]


def _trained(store, step, group, query, rewards, **more):
    members = [
        episode(
            step=step, group=group, member=number, query=query, reward=reward,
            turns=two_turns(query)[: 1 if reward else 2], **more,
        )
        for number, reward in enumerate(rewards)
    ]  # fmt: skip
    for member in members:
        member.workflow_task.task.metadata["answer"] = "#### 42"
    mean = sum(rewards) / len(rewards)
    advantages = {
        m.episode_id: advantages_of(m, r - mean) for m, r in zip(members, rewards, strict=True)
    }
    samples = [sample_of(m) for m in members if len(m.turns) == 2]
    group = Group(members[0].group_id, tuple(members), task=members[0].workflow_task.task)
    store.write(step, [group], advantages, samples, _numbers(members) if any(rewards) else None)


def _numbers(members):
    """Of the first calls: ratio 1.3 of the first token, which is cut, and 1 of the others;
    entropies that fall."""
    tokens = TrainedTokens()
    for member in members:
        logprobs = np.array(member.turns[0].completion.logprobs, np.float32)
        row = partial(tokens.row, member.episode_id, 0, length=len(logprobs))
        row(name="policy_logprobs")[:] = logprobs + np.log([1.3, 1, 1]).astype(np.float32)
        row(name="ratios")[:] = 1.3, 1.0, 1.0
        row(name="entropies")[:] = 2.5, 1.5, 0.5
        row(name="reference_logprobs")[:] = logprobs - np.float32(0.5)
        tokens.cut(member.episode_id, 0, "high", [0])
    return tokens


def write_trained_run(path):
    """Two steps: of four held-out tasks two rise and one falls; step 2 has a group with signal, one
    without and an episode that timed out; a warning with markup at step 2."""
    with RunFolder.open(path) as folder, EpisodeStore(folder.episodes_db) as store:
        folder.tokenizer.mkdir()
        byte_tokenizer().save(str(folder.tokenizer / "tokenizer.json"))
        store.write(0, _held_out(0, 0.0, 0.0, 1.0, 1.0))
        _trained(store, 1, 0, "How many pears?", (0.0, 1.0))
        _trained(store, 2, 0, "How many apples?", (0.0, 1.0, 1.0))
        _trained(store, 2, 1, "Why is the lake blue?", (0.0, 0.0))
        late = episode(
            step=2, group=7, query=HOSTILE, reward=None, status=EpisodeStatus.TIMEOUT, turns=(),
            error="the deadline of 60 s",
        )  # fmt: skip
        store.write(2, [group_of(late)])
        store.write(2, _held_out(2, 1.0, 1.0, 0.0, 1.0))
        metrics = MetricsLogger([], folder)
        metrics.log(0, {"held_out/success": 0.5})
        for step in (1, 2):
            metrics.log(step, {
                "reward/mean": step / 4, "reward/std": 0.5, "reward/success": step / 4,
                "update/kl": 0.01 * step, "update/entropy": 1.0 / step, "other/number": 7.0 * step,
                "rollout/seconds": 5.0, "update/seconds": 2.0,
            })  # fmt: skip
        metrics.log(2, {"held_out/success": 0.75})
        metrics.close()
        log = WarningLog(folder.warnings_jsonl)
        log.add(RunWarning(2, "<b onclick=alert(3)>", HOSTILE))
        log.close()
    return folder
