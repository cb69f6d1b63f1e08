"""A new estimator and a new loss are one file and one row each: nothing else knows their names."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEW_FILE = """
from ajet.core.advantage.comparison import episodes_of, spread_evenly
from ajet.core.advantage.estimator import Estimator
from ajet.core.losses.ppo import ClipBounds
from ajet.core.losses.token_loss import PolicyLoss, TokenLoss


def signs(groups, options):
    return spread_evenly(groups, [1 if e.reward > 0 else -1 for e in episodes_of(groups)])


def likelihood(tokens, settings):
    return TokenLoss(-tokens.advantages_M * tokens.logprobs_M, tokens.ratio_M.detach())


def warnings(settings):
    if settings.clip_low > 0.5:
        yield "is odd"


SIGNS = Estimator(signs, reads=("lam",), compares_group=True)
LIKELIHOOD = PolicyLoss(likelihood, settings=ClipBounds, warnings=warnings)
"""
RUN = """
from new_file import LIKELIHOOD, SIGNS
from ajet.core.advantage import ESTIMATORS, estimate
from ajet.core.losses import LOSSES

ESTIMATORS["signs"], LOSSES["likelihood"] = SIGNS, LIKELIHOOD

from pathlib import Path

import pytest
import torch

from ajet.cli.findings import _clip_findings
from ajet.core.config import load_config
from ajet.core.config.json_schema import config_schema
from ajet.core.errors import ConfigError
from ajet.core.learning.credit import estimator_settings
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from tests.core.advantage.advantage_fixtures import credited, per_turn
from tests.core.update.update_fixtures import sample, tiny_model

A = "ajet.trainer_common.algorithm"
Path("run.yaml").write_text("ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}")


def load(*overrides):
    names = [f"{A}.adv_estimator=signs", f"{A}.policy_loss=likelihood"]
    return load_config(Path("run.yaml"), [*names, *overrides])


config = load(f"{A}.clip_low=0.9", f"{A}.lam=0.5")
assert config.notices == []
assert [finding.text for finding in _clip_findings(config.ajet.trainer_common.algorithm)] == [
    f"{A}: policy_loss=likelihood is odd"
]
assert load(f"{A}.gamma=0.5", f"{A}.dual_clip=3.0", "ajet.rollout.num_repeat=1").notices == [
    f"ignored: {A}.dual_clip=3.0 ({A}.policy_loss is likelihood)",
    f"ignored: {A}.gamma=0.5 ({A}.adv_estimator is signs)",
    f"nothing is learnt from rewards: {A}.adv_estimator=signs compares the members of a group, and "
    "ajet.rollout.num_repeat is 1",
]
with pytest.raises(ConfigError, match="'sign'; did you mean 'signs'"):
    load(f"{A}.adv_estimator=sign")
properties = config_schema()["$defs"]["AlgorithmConfig"]["properties"]
assert "signs" in str(properties["adv_estimator"])
assert "likelihood" in str(properties["policy_loss"])

group = (credited("a", [1.0], [2]), credited("b", [0.0], [2]))
advantages = estimate([group], estimator_settings(config)).advantages
assert per_turn(advantages) == {"a": [1.0], "b": [-1.0]}

settings = UpdateSettings.from_config(config)
policy = Policy(tiny_model(), settings)
rows = [sample([1, 2, 3, 4], "0011", episode=n, advantage=advantages[n][0][0]) for n in "ab"]
rows[1].token_ids[2:] = 5, 6
before = [float(logprobs_T.sum()) for logprobs_T in policy.score(rows)]
policy.update(rows)
after = [float(logprobs_T.sum()) for logprobs_T in policy.score(rows)]
assert after[0] > before[0] and after[1] < before[1]
"""


def test_a_file_and_a_row_add_an_estimator_and_a_loss(tmp_path):
    """In a process of its own: the config reads the registries when it is imported."""
    (tmp_path / "new_file.py").write_text(NEW_FILE)
    (tmp_path / "run.py").write_text(f"import sys; sys.path.insert(1, {str(ROOT)!r})\n{RUN}")
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_no_module_is_shadowed_by_a_name_that_its_package_exports():
    for init in (ROOT / "ajet").rglob("__init__.py"):
        modules = {path.stem for path in init.parent.iterdir()} - {"__init__"}
        for node in ast.walk(ast.parse(init.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                source = (node.module or "").replace(".", "/")
                names = {alias.asname or alias.name for alias in node.names}
                is_package = (ROOT / source) == init.parent  # `from ajet.core import config`
                assert is_package or not names & modules, (init, names & modules)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                assert node.name not in modules, (init, node.name)
