"""The page over real runs of the embedded models: math with tools, a game with pictures, a debate,
an asynchronous run whose tokens are stale, and one that was killed. Each address is opened in a
browser; a screenshot of each is left in .artifacts/pages, a folder that git ignores."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest

sys.path.append(str(Path(__file__).parents[1] / "read" / "logview"))

from browser_fixtures import opened_browser, opened_page

from ajet.read.logview.server import LogviewServer
from tests.warm_start import warm_run

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".artifacts" / "pages"
SMALL = (
    "ajet.trainer_common.total_training_steps=2", "ajet.data.train_batch_size=4",
    "ajet.rollout.num_repeat=4", "ajet.data.val_max_tasks=4", "ajet.trainer_common.test_freq=1",
    "ajet.trainer_common.mini_batch_num=1",
)  # fmt: skip
RUNS = {
    "math": ("example_math_agent", ()),
    "lake": ("example_frozen_lake", ("ajet.environment.render_save_dir=frames",)),
    "debate": ("example_debate", ()),
    "stale": (
        "example_guess_number",
        (
            "--backbone", "trinity", "--with-ray", "trinity.max_staleness=2",
            "ajet.trainer_common.total_training_steps=6",
        ),
    ),
}  # fmt: skip


def command(name, folder, example, more):
    conf = ROOT / "tutorial" / example / "demo.yaml"
    backbone = () if "--backbone" in more else ("--backbone", "debug")
    options = ["--conf", str(conf), "--exp-dir", str(folder), *backbone]
    return ["-m", "ajet.cli.launcher", *options, *SMALL, f"ajet.experiment_name={name}", *more]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The run folders. `killed` is that of a process that got a SIGKILL behind its first step."""
    folder = tmp_path_factory.mktemp("runs")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name, (example, more) in RUNS.items():
        words, options = command(name, folder, example, more), {"env": environ, "cwd": folder}
        if "--with-ray" in more:
            words = [sys.executable, *words]
            done = subprocess.run(words, capture_output=True, text=True, **options)
        else:
            done = warm_run(words, timeout=900, **options)
        assert done.returncode == 0, done.stderr
    more = ("ajet.trainer_common.total_training_steps=100",)
    killed = [sys.executable, *command("killed", folder, "example_math_openai", more)]
    with subprocess.Popen(killed, env=environ, cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:  # fmt: skip
        assert any("step 1/100" in line for line in process.stdout)
        process.kill()
    return [folder / name for name in (*RUNS, "killed")]


def asked(url, what, **query):
    words = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    with urllib.request.urlopen(f"{url}/api/{what}?{words}") as answer:
        return json.load(answer)


def addresses(url, run):
    """Every page of a run, with the newest episode of the first group of its last trained step."""
    step = max(s["step"] for s in asked(url, "steps", run=run)["steps"] if s["mode"] == "train")
    group = asked(url, "step", run=run, step=step)["groups"][0]
    episode = f"episode/{group['strip'][0]['episode_id']}"
    held_out = asked(url, "episodes", run=run, mode="eval", limit=1, sort="step")["episodes"][0]
    yield from ("", "tasks", "tasks?solved=never", "episodes", "episodes?mode=eval", "difference")
    yield from (f"step/{step}", f"group/{step}/train/{group['group_id']}")
    yield from (f"task/{group['task_id']}", f"compare/{held_out['task_id']}")
    yield from (episode, f"{episode}?view=tokens&token=0.0", f"{episode}?view=frames")
    colours = ("logprob", "advantage", "mask", "ratio", "clip", "entropy", "kl")
    yield from (f"{episode}?colour={colour}" for colour in colours)
    yield f"episode/{held_out['episode_id']}?view=frames"


def test_every_page_of_real_runs_is_shown_without_an_error_and_axe_finds_nothing_serious(runs):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe to check with"
    )
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir(parents=True)
    found = []
    with (
        opened_browser() as browser,
        LogviewServer(runs, port=0) as server,
        opened_page(browser, server.url) as page,
    ):
        page.screenshot(path=PICTURES / "runs.png")
        for run in (path.name for path in runs):
            for address in addresses(server.url, run):
                page.goto(f"{server.url}/#/{run}/{address}".rstrip("/"))
                page.wait_for_function(
                    "() => document.querySelector('#page').dataset.address === location.hash"
                )
                assert page.locator("#error").is_hidden(), (run, address)
                page.set_viewport_size({"width": 1280, "height": 1600})
                file = re.sub(r"[^\w]+", "_", f"{run}_{address or 'overview'}")
                page.screenshot(path=PICTURES / f"{file}.png")
                for each in axe.Axe().run(page).response["violations"]:
                    if each["impact"] in ("serious", "critical"):
                        found.append((run, address, each["id"], each["nodes"][0]["html"][:120]))
    assert found == []
    assert len(list(PICTURES.glob("*.png"))) > 80


def episode_of(url, run, mode):
    """The first episode of a mode."""
    first = asked(url, "episodes", run=run, mode=mode, limit=1, sort="step")["episodes"][0]
    return asked(url, f"episode/{first['episode_id']}", run=run)


def test_the_runs_are_what_they_are_meant_to_be(runs):
    with LogviewServer(runs, port=0) as server:
        rows = asked(server.url, "episodes", run="stale", limit=500)["episodes"]
        assert max(row["staleness"] for row in rows if row["mode"] == "train") > 0
        assert not (runs[-1] / "summary.json").exists(), "the killed run has no result"
        debate = episode_of(server.url, "debate", "train")
        assert len({turn["agent_name"] for turn in debate["turns"]}) == 2
        assert episode_of(server.url, "lake", "eval")["picture"].startswith("data:image/gif")
        assert any(
            call["name"].startswith("tool ")
            for call in episode_of(server.url, "math", "train")["calls"]
        )
