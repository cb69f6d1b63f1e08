"""The overrides of a sweep become those of its runs."""

import math

import pytest

from ajet.core.config.sweep import sweep_runs
from ajet.core.errors import ConfigError

LR = "ajet.trainer_common.optim.lr"


def names(*overrides, **options):
    return [run.name for run in sweep_runs(overrides, **options)]


def test_a_grid_has_each_combination_once_and_keeps_the_other_overrides():
    runs = sweep_runs([f"{LR}=1e-5,1e-4,1e-4", "ajet.backbone=debug", "ajet.seed=range(0,3,2)"])
    assert [run.name for run in runs] == [
        "lr=1e-05,seed=0",
        "lr=1e-05,seed=2",
        "lr=0.0001,seed=0",
        "lr=0.0001,seed=2",
    ]
    assert runs[1].overrides == [f"{LR}=1e-05", "ajet.backbone=debug", "ajet.seed=2"]
    assert runs[1].values == {LR: "1e-05", "ajet.seed": "2"}


def test_a_list_in_brackets_is_one_value():
    layers = "ajet.trainer_common.logger"
    assert names(f"{layers}=[tensorboard],[tensorboard,wandb]", "ajet.seed=1") == [
        "logger=tensorboard",
        "logger=tensorboard_wandb",
    ]


def test_keys_of_one_last_name_are_told_apart_and_texts_are_shortened():
    values = "'judge.py->Strict judge','judge.py->Loose'"
    assert names(f"{LR}=1,2", "ajet.trainer_common.critic.lr=3", f"my.judge={values}")[:2] == [
        "lr=1,judge=judge.py-_Strict_judge",
        "lr=1,judge=judge.py-_Loose",
    ]
    assert names("my.a.lr=1,2", "my.b.lr=3,4")[0] == "a.lr=1,b.lr=3"


def test_combinations_whose_names_are_equal_get_a_hash_each():
    long = "x" * 60
    first, second = names(f"my.text={long}a,{long}b")
    assert first != second and first.startswith(f"text={'x' * 40},")


def test_a_random_sweep_takes_from_the_grid_without_replacement_and_a_longer_one_begins_like_it():
    keys = ["ajet.seed=range(0,5)", f"{LR}=1,2,3,4"]
    few, many = names(*keys, num_random=6), names(*keys, num_random=20)
    assert few == many[:6]
    assert len({*many}) == 20 and sorted(many) == sorted(names(*keys))
    assert names(*keys, num_random=6, seed=1) != few


def test_intervals_are_drawn_in_their_bounds_and_log_uniformly_where_tagged():
    keys = [f"{LR}=tag(log,interval(1e-6,1e-2))", "ajet.rollout.num_repeat=int(interval(4,6))"]
    drawn = sweep_runs(keys, num_random=400)
    rates = [float(run.values[LR]) for run in drawn]
    assert min(rates) >= 1e-6 and max(rates) <= 1e-2
    # Half of them are below the geometric mean, 1e-4; uniformly it would be one in a hundred.
    below = sum(rate < 1e-4 for rate in rates)
    assert abs(below - 200) < 4 * math.sqrt(100)
    assert {run.values["ajet.rollout.num_repeat"] for run in drawn} == {"4", "5", "6"}
    assert all(
        len(run.values[LR].replace(".", "").partition("e")[0].lstrip("0")) <= 4 for run in drawn
    )


def test_a_key_more_does_not_change_what_is_drawn_for_the_others():
    one = sweep_runs(["my.a=interval(0,1)"], num_random=3)
    two = sweep_runs(["my.b=interval(0,1)", "my.a=interval(0,1)"], num_random=3)
    assert [run.values["my.a"] for run in one] == [run.values["my.a"] for run in two]
    assert [run.values["my.a"] for run in two] != [run.values["my.b"] for run in two]


@pytest.mark.parametrize(
    ("overrides", "num_random", "message"),
    [
        (["ajet.seed=1"], None, "nothing to sweep"),
        (["a=b.py->C"], None, "nothing to sweep"),
        (["my.x=interval(0,1)"], None, "my.x: an interval has no grid: .* --random N"),
        (["my.x=interval(1,0)"], 2, "from a smaller to a larger number"),
        (["my.x=tag(log,interval(0,1))"], 2, "both above 0"),
        (["my.x=1,2"], 3, "--random 3: the grid has 2 runs"),
        (["my.x=range(0,100)", "my.y=range(0,100)"], None, "a grid of 10,000 runs"),
        (["my.x=glob(*)"], None, "write the values as a,b"),
        (["ajet.experiment_name=a,b"], None, "ajet.experiment_name cannot be swept"),
        (["my.api_key=abc1,abc2"], None, "my.api_key is a secret and cannot be swept"),
    ],
)
def test_what_cannot_be_swept_is_said_in_one_line(overrides, num_random, message):
    with pytest.raises(ConfigError, match=message) as raised:
        sweep_runs(overrides, num_random)
    assert "abc1" not in str(raised.value)
