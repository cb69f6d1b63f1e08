"""Runs whose agent shows pictures: each is stored once, and trained is what was sampled."""

import sqlite3

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from ajet.backbones.debug.replaying import replay_episode
from ajet.backbones.debug.scoring import score_episode
from ajet.cli.launcher import app
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.images.image_ids import keys_in_order
from ajet.core.record.run_folder import RunFolder
from ajet.read.episode_reader import EpisodeReader
from ajet.read.recorded_run import RecordedRun, load_template
from tests.e2e.toy_run import metrics
from tests.in_process_run import train
from tests.vision_models import save_vision_model

TOWER = "ajet.model.images.train_tower=true"
WORKFLOW = """
import numpy as np

from ajet import Workflow, WorkflowOutput


def frame(number):
    return np.random.default_rng(number).integers(0, 256, (16, 24, 3), np.uint8)


class Looks(Workflow):
    async def execute(self, workflow_task, model_tuner):
        number = int(workflow_task.task.main_query.split()[2]) % 3
        content = [{"type": "text", "text": "See"}, {"type": "image", "image": frame(number)}]
        messages = [{"role": "user", "content": content}]
        messages.append(await model_tuner.chat(messages))
        more = [{"type": "image", "image": frame(7)}, {"type": "text", "text": "and now"}]
        messages.append({"role": "user", "content": more})
        messages.append(await model_tuner.chat(messages))
        said = "".join(str(each["content"]) for each in messages[1::2])
        return WorkflowOutput(reward=sum(map(ord, said)) % 7 / 7)
"""


@pytest.fixture
def toy(toy):
    toy.shrink()
    (toy.folder / "looks.py").write_text(WORKFLOW)
    save_vision_model("qwen3_vl", toy.folder / "seeing")
    return toy


def looks(*overrides):
    return [
        "ajet.rollout.user_workflow=looks.py->Looks",
        "ajet.task_judge.judge_protocol=null",
        "ajet.model.path=seeing",
        "ajet.model.images.enabled=true",
        "ajet.rollout.max_response_length_in_one_turn=8",
        *overrides,
    ]


@pytest.mark.parametrize("layout", ["tree", "padded"])
def test_a_run_trains_what_it_sampled_and_keeps_each_image_once(toy, layout):
    layout = f"ajet.trainer_common.batch_layout={layout}"
    dtype = "ajet.model.dtype=float64"
    train(*looks("ajet.trainer_common.total_training_steps=2", layout, dtype))
    folder = RunFolder(toy.path)
    with sqlite3.connect(folder.images_db) as database:
        ((number,),) = database.execute("SELECT count(*) FROM images").fetchall()
    assert 2 <= number <= 4
    for row in metrics(toy):
        assert row["update/logprob_diff_max"] < 1e-6
    template = load_template(folder)
    reader = EpisodeReader(folder.episodes_db)
    for row in reader.newer_than(0):
        first, second = reader.episode(row.episode_id).turns
        assert len(keys_in_order(second.prompt_ids.tolist())) == 2
        assert second.notes.continues
        # The record alone gives back the prompt, images and all.
        assert template.prompt_ids(first.messages) == first.prompt_ids.tolist()
        parts = [
            part for m in second.messages if isinstance(m["content"], list) for part in m["content"]
        ]
        assert [len(part["image"]) for part in parts if part["type"] == "image"] == [12, 12]
    reader.close()


def test_a_recorded_episode_is_scored_replayed_and_forked_with_its_images(toy):
    train(*looks("ajet.trainer_common.total_training_steps=1", "ajet.model.dtype=float64"))
    run = RecordedRun(toy.path)
    with run.reader() as reader:
        episode = reader.episode("000001-train-0000-00")
    (scores,) = score_episode(run, episode, [])
    for scored, turn in zip(scores.turns, episode.turns, strict=True):
        assert scored == pytest.approx(turn.logprobs.tolist(), abs=1e-6)
    assert replay_episode(run, episode, run.config).differences == []
    runner = CliRunner()
    ended = runner.invoke(
        app, ["inspect", "fork", str(toy.path), episode.row.episode_id, "--turn", "1", "-n", "2"]
    )
    assert ended.exit_code == 0, ended.output


def test_a_reference_a_critic_and_adapters_see_the_images(toy):
    steps = "ajet.trainer_common.total_training_steps=1"
    train(*looks(steps, "ajet.trainer_common.use_kl_loss=true"))
    assert metrics(toy)[0]["update/kl"] == pytest.approx(0.0, abs=1e-6)
    new = "ajet.trainer_common.resume=disable"
    train(*looks(steps, new, "ajet.trainer_common.algorithm.adv_estimator=gae"))
    assert metrics(toy)[-1]["critic/grad_norm"] > 0
    train(*looks(steps, new, "ajet.trainer_common.lora.rank=2"))
    assert metrics(toy)[-1]["update/grad_norm"] > 0
    assert metrics(toy)[-1]["update/logprob_diff_max"] < 1e-3


def test_a_tower_that_is_trained_is_the_one_that_is_sampled_with(toy):
    settings = ["ajet.trainer_common.total_training_steps=3", "ajet.model.dtype=float64", TOWER]
    train(*looks(*settings, "ajet.trainer_common.use_kl_loss=true"))
    assert all(row["update/logprob_diff_max"] < 1e-6 for row in metrics(toy))
    assert metrics(toy)[2]["update/kl"] > 0  # the reference keeps the first tower
    first, *_, last = sorted(RunFolder(toy.path).checkpoints.glob("step_*/model.safetensors"))
    before, after = load_file(first), load_file(last)
    tower = [name for name in before if "vision_tower" in name]
    assert sum(bool((after[name] != before[name]).any()) for name in tower) > 10
    new = "ajet.trainer_common.resume=disable"
    train(*looks(*settings, new, "ajet.trainer_common.algorithm.adv_estimator=gae"))
    assert metrics(toy)[-1]["critic/grad_norm"] > 0


SPLIT = ["trinity.mode=explore", "trinity.buffer.url=postgresql+psycopg://a/b"]


@pytest.mark.parametrize(
    ("backbone", "overrides", "reason"),
    [
        ("trinity", SPLIT, "explore carries images in a file, on one machine"),
        ("debug", [TOWER, "ajet.model.images.enabled=false"], "no tower is loaded"),
        ("debug", [TOWER, "ajet.trainer_common.lora.rank=2"], "adapters are trained alone"),
    ],
)
def test_what_is_not_built_is_refused(toy, backbone, overrides, reason):
    with pytest.raises(ConfigError, match=reason):
        load_config("toy.yaml", looks(*overrides), backbone=backbone)


def test_a_model_that_sees_nothing_is_refused(toy):
    overrides = looks("ajet.model.path=embedded:math")
    with pytest.raises(Exception, match=r"sees no images; set ajet\.model\.images\.enabled=false"):
        train(*overrides)
