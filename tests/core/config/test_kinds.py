"""What follows from `ajet.kind` for other keys."""

import pytest

from ajet.core.config import load_config
from ajet.core.config.kinds import GIVEN_VALUES
from ajet.core.config.nested import flatten
from ajet.core.errors import ConfigError


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet: {model: {path: m}}\n")
    return lambda *overrides: load_config(path, overrides)


def test_a_supervised_run_samples_nothing_and_compares_nothing(load):
    config = load("ajet.kind=supervised", "ajet.rollout.num_repeat=8")
    assert config.ajet.rollout.num_repeat == 1
    found = flatten(config.to_dict())
    assert {key: found[key] for key in GIVEN_VALUES} == GIVEN_VALUES
    [notice] = config.notices
    assert notice == "ignored: ajet.rollout.num_repeat=8 (ajet.kind is supervised)"


def test_other_values_of_a_supervised_run_are_those_of_the_yaml(load):
    plain, supervised = (flatten(load(*more).to_dict()) for more in ((), ("ajet.kind=supervised",)))
    differ = {key for key in plain if plain[key] != supervised[key]}
    assert differ <= {*GIVEN_VALUES, "ajet.kind"}


def test_a_kind_that_there_is_not_is_one_line(load):
    with pytest.raises(ConfigError, match=r"ajet\.kind"):
        load("ajet.kind=supervize")


@pytest.mark.parametrize(("loss", "num"), [("dpo", 2), ("kto", 1)])
def test_a_preference_run_updates_once_on_whole_pairs(load, loss, num):
    config = load("ajet.kind=preference", f"ajet.preference.loss={loss}")
    trainer = config.ajet.trainer_common
    assert config.ajet.rollout.num_repeat == num
    assert trainer.algorithm.loss_agg_mode == "seq-mean-token-sum"
    assert (trainer.mini_batch_num, trainer.ppo_epochs) == (1, 1)
    assert config.learns_from_rows(is_training=True) and not config.samples


def test_kto_of_one_row_a_step_is_refused(load):
    kto = ("ajet.kind=preference", "ajet.preference.loss=kto")
    with pytest.raises(ConfigError, match=r"train_batch_size.*take several"):
        load(*kto, "ajet.data.train_batch_size=1")
    load(*kto, "ajet.data.train_batch_size=2")
