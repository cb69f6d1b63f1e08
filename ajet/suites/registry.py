"""The suites by name, and the settings by which a config evaluates one. A suite is a file of this
folder with `SUITES` at its end."""

from __future__ import annotations

from pathlib import Path

from ajet.core.errors import UnknownName
from ajet.core.text.error_text import did_you_mean
from ajet.core.user_code.plugins import find_row, plugins
from ajet.suites import arc, bfcl, bfcl_multi_turn, gsm8k, humaneval, tau2
from ajet.suites.harbor import agent as harbor
from ajet.suites.suite import Suite

SUITES: dict[str, Suite] = {
    suite.name: suite
    for module in (bfcl, bfcl_multi_turn, tau2, humaneval, gsm8k, arc, harbor)
    for suite in module.SUITES
}
"""The suites of this folder; packages register further ones as `ajet.suites`."""
CONFIG = Path(__file__).parent / "suite.yaml"
"""The config of an evaluation that names none."""
READER = "ajet.suites.reader->SuiteReader"
SAMPLED_TEMPERATURE = 0.8
"""The temperature if a task has several samples, which greedy decoding would make all alike."""


def find_suite(name: str) -> Suite:
    suite = find_row(SUITES, "ajet.suites", name, Suite)
    if suite is not None:
        return suite
    names = [*SUITES, *plugins("ajet.suites")]
    hint = did_you_mean(name, names)
    raise UnknownName(f"no suite {name!r}; {hint}")


def suite_overrides(suite: Suite, data: Path | None, num_samples: int) -> list[str]:
    """Returns the overrides by which a config evaluates `suite`; the user's come after them."""
    temperature = 0.0 if num_samples == 1 else SAMPLED_TEMPERATURE
    total = suite.max_prompt_length + suite.max_response_length
    folder = "null" if data is None else f"'{data.resolve()}'"
    return [
        f"++suite.name={suite.name}",
        f"++suite.data={folder}",
        "ajet.kind=reinforcement",  # the checkpoint may be of a supervised run
        f"ajet.task_reader.type='{READER}'",
        f"ajet.rollout.user_workflow='{suite.workflow}'",
        f"ajet.task_judge.judge_protocol='{suite.judge}'",
        "ajet.task_judge.judge_type=customized_protocol",
        "ajet.data.val_max_tasks=null",
        f"ajet.data.max_prompt_length={suite.max_prompt_length}",
        f"ajet.data.max_response_length={suite.max_response_length}",
        f"ajet.rollout.max_response_length_in_one_turn={suite.max_response_length}",
        f"ajet.rollout.max_model_len={total}",
        f"ajet.rollout.val_kwargs.temperature={temperature}",
        "ajet.rollout.val_kwargs.top_p=1.0",
        "ajet.rollout.val_kwargs.top_k=-1",
        f"ajet.trainer_common.val_pass_n={num_samples}",
    ]
