"""`trinity.mode` bench and serve from the command line, over a run of two steps, whose model is
shown pictures."""

import json
import re
import signal
import socket

import httpx
import pytest

from ajet.core.images.forms import data_url
from ajet.core.images.image import NO_LIMITS, Image
from tests.e2e.toy_run import SEES, ToyRun, ended, wait_until
from tests.vision_models import picture

LAKE = Image.from_picture(picture(0, 96, 96), NO_LIMITS)
HELD_OUT = (
    "ajet.task_reader.jsonl_dataset_file.validation.file_path=tasks.jsonl",
    "ajet.data.val_max_tasks=3",
    "ajet.trainer_common.test_freq=1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    toy = ToyRun(
        tmp_path_factory.mktemp("modes"),
        "ajet.data.train_batch_size=2",
        "ajet.rollout.num_repeat=2",
        "ajet.trainer_common.total_training_steps=2",
        *HELD_OUT,
        *SEES,
    )
    assert toy.finish(timeout=240) == 0, toy.stderr()
    return toy


def trinity(mode):
    return "--backbone", "trinity", f"trinity.mode={mode}"


def test_bench_finds_the_figures_of_the_runs_own_validation(run):
    assert run.finish(*trinity("bench"), timeout=240) == 0, run.stderr()
    found = [json.loads(line) for line in (run.path / "bench.jsonl").read_text().splitlines()]
    assert [line["step"] for line in found] == [1, 2]
    logged = (run.path / "logs" / "metrics.jsonl").read_text().splitlines()
    lines = [line for line in map(json.loads, logged) if line["step"]]
    validated = [line for line in lines if "held_out/reward" in line]
    for ours, theirs in zip(found, validated, strict=True):
        assert ours == {name: theirs[name] for name in ours}


def test_bench_without_a_checkpoint_is_one_line(run):
    code = run.finish(*trinity("bench"), "ajet.experiment_name=nothing", timeout=120)
    assert code == 1 and "checkpoints: train first" in run.errors()[-1]


def test_serve_on_a_port_that_is_taken_is_one_line_with_a_remedy(run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        key = f"ajet.interchange_server.interchange_server_port={port}"
        code = run.finish(*trinity("serve"), key, timeout=120)
    assert code == 1
    told = f"cannot listen on 127.0.0.1:{port}: Address already in use; set ajet.interchange_server"
    assert told in run.errors()[-1]


def test_serve_answers_in_openais_form_whoever_has_the_key_and_ends_with_ctrl_c(run):
    (run.folder / "stdout").unlink()
    asked = {"model": "any", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    with ended(run.start(*trinity("serve"))) as process:
        assert wait_until(lambda: "Ctrl-C" in run.stdout(), process, 120), run.stderr()
        name, url, key = re.search(r"(.*) at (http\S+), key (\S+);", run.stdout()).groups()
        assert name.endswith("step_000002")
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}) as client:
            replies = [
                client.post("/chat/completions", json=asked | {"seed": seed, "max_tokens": 8})
                for seed in (1, 1, 2)
            ]
            longer = client.post("/chat/completions", json=asked | {"temperature": 0})
            shown = {"type": "image_url", "image_url": {"url": data_url(LAKE)}}
            looked = {"messages": [{"role": "user", "content": [shown]}], "max_tokens": 8}
            sees = client.post("/chat/completions", json=asked | looked)
            blank = {"messages": [{"role": "user", "content": ""}], "max_tokens": 8}
            blind = client.post("/chat/completions", json=asked | blank)
        stranger = httpx.post(f"{url}/chat/completions", json=asked)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    for reply in replies:
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["role"] == "assistant"
        assert 0 < reply.json()["usage"]["completion_tokens"] <= 8
    assert longer.status_code == sees.status_code == 200
    of_picture = sees.json()["usage"]["prompt_tokens"] - blind.json()["usage"]["prompt_tokens"]
    assert of_picture == 16
    assert stranger.status_code == 401
