"""A YAML over the project's defaults is what Hydra makes of it; what is more is left to Hydra."""

import subprocess
import sys

import pytest
import yaml

from ajet.core.config import load_config
from ajet.core.config.compose import DEFAULTS, _composed_by_hydra
from ajet.core.config.explain import Origin
from ajet.core.config.overlay import overlaid
from ajet.core.config.overrides import hydra_override

PLAIN = [
    ({}, []),
    ({"ajet": None}, []),
    ({"ajet": {"rollout": None, "stages": {"b": {"seed": 1}, "a": None}}}, []),
    ({"ajet": {"task_judge": "a section is replaced", "seed": [1, {"a": [2]}]}}, []),
    ({"mine": {"rate": "1e-4", "list": [1, [2], {"a": None}], 3: 4}, "b": 1}, []),
    ({"verl": {"rollout": {"gpu_memory_utilization": 0.5}}}, ["verl.rollout.sync_method=memory"]),
    ({}, ["ajet.seed=3", "ajet.seed=4", "ajet.model.path='a b'", "ajet.experiment_name=7"]),
    ({}, ["ajet.rollout={num_repeat: 3, new: {a: [b]}}", "ajet.rollout.new.a=[]"]),
    ({}, ["ajet.no.such.key=1", "ajet.seed.below_a_number=1"]),
    (
        {"mine": {"a": 1, "b": {"c": 2}}},
        ["mine.a=judge.py->Judge", "mine.b.c=[1]"],
    ),
    ({"mine": {"a": None}}, ["+mine.a=1", "+mine.b.c=2", "+mine.b={d: 3}", "++other.x=null"]),
]
LEFT_TO_HYDRA = [
    ({"mine": {"a": "${ajet.seed}"}}, [], DEFAULTS),
    ({"mine": {"a": "???"}}, [], DEFAULTS),
    ({}, ["ajet.model.path=${oc.env:HOME}"], DEFAULTS),
    ({}, ["~ajet.seed"], DEFAULTS),
    ({}, ["mine.a=1"], DEFAULTS),
    ({"mine": {"a": 1}}, ["+mine.a=2"], DEFAULTS),
    ({"mine": {"a": {"b": 1}}}, ["mine.a={c: 2}"], DEFAULTS),
    ({"ajet": {"rollout": [1]}}, [], DEFAULTS),
    ({}, ["ajet.rollout=[1]"], DEFAULTS),
    ({}, ["ajet.not_secret={a: 1}"], DEFAULTS),
    ({"verl": {"trainer": None}}, ["verl={}"], DEFAULTS),  # a folder of that name is a group
    ({}, [], ["_self_", "ajet_default"]),
    ({}, [], ["ajet_default", "ajet_default", "_self_"]),
    ({}, [], [{"group": "choice"}, "_self_"]),
    ({}, [], ["mine", "_self_"]),
]


def laid(folder, content, overrides, defaults=DEFAULTS):
    (folder / "run.yaml").write_text(yaml.safe_dump(content))
    origin = Origin(folder / "run.yaml", overrides)
    parsed = [hydra_override(override) for override in overrides]
    return overlaid(content, defaults, parsed, origin), origin, parsed


@pytest.mark.parametrize(("content", "overrides"), PLAIN)
def test_a_composed_config_equals_hydras_in_the_same_order(tmp_path, content, overrides):
    found, origin, parsed = laid(tmp_path, content, overrides)
    expected, references = _composed_by_hydra(content | {"defaults": DEFAULTS}, [], parsed, origin)
    assert yaml.safe_dump(found, sort_keys=False) == yaml.safe_dump(expected, sort_keys=False)
    assert references == {}


@pytest.mark.parametrize(("content", "overrides", "defaults"), LEFT_TO_HYDRA)
def test_other_overrides_are_left_to_hydra(tmp_path, content, overrides, defaults):
    assert laid(tmp_path, content, overrides, defaults)[0] is None


def test_a_file_beside_the_yaml_comes_before_the_projects_of_that_name(tmp_path):
    (tmp_path / "ajet_default.yaml").write_text("ajet: {model: {path: m}, seed: 5}")
    (tmp_path / "run.yaml").write_text("ajet: {}")
    assert load_config(tmp_path / "run.yaml").ajet.seed == 5


def test_no_composition_changes_the_next_one(tmp_path):
    first = laid(tmp_path, {}, [])[0]
    first["ajet"]["rollout"]["num_repeat"] = -1
    first["ajet"]["trainer_common"]["logger"] = first["ajet"]["not_secret"].append("a")
    assert laid(tmp_path, {}, [])[0]["ajet"]["not_secret"] == []
    assert laid(tmp_path, {}, [])[0]["ajet"]["rollout"]["num_repeat"] > 0


def test_hydra_is_not_imported_where_nothing_needs_it(tmp_path):
    (tmp_path / "run.yaml").write_text("ajet: {model: {path: m}}")
    code = "import sys; from ajet.core.config import load_config; load_config('run.yaml'); "
    said = subprocess.run(
        [sys.executable, "-c", f"{code} print('hydra' in sys.modules)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "False\n"
