"""A run whose agent asks for a form: what is sampled under a grammar is what is trained."""

import json
import sqlite3

import pytest

from tests.backbones.debug.test_served_sampling import NEEDS_VLLM, served
from tests.e2e.toy_run import metrics
from tests.in_process_run import train

WORKFLOW = """
import json

from ajet import Workflow, WorkflowOutput

SCHEMA = {
    "type": "object",
    "properties": {"digit": {"enum": [1, 2, 3, 4, 5, 6, 7, 8, 9]}, "word": {"enum": ["so", "no"]}},
    "required": ["digit", "word"],
    "additionalProperties": False,
}


class Digits(Workflow):
    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
        reply = await model_tuner.chat(messages, response_format=form)
        return WorkflowOutput(reward=json.loads(reply["content"])["digit"] / 9)
"""


@pytest.fixture
def toy(toy):
    toy.shrink()
    (toy.folder / "digits.py").write_text(WORKFLOW)
    return toy


def digits(*overrides):
    return train(
        "ajet.rollout.user_workflow=digits.py->Digits",
        "ajet.task_judge.judge_protocol=null",
        "ajet.rollout.max_response_length_in_one_turn=40",
        *overrides,
    )


@pytest.mark.parametrize(
    ("engine", "most_apart"),
    [("in process", 1e-4), pytest.param("vllm", 1e-2, marks=NEEDS_VLLM)],
)
def test_every_reply_has_the_form_and_is_trained_as_it_was_sampled(toy, engine, most_apart):
    overrides = ["ajet.trainer_common.total_training_steps=2"]
    if engine == "vllm":
        overrides += [*served(toy, engine), "ajet.rollout.server.grammars=true"]
    digits(*overrides, "ajet.trainer_common.use_kl_loss=true")
    with sqlite3.connect(toy.path / "episodes.sqlite") as database:
        turns = database.execute("SELECT reply, notes FROM turns").fetchall()
    for reply, notes in turns:
        assert json.loads(json.loads(reply)["content"]).keys() == {"digit", "word"}
        assert json.loads(notes)["grammar"].startswith("start: body <[")
    rows = metrics(toy)
    # The reference is the policy of the first step, restricted too.
    assert rows[0]["update/kl"] == pytest.approx(0.0, abs=1e-9)
    for row in rows:
        # Restricted in both, or the sampler's log-probabilities would be higher by some nats.
        assert row["update/logprob_diff_max"] < most_apart
        assert row["update/restricted_tokens"] == row["update/trained_tokens"]
        assert 0.5 < row["update/forced_fraction"] < 1
