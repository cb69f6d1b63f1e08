"""A run folder's config.yaml reads back as the config that the run had."""

from pathlib import Path

import pytest

from ajet.core.config import load_stages
from ajet.core.config.saved import saved_config
from ajet.core.errors import ConfigError
from ajet.core.record.run_folder import RunFolder

YAMLS = sorted(Path(__file__).parents[3].glob("tutorial/**/*.yaml"))
TUTORIALS = [path for path in YAMLS if "\najet:" in path.read_text()]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.name)
def test_a_saved_config_is_the_runs_own_and_finds_the_users_files(path, tmp_path):
    for config in load_stages(path, ["+mine.api_key=secret", "+mine.size=3"]):
        folder = RunFolder(tmp_path)
        folder.save_config(config)
        saved = saved_config(folder.config_yaml, yaml_path=path, project_dir=tmp_path)
        assert saved.ajet == config.ajet and saved.verl == config.verl
        assert (saved.mine.size, saved.mine.api_key) == (3, "***")
        assert saved.base_dirs == [tmp_path.resolve(), *config.base_dirs]


def test_a_saved_config_of_another_version_is_one_line(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("ajet: {sead: 1}\n")
    with pytest.raises(ConfigError, match=r"ajet\.sead: no such key; did you mean 'seed'"):
        saved_config(file, yaml_path=file, project_dir=None)
    file.write_text("ajet: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        saved_config(file, yaml_path=file, project_dir=None)


def test_the_judges_model_of_an_earlier_version_is_read_from_its_former_key(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "ajet: {task_judge: {judge_protocol: llm, alien_llm_model: null, llm: {model_name: m}, "
        "rubrics_auto_grader: {model_name: qwen-max}}}\n"
    )
    saved = saved_config(file, yaml_path=file, project_dir=None)
    assert saved.ajet.task_judge.model_name == "m"
