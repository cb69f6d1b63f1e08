"""`trinity:` one bound of staleness, and a schedule that keeps it."""

import pytest
from pydantic import ValidationError

from ajet.core.config import load_config
from ajet.core.config.cluster import Synchronizer, TrinityConfig
from ajet.core.errors import ConfigError


def trinity(max_staleness=None, interval=1, offset=None):
    sync = Synchronizer(sync_interval=interval, sync_offset=offset)
    return TrinityConfig(max_staleness=max_staleness, synchronizer=sync)


@pytest.mark.parametrize(
    ("given", "staleness", "steps_ahead"),
    [
        ((None, 1, None), 1, 1),
        ((0, 1, None), 0, 0),
        ((None, 1, 0), 0, 0),
        ((None, 4, None), 4, 1),
        ((None, 4, 0), 3, 0),
        ((3, 2, None), 3, 2),
        ((5, 2, 1), 5, 1),
    ],
)
def test_the_bound_and_the_lead_follow_from_each_other(given, staleness, steps_ahead):
    config = trinity(*given)
    assert (config.staleness, config.steps_ahead) == (staleness, steps_ahead)


@pytest.mark.parametrize("given", [(0, 2, None), (0, 1, 1), (3, 2, 3)])
def test_a_bound_that_the_schedule_cannot_keep_is_refused(given):
    with pytest.raises(ValidationError, match=r"sync_interval - 1 \+ sync_offset"):
        trinity(*given)


def load(tmp_path, text, *overrides):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n" + text)
    return load_config(path, overrides, backbone="trinity")


@pytest.mark.parametrize(
    ("text", "staleness", "interval", "partial"),
    [
        ("async_generation_ratio: 1\n", 1, 1, "continue"),
        ("async_generation_ratio: 0\n", 0, 1, "continue"),
        ("  async_generation_ratio: 1.5\n", 2, 1, "continue"),
        ("async_training: {staleness_threshold: 0.1, trigger_parameter_sync_step: 4, "
         "require_batches: 1, partial_rollout: true, use_rollout_log_probs: true}\n",
         4, 4, "continue"),
        ("async_training: {trigger_parameter_sync_step: 4}\n", 3, 4, "continue"),
        ("async_training: {staleness_threshold: 1, partial_rollout: false}\n", 1, 1, "finish"),
    ],
)  # fmt: skip
def test_the_keys_of_roll_and_verl_are_those_of_trinity(
    tmp_path, text, staleness, interval, partial
):
    config = load(tmp_path, text)
    assert config.trinity.staleness == staleness
    assert config.trinity.synchronizer.sync_interval == interval
    assert config.trinity.partial_rollout == partial
    assert config.user_sections() == {} and config.notices == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("async_training: {require_batches: 4}\n", "async_training.require_batches=4 is refused"),
        ("async_training: {zzz: 1}\n", "async_training.zzz=1 is refused: it has no counterpart"),
        ("async_training: 4\n", "async_training: a section is expected, got 4"),
        ("async_generation_ratio: yes\n", "async_generation_ratio: a number from 0 is expected"),
        ("async_generation_ratio: 1\ntrinity: {max_staleness: 3}\n", "two values: 1, 3"),
    ],
)
def test_contradictory_staleness_settings_are_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("ajet.rollout.name=auto", "servers drop their cache with new weights"),
        ("ajet.rollout.name=vllm", "servers drop their cache with new weights"),
        ("trinity.mode=colocate", "mode colocate has no weights that change"),
    ],
)
def test_where_no_cache_can_be_kept_the_key_is_refused(tmp_path, override, reason):
    text = "  rollout: {name: in_process}\ntrinity: {keep_kv_cache: true, max_staleness: 3}\n"
    assert load(tmp_path, text).kept_versions == 3
    with pytest.raises(ConfigError, match=f"trinity.keep_kv_cache is refused: {reason}"):
        load(tmp_path, text, override)


def test_no_keys_are_kept_by_a_backbone_that_ignores_the_key(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet: {model: {path: m}}\ntrinity: {keep_kv_cache: true}\n")
    assert load_config(path, backbone="verl").kept_versions is None
