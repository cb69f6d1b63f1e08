"""The YAMLs for GPUs load, are placed, and fit by the estimates of `ajet plan`. None is run."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.config import load_config

RUNS, SEED = Path("tutorial/example_cluster"), Path("tests/data/seed_tutorial")
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size", "tie_word_embeddings")  # fmt: skip
QWEN = {
    "0.5B": (896, 24, 14, 2, 4864, 151936, True),
    "3B": (2048, 36, 16, 2, 11008, 151936, True),
    "7B": (3584, 28, 28, 4, 18944, 152064, False),
    "14B": (5120, 48, 40, 8, 13824, 152064, False),
}
CASES = [
    (RUNS / "math_0_5b_1gpu.yaml", "0.5B", ["--gpus", "1", "--gpu", "a10"], "trainer 0, engine 0"),
    (RUNS / "math_7b_8gpu.yaml", "7B", ["--gpus", "8"], "trainer 7, engine 7"),
    (
        RUNS / "math_7b_8gpu.yaml", "7B",
        ["--gpus", "8", "--backbone", "trinity", "ajet.rollout.n_vllm_engine=2"], "trainer 5",
    ),
    (RUNS / "math_14b_2x8gpu.yaml", "14B", ["--nodes", "2", "--gpus", "8"], "engine 3"),
    (RUNS / "frozen_lake_3b_8gpu.yaml", "3B", ["--gpus", "8"], "engine 3"),
    (
        Path("tutorial/example_math_agent/math_agent.yaml"), "14B",
        ["--gpus", "8", "--backbone", "trinity"], "engine 1",
    ),
    (
        SEED / "math_agent.yaml", "14B",
        ["--gpus", "8", "--backbone", "trinity"], "engine 1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "size", "args", "seen"), CASES, ids=lambda value: str(value)[:40])
def test_a_run_for_gpus_is_placed_and_fits(path, size, args, seen, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "config.json"
    shape = dict(zip(SIZES, QWEN[size], strict=True))
    file.write_text(json.dumps({"model_type": "qwen2", **shape}))
    options = ["plan", "--conf", str(path), "--model-config", str(file), *args]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert seen in result.stdout and "ok: by these estimates it fits" in result.stdout


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.yaml")), ids=str)
def test_a_run_for_gpus_loads_on_its_own_backbone_without_a_notice(path):
    config = load_config(path)
    assert config.ajet.backbone in ("verl", "trinity")
    others = ("trinity", "verl")[config.ajet.backbone == "trinity"]
    assert [notice for notice in config.notices if f" {others}." not in notice] == []
