"""A mistake in a loss, an estimator, a reward shaping or an order of the user's own is found before
data is read or a model loaded."""

import pytest

from ajet.cli.preflight import check_classes
from ajet.core.config import load_config
from ajet.core.errors import ConfigError

FLOW = """
from ajet import Workflow, WorkflowOutput

class Flow(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput(reward=1.0)
"""
ALGORITHM = "ajet.trainer_common.algorithm"
KEYS = [
    f"{ALGORITHM}.policy_loss",
    f"{ALGORITHM}.adv_estimator",
    f"{ALGORITHM}.reward_shaping",
    "ajet.data.sampler",
]


def check(folder, *overrides):
    (folder / "flow.py").write_text(FLOW)
    (folder / "own.py").write_text("def right(*arguments): ...\n")
    (folder / "broken.py").write_text("import a_package_that_is_not_there\n")
    (folder / "run.yaml").write_text(
        "ajet: {model: {path: m}, rollout: {user_workflow: flow.py->Flow}}"
    )
    check_classes(load_config(folder / "run.yaml", overrides))


@pytest.mark.parametrize("key", KEYS)
def test_a_name_that_is_not_there_is_one_line(tmp_path, key):
    check(tmp_path, f"{key}=own.py->right")
    for spec, message in (("own.py->rihgt", "'rihgt'; did you mean 'right'?"),
                          ("broken.py->right", "a_package_that_is_not_there"),
                          ("absent.py->right", "absent.py")):  # fmt: skip
        with pytest.raises(ConfigError) as error:
            check(tmp_path, f"{key}={spec}")
        text = str(error.value)
        assert text.startswith(f"{key}: ") and message in text and "\n" not in text


@pytest.mark.parametrize("key", KEYS)
def test_a_word_that_names_no_function_is_refused_by_the_config(tmp_path, key):
    with pytest.raises(ConfigError) as error:
        check(tmp_path, f"{key}=grop")
    assert key in str(error.value) and "\n" not in str(error.value)
