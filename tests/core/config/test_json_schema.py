"""The schema takes what `load_config` takes, and an editor finds what it refuses."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.config import AjetConfig
from ajet.core.config.json_schema import INTERPOLATION, config_schema
from ajet.core.config.section import Section

ROOT = Path(__file__).parents[3]
SCHEMA = config_schema()
TUTORIALS = sorted(ROOT.glob("tutorial/*/*.yaml"))
DEFAULTS = ROOT / "ajet/default_config/ajet_default.yaml"


def mistakes(config):
    """The places of a config that an editor underlines."""
    found = Draft202012Validator(SCHEMA).iter_errors(config)
    return ["/".join(map(str, error.absolute_path)) for error in found]


def test_the_config_has_a_valid_json_schema():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", [*TUTORIALS, DEFAULTS], ids=lambda path: path.name)
def test_the_configs_of_this_repository_have_no_mistake(path):
    assert mistakes(yaml.safe_load(path.read_text())) == []
    assert len(TUTORIALS) > 15


@pytest.mark.parametrize(
    ("config", "places"),
    [
        ({"ajet": {"rolout": {}}}, ["ajet"]),
        ({"ajet": {"rollout": {"num_repeat": "eight"}}}, ["ajet/rollout/num_repeat"]),
        ({"ajet": {"rollout": {"num_repeat": 0}}}, ["ajet/rollout/num_repeat"]),
        (
            {"ajet": {"trainer_common": {"batch_layout": "tre"}}},
            ["ajet/trainer_common/batch_layout"],
        ),
        ({"ajet": {"stages": {"first": {"seeed": 1}}}}, ["ajet/stages/first"]),
        ({"ajet": {"rollout": {"num_repeat": "${oc.env:N}"}}}, []),
        ({"ajet": {"trainer_common": {"logger": "console", "traces": "otlp"}}}, []),
        ({"ajet": {"trainer_common": {"device_mapping": "list(range(0,4))"}}}, []),
        ({"ajet": {"stages": {"first": {"kind": "supervised"}, "second": None}}}, []),
        ({"my_agent": {"anything": [1]}, "defaults": ["ajet_default"]}, []),
        ({"ajet": {"trainer_common": {"total_steps": 3}}}, []),
    ],
)
def test_a_mistake_is_found_where_it_is_and_what_ajet_takes_is_none(config, places):
    assert mistakes(config) == places


def sections(model=AjetConfig):
    yield from ((model, name, field) for name, field in model.model_fields.items())
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from sections(field.annotation)


def test_each_key_says_what_it_is_and_one_that_was_dropped_says_why():
    for model, name, field in sections():
        if model is not AjetConfig:
            shown = SCHEMA["$defs"][model.__name__]["properties"][name]
            assert shown["description"].startswith(field.description), (model, name)
    trainer = SCHEMA["$defs"]["TrainerConfig"]["properties"]
    assert trainer["checkpoint_base_dir"]["deprecated"] is True
    assert (
        "without effect: checkpoints are in the run folder"
        in (trainer["checkpoint_base_dir"]["description"])
    )
    assert trainer["total_steps"]["description"].startswith(
        "is ajet.trainer_common.total_training_steps now"
    )
    assert trainer["batch_layout"]["default"] == "auto"
    assert trainer["batch_layout"]["anyOf"][1] == INTERPOLATION


def test_the_command_prints_it_or_writes_a_file(tmp_path):
    printed = CliRunner().invoke(app, ["schema"]).output
    file = tmp_path / "ajet.schema.json"
    said = CliRunner().invoke(app, ["schema", "--out", str(file)]).output
    assert file.read_text() == printed and json.loads(printed) == SCHEMA
    assert said.endswith(
        "put `# yaml-language-server: $schema=ajet.schema.json` at the top of a YAML\n"
    )
    refused = CliRunner().invoke(app, ["schema", "--out", str(tmp_path / "no" / "x.json")])
    assert refused.exit_code == 2 and f"the folder {tmp_path / 'no'} does not" in refused.output
