"""Settings of environments that nothing reads are said."""

import pytest

from ajet.core.config import load_config

LAKE = "ajet.environment.custom_envs.Lake"
PROCESS = f"{LAKE}.isolation=process"


@pytest.fixture
def notices(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "ajet: {model: {path: m}, task_reader: {type: environment},"
        " environment: {custom_envs: {Lake: {env_type: frozen_lake}}}}"
    )
    return lambda *overrides: load_config(path, overrides).notices


@pytest.mark.parametrize(
    ("override", "notice", "mended"),
    [
        (
            "ajet.rollout.user_workflow=w.py->W",
            "env_manager_cls says who plays",
            "ajet.task_reader.type=env_service",
        ),
        (
            "ajet.environment.max_rendered_episodes=2",
            "render_save_dir is null",
            "ajet.environment.render_save_dir=frames",
        ),
        (
            "ajet.environment.val_env_manager.max_env_num_per_worker=2",
            "no isolation is process",
            f"+{PROCESS}",
        ),
        (
            f"+{LAKE}.history_length=3",
            "traj_env_agent shows the whole conversation",
            f"+{LAKE}.env_manager_cls=step_env_agent",
        ),
        (f"+{LAKE}.step_timeout_s=3", "isolation is inline", f"+{PROCESS}"),
    ],
)
def test_a_setting_without_effect_is_noticed(notices, override, notice, mended):
    inline = [f"+{LAKE}.isolation=inline"] if "step_timeout" in override else []
    key = override.lstrip("+").partition("=")[0]
    [said] = [text for text in notices(override, *inline) if key in text]
    assert said.startswith(f"ignored: {key}=")
    assert notice in said
    assert not [text for text in notices(override, mended) if key in text]


def test_environments_that_no_reader_plays_are_noticed(notices):
    [said] = [
        text for text in notices("ajet.task_reader.type=random_dummy") if "custom_envs" in text
    ]
    assert said.endswith("(ajet.task_reader.type is random_dummy)")
    assert not [text for text in notices() if "custom_envs" in text]
