"""verl's and ROLL's configs of models that see images: what is shown, what is trained, a step."""

import io
import json
import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console

from ajet.backbones.debug.training import fit_debug
from ajet.convert import convert, yaml_text
from ajet.convert.draft import TRAIN_TOWER, is_tower
from ajet.core.config import load_config
from ajet.core.environment.registry import environment_maker
from ajet.core.images.image_ids import keys_in_order
from ajet.core.record.run_folder import RunFolder
from ajet.read.episode_reader import EpisodeReader
from tests.convert.test_convert import TOOLS, left_out, loaded, written
from tests.vision_models import picture, save_vision_model

VERL = """
MODEL=${MODEL:-Qwen/Qwen2.5-VL-7B-Instruct}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=rows.parquet \\
    data.train_batch_size=512 \\
    data.max_prompt_length=1024 \\
    data.max_response_length=2048 \\
    data.image_key=images \\
    data.return_multi_modal_inputs=True \\
    actor_rollout_ref.model.path=$MODEL \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.multi_stage_wake_up=True \\
    actor_rollout_ref.rollout.n=5 \\
    +actor_rollout_ref.rollout.limit_images=3 \\
    +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=2 "$@"
"""
ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
FREEZE = f"{ACTOR}.freeze_vision_tower"
ADAPTERS, MEGATRON = f"{MODEL}.lora_rank=16", f"+{MODEL}.lora.rank=16"


def verl(folder, *overrides):
    return convert("verl", written(folder, VERL, "run.sh"), overrides)


def test_a_model_of_verls_that_sees_images_sees_them_here(tmp_path):
    result = verl(tmp_path)
    ajet = loaded(result, tmp_path).ajet
    assert ajet.model.images.enabled and ajet.model.images.max_images == 3
    assert ajet.model.images.train_tower  # verl's default
    trainer, rollout = ajet.trainer_common, ajet.rollout
    assert (trainer.nnodes, trainer.n_trainer_ranks, trainer.n_gpus_per_node) == (2, None, 8)
    assert (rollout.name, rollout.tensor_model_parallel_size) == ("vllm", 2)
    assert (ajet.data.train_batch_size, rollout.num_repeat, trainer.mini_batch_num) == (512, 5, 4)
    assert left_out(result) == {
        "data.return_multi_modal_inputs": "machine",
        "actor_rollout_ref.rollout.multi_stage_wake_up": "machine",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache": "machine",
    }


@pytest.mark.parametrize(
    ("overrides", "tower"),
    [
        ([f"{FREEZE}=False"], "trained"),
        ([f"{FREEZE}=True"], "frozen"),
        ([ADAPTERS], "a line"),  # "all-linear" has the tower's layers too
        ([ADAPTERS, f"{MODEL}.exclude_modules='.*visual.*'"], "frozen"),
        ([ADAPTERS, f"{MODEL}.exclude_modules=[visual,lm_head]"], "a line"),
        ([f"{MODEL}.exclude_modules='.*visual.*'"], "trained"),  # there are no adapters
        ([MEGATRON], "frozen"),
        ([MEGATRON, f"+{MODEL}.lora.freeze_vision_model=False"], "a line"),
    ],
)
def test_a_tower_that_verl_trains_is_trained_or_one_line(overrides, tower, tmp_path):
    result = verl(tmp_path, *overrides)
    lines = [each for each in result.left_out if each.key == FREEZE]
    assert [each.reason for each in lines] == (tower == "a line") * [
        "adapters are those of the language model; here the tower has none"
    ]
    assert result.values.get(TRAIN_TOWER, False) == (tower == "trained")


def test_modules_that_are_not_the_towers_are_named(tmp_path):
    assert left_out(verl(tmp_path, f"{MODEL}.exclude_modules=[visual,lm_head]"))[
        f"{MODEL}.exclude_modules"
    ] == "algorithm"  # fmt: skip
    assert is_tower("vision_model") and is_tower(["model.visual", ".*vision_tower.*"])
    assert not is_tower(None) and not is_tower([]) and not is_tower("lm_head")


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", True),
        ("zai-org/GLM-4.1V-9B-Thinking", True),
        ("OpenGVLab/InternVL3_5-2B", True),
        ("HuggingFaceTB/SmolVLM-256M-Instruct", True),
        ("/models/llava-onevision", True),
        ("Qwen/Qwen2.5-7B-Instruct", False),
        ("mistralai/Mistral-7B-Instruct-v0.3", False),
        ("google/gemma-3-4b-it", False),  # there is no telling: a line says what to set
    ],
)
def test_a_name_tells_whether_a_model_sees_images(name, sees, tmp_path):
    result = verl(tmp_path, f"{MODEL}.path={name}")
    assert ("ajet.model.images.enabled" in result.values) == sees
    assert result.values["ajet.rollout.name"] == "vllm"
    assert (TRAIN_TOWER in result.values) == sees
    assert ("data.image_key" in left_out(result)) != sees


def test_a_name_that_begins_with_an_unknown_folder_tells_it_too(tmp_path):
    script = VERL.replace("${MODEL:-Qwen", "${MODEL:-$MODELS")
    result = convert("verl", written(tmp_path, script, "run.sh"))
    assert list(result.blanks) == ["ajet.model.path"]
    assert result.values["ajet.model.images.enabled"] is True


def test_what_verls_rows_may_have_besides_images_is_said(tmp_path):
    keys = ["data.image_key=pictures", "data.video_key=videos"]
    keys += ["+data.mm_processor_kwargs.max_pixels=401408"]
    result = verl(tmp_path, *keys)
    reasons = {each.key: (each.reason, each.category) for each in result.left_out}
    assert reasons["data.image_key"] == (
        "rename the column pictures: it is images here, or image", "algorithm"
    )  # fmt: skip
    assert reasons["data.video_key"] == ("a row with videos or sound is refused", "machine")
    assert reasons["data.mm_processor_kwargs"][1] == "algorithm"
    assert "data.video_key" not in left_out(convert("verl", TOOLS, ["+data.video_key=videos"]))


ROLL = """
sequence_length: 512
pretrain: Qwen/Qwen2.5-VL-3B-Instruct
rollout_batch_size: 4
max_steps: 1
eval_steps: 0
adv_estimator: grpo
use_kl_loss: false
init_kl_coef: 0.0
reward_normalization: {grouping: traj_group_id, method: mean_std}
actor_train: {device_mapping: 'list(range(0,8))'}
actor_infer:
  device_mapping: list(range(0,8))
  generating_args: {max_new_tokens: 4, temperature: 0.99}
  strategy_args:
    strategy_name: vllm
    strategy_config: {limit_mm_per_prompt: {image: 10}}
train_env_manager: {num_env_groups: 2, group_size: 2, tags: [Lake], num_groups_partition: [2]}
val_env_manager: {num_env_groups: 2, group_size: 1, tags: [Boxes], num_groups_partition: [2]}
custom_envs:
  Lake: &game
    env_type: frozen_lake
    max_steps: 2
    max_tokens_per_step: 4
    env_manager_cls: roll.pipeline.agentic.env_manager.vl_traj_env_manager.VLTrajEnvManager
    agent_system_template: Play.
    pre_step_template: "Turn {turn_idx}: "
    next_step_template: " {actions_left} left."
    reward_template: "Reward: {reward}"
    env_config:
      render_mode: rgb_array
      action_pattern: <answer>(.*?)</answer>
      is_slippery: false
  Boxes:
    <<: *game
    env_type: sokoban
    env_config: {render_mode: rgb_array, dim_room: [6, 6], num_boxes: 1, search_depth: 10}
"""
FROZEN_MODULES = "actor_train.model_args.freeze_module_prefix"


def test_rolls_pictures_are_shown_between_its_two_texts(tmp_path):
    result = convert("roll", written(tmp_path, ROLL))
    ajet = loaded(result, tmp_path).ajet
    assert ajet.model.images.enabled and ajet.model.images.max_images == 10
    assert ajet.rollout.name == "auto"
    lake, boxes = (ajet.environment.custom_envs[tag] for tag in ("Lake", "Boxes"))
    assert lake.agent_template == "Turn {turn_idx}: {observation} {actions_left} left."
    assert (lake.env_manager_cls, lake.agent_system_template) == (
        "traj_env_agent", "Play.\n{env_instruction}"
    )  # fmt: skip
    assert lake.env_config == {"is_slippery": False, "view": "image", "show_neighbours": False}
    assert boxes.env_config == {
        "dim_room": [6, 6], "num_boxes": 1, "search_depth": 10, "view": "image"
    }  # fmt: skip
    for custom in (lake, boxes):
        made = environment_maker(custom.env_type, custom.env_config, (), "here")()
        observation, _ = made.reset(seed=1, options={"split": "train"})
        pieces = observation if isinstance(observation, tuple) else (observation,)
        assert [isinstance(piece, np.ndarray) for piece in pieces] == [True]
    assert {key: category for key, category in left_out(result).items() if "envs" in key} == {
        "custom_envs.Lake.reward_template": "machine",
        "custom_envs.Boxes.reward_template": "machine",
    }
    assert FROZEN_MODULES not in left_out(result)


@pytest.mark.parametrize(
    ("value", "is_said", "is_trained"),
    [("vision_model", False, False), ("'visual,lm_head'", True, False), ("null", False, True)],
)
def test_the_parts_that_roll_freezes_are_frozen_or_said(value, is_said, is_trained, tmp_path):
    result = convert("roll", written(tmp_path, ROLL), [f"+{FROZEN_MODULES}={value}"])
    assert (FROZEN_MODULES in left_out(result)) == is_said
    assert result.values.get(TRAIN_TOWER, False) == is_trained


def test_text_environments_of_roll_load_no_tower(tmp_path):
    text = ROLL.replace("rgb_array", "text").replace("vl_traj_env_manager.VLTraj", "a.Traj")
    result = convert("roll", written(tmp_path, text))
    assert not {key for key in result.values if "images" in key or key == "ajet.rollout.name"}
    assert FROZEN_MODULES not in left_out(result)
    said = left_out(result)["custom_envs.Lake.pre_step_template"]
    assert said == "algorithm"  # TrajEnvManager does not know it


def png(seed):
    file = io.BytesIO()
    Image.fromarray(picture(seed)).save(file, "PNG")
    return file.getvalue()


def trained(result, folder, *overrides):
    """Trains one step on this CPU; returns the turns of its episodes, and the number of images."""
    file = folder / "converted.yaml"
    file.write_text(yaml_text(result))
    alone = ["n_gpus_per_node=auto", "fsdp_config.activation_checkpointing=false", "save_freq=-1"]
    run = [
        "ajet.model.device=cpu",
        "ajet.experiment_name=seeing",
        f"ajet.experiment_dir={folder / 'run'}",
        "ajet.trainer_common.total_training_steps=1",
        "ajet.trainer_common.val_before_train=false",
        "ajet.trainer_common.logger=[console]",
        *(f"ajet.trainer_common.{each}" for each in alone),
        *overrides,
    ]
    fit_debug(load_config(file, run, backbone="debug"), Console(file=io.StringIO()))
    run_folder = RunFolder(folder / "run")
    (step,) = map(json.loads, run_folder.metrics_jsonl.read_text().splitlines())
    assert step["update/optimizer_steps"] == 1 and step["update/grad_norm"] > 0
    with sqlite3.connect(run_folder.images_db) as database:
        ((number,),) = database.execute("SELECT count(*) FROM images").fetchall()
    reader = EpisodeReader(run_folder.episodes_db)
    episodes = [reader.episode(row.episode_id) for row in reader.newer_than(0)]
    return [episode.turns for episode in episodes], number


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The folder of a tiny checkpoint, whose name says that it sees images."""
    monkeypatch.chdir(tmp_path)
    save_vision_model("qwen2_5_vl", tmp_path / "Tiny-VL")
    return tmp_path


SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str) + ord(solution_str[-1]) / 1000
"""


def test_verls_rows_of_images_train(tiny):
    rows = [
        {
            "data_source": "geo3k",
            "prompt": [{"role": "user", "content": f"<image>What is {number}?"}],
            "images": [{"bytes": png(number)}],
            "reward_model": {"style": "rule", "ground_truth": str(number)},
        }
        for number in range(2)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tiny / "rows.parquet")
    small = ["data.train_batch_size=2", f"{ACTOR}.ppo_mini_batch_size=2"]
    small += ["data.max_prompt_length=200", "data.max_response_length=4"]
    (tiny / "score.py").write_text(SCORE)
    small.append("custom_reward_function.path=score.py")
    result = verl(tiny, f"{MODEL}.path=Tiny-VL", "actor_rollout_ref.rollout.n=2", *small)
    episodes, num_images = trained(result, tiny)
    assert [len(turns) for turns in episodes] == [1] * 4  # 2 rows, each twice
    assert num_images == 2
    assert all(len(keys_in_order(turn.prompt_ids.tolist())) == 1 for (turn,) in episodes)


def test_rolls_lake_of_pictures_trains(tiny):
    # Noise is no action: each reply costs 1, and no baseline makes that equal to nothing.
    plain = ["adv_estimator=reinforce", "reward_normalization.method=identity"]
    plain.append("+custom_envs.Lake.env_config.format_penalty=-1")
    result = convert("roll", written(tiny, ROLL), [*plain, "pretrain=Tiny-VL"])
    no_gpus = ["ajet.trainer_common.device_mapping=null", "ajet.rollout.device_mapping=null"]
    episodes, num_images = trained(result, tiny, *no_gpus)
    assert len(episodes) == 4  # 2 groups of 2
    assert num_images == 2  # the lakes of the 2 groups, where nobody moves
    for turns in episodes:
        first, second = (keys_in_order(turn.prompt_ids.tolist()) for turn in turns)
        assert len(first) == 1 and second == first * 2
