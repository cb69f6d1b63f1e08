"""`ajet.testing`: an episode with given replies, for users' tests."""

import pytest

from ajet.core.trajectory.limits import EndpointFault
from ajet.testing import play, tool_call

WORKFLOW = """
from ajet import BaseJudge, Workflow, WorkflowOutput


class Adder(Workflow):
    async def execute(self, workflow_task, model_tuner):
        said = [{"role": "user", "content": workflow_task.task.main_query}]
        first = await model_tuner.chat(said)
        for call in first.get("tool_calls", ()):
            said += [first, {"role": "tool", "tool_call_id": call["id"], "content": "7"}]
            first = await model_tuner.chat(said)
        return WorkflowOutput(metadata={"final_answer": first["content"]})


class Blocking(Workflow):
    def execute(self, workflow_task, model_tuner):
        client = model_tuner.as_raw_openai_sdk_client(sync=True)
        said = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = client.chat.completions.create(model="any", messages=said)
        return WorkflowOutput(metadata={"final_answer": reply.choices[0].message.content})


class Broken(Workflow):
    async def execute(self, workflow_task, model_tuner):
        raise LookupError("mine")


class Judge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return workflow_output.metadata["final_answer"] == workflow_task.task.metadata["answer"]
"""
CONFIG = """
ajet:
  project_name: adder
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: tasks.jsonl}}
  rollout: {user_workflow: adder.py->Adder}
  task_judge: {judge_protocol: adder.py->Judge}
"""
OTHER = "ajet.rollout.user_workflow=adder.py->{}"


@pytest.fixture
def conf(tmp_path):
    (tmp_path / "adder.py").write_text(WORKFLOW)
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    (tmp_path / "adder.yaml").write_text(CONFIG)
    return tmp_path / "adder.yaml"


def test_the_replies_are_given_in_turn_and_the_answer_is_judged(conf):
    row = {"question": "3+4?", "answer": "7"}
    episode = play(conf, [tool_call("add", a=3, b=4), "7"], row)
    assert (episode.reward, episode.is_success) == (1.0, True)
    question, call, answer = episode.turns[1].messages
    assert question["content"] == "3+4?"
    assert call["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 3, "b": 4}'}
    assert answer["tool_call_id"] == call["tool_calls"][0]["id"]


def test_without_a_row_the_first_task_of_the_yaml_is_played(conf):
    episode = play(conf, ["3"])
    assert episode.turns[0].messages[0]["content"] == "1+1?"
    assert not episode.is_success


def test_an_agent_that_blocks_runs_in_a_thread_as_in_training(conf):
    assert play(conf, ["2"], overrides=[OTHER.format("Blocking")]).is_success


def test_a_call_too_many_says_how_many_replies_there_were(conf):
    with pytest.raises(EndpointFault, match=r"called the model 2 times, but play\(\) .* 1 replies"):
        play(conf, [tool_call("add", a=3, b=4)])


def test_an_exception_of_the_agent_is_raised_as_it_is(conf):
    with pytest.raises(LookupError, match="mine"):
        play(conf, [], overrides=[OTHER.format("Broken")])
