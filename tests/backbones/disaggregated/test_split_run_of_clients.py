"""Explorer and trainer as two processes whose episodes clients run, each killed once."""

import re
import signal
import sqlite3
import time

import openai

from ajet.client import EpisodeClient
from tests.e2e.test_client_episodes import CONFIG, KEY, solve
from tests.e2e.toy_run import ended, environment
from tests.warm_start import ROOT, warm_start

HALF = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.backbones.disaggregated.one_process import fit_in_one_process
from ajet.core.config import load_config
from ajet.serve.exchange.setup import check_can_serve, make_exchange_gateway

config = load_config(
    "serve.yaml",
    [
        "ajet.rollout.user_workflow=client_owned",
        "ajet.serve.heartbeat_s=60",  # no client dies here, and a busy machine is slow
        "trinity.max_staleness=1",
        *sys.argv[1:],
    ],
    backbone="trinity",
)
check_can_serve(config)
gateway = None
if config.trinity.mode == "explore":
    gateway = make_exchange_gateway(config, "{KEY}")
    print("episodes at", gateway.listen().removesuffix("/v1"), flush=True)
fit_in_one_process(config, gateway=gateway)
"""


def start(folder, mode):
    """One half as a process of its own."""
    with (folder / f"{mode}.out").open("w") as out:
        return warm_start(
            ["-c", HALF, f"trinity.mode={mode}"],
            cwd=folder,
            env=environment(),
            stdout=out.fileno(),
            stderr=out.fileno(),
        )


def address(folder, process):
    while True:
        said = (folder / "explore.out").read_text()
        if found := re.search(r"episodes at (\S+)\n", said):
            return found[1]
        assert process.poll() is None, said
        time.sleep(0.05)


def killed(process):
    process.send_signal(signal.SIGKILL)
    process.wait(60)


def assert_saved_before_published(run, version):
    """An explorer that samples with weights that a kill loses would lose what it acknowledged."""
    weights = run / f"weights/v{version:08d}/manifest.json"
    while not weights.exists():
        time.sleep(0.05)
    saved = run / f"checkpoints/step_{version:06d}/state.json"
    assert saved.exists() and saved.stat().st_mtime_ns < weights.stat().st_mtime_ns


def test_what_two_commands_acknowledged_is_trained_once_whichever_is_killed(tmp_path):
    (tmp_path / "serve.yaml").write_text(CONFIG)
    rows = [f'{{"question": "What is {n} plus 2?", "answer": "{n + 2}"}}\n' for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(rows))
    acknowledged = {}

    def play(client, number):
        """Plays so many episodes that are acknowledged, and returns the last one."""
        while number:
            episode = client.begin()
            try:
                reward = solve(episode)
            except openai.AuthenticationError:  # new weights ended it; its task is offered again
                continue
            outcome = episode.end(reward)
            if outcome.state != "retried":
                acknowledged[outcome.episode_id] = outcome.reward
                number -= 1
        return episode

    with (
        ended(start(tmp_path, "train")) as train,
        ended(start(tmp_path, "explore")) as explore,
        EpisodeClient(address(tmp_path, explore), KEY) as client,
    ):
        last = play(client, 8)  # the first step
        assert last.outcome(wait_s=120).trained_step == 1
        assert_saved_before_published(tmp_path / "launcher_record/served", 1)
        play(client, 3)
        killed(train)
        with ended(start(tmp_path, "train")) as train:
            play(client, 2)
            killed(explore)
            with (
                ended(start(tmp_path, "explore")) as explore,
                EpisodeClient(address(tmp_path, explore), KEY) as client,
            ):
                play(client, 16 - 13)
                codes = train.wait(240), explore.wait(60)
    said = [(tmp_path / f"{half}.out").read_text() for half in ("train", "explore")]
    assert codes == (0, 0), said
    with sqlite3.connect(tmp_path / "launcher_record/served/episodes.sqlite") as record:
        found = dict(record.execute("SELECT episode_id, reward FROM episodes WHERE status='ok'"))
    assert found == acknowledged and len(found) == 16
