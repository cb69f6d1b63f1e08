"""Hand-made episodes for the record and the page: two turns, ids that can be checked by eye."""

import numpy as np

from ajet.core.inference.endpoint import Completion
from ajet.core.record.step_metrics import step_metrics
from ajet.core.record.timeline_counts import TimelineCounts
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.sample import TrainingSample, TurnSpan
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn

TOOLS = [{"type": "function", "function": {"name": "execute_python_code", "parameters": {}}}]
SYSTEM = {"role": "system", "content": "You are an agent."}


def two_turns(query="6 times 7?", *, tools=TOOLS, ids=range(100, 110)):
    """A call, its result, the answer; the second prompt is the first, its tokens and 3 new ids."""
    user = {"role": "user", "content": query}
    call = {"role": "assistant", "content": "print(6*7)"}
    result = {"role": "tool", "content": "42", "tool_call_id": "call_0"}
    answer = {"role": "assistant", "content": "42"}
    prompt = tuple(ids)
    first = Completion(prompt, (7, 8, 9), (-0.5, -0.25, -2.0), "stop", 3)
    second = Completion((*prompt, 7, 8, 9, 50, 51, 52), (5, 2), (-0.125, 0.0), "stop", 4)
    return (
        Turn(first, [SYSTEM, user], tools, call, started_s=10.0, ended_s=10.5),
        Turn(second, [SYSTEM, user, call, result], tools, answer, started_s=11.0, ended_s=12.5),
    )


def episode(
    *,
    step=1,
    group=0,
    member=0,
    mode="train",
    query="6 times 7?",
    reward=1.0,
    status=EpisodeStatus.OK,
    truncation=None,
    turns=None,
    error=None,
    metadata=None,
):
    task = Task(f"task-{group}", query)
    group_id = f"{step:06d}-{mode}-{group:04d}"
    who = WorkflowTask(task, f"{group_id}-{member:02d}", group_id, member, step, mode, seed=1)
    return Trajectory(
        who,
        two_turns(query) if turns is None else turns,
        status if truncation is None else EpisodeStatus.TRUNCATED,
        output=WorkflowOutput(metadata=metadata or {"final_answer": "42"}),
        reward=reward,
        is_success=None if reward is None else reward > 0.5,
        timings={"workflow": 2.5},
        failure=error,
        truncation=truncation,
    )


def group_of(*trajectories):
    return Group(trajectories[0].group_id, trajectories)


def advantages_of(trajectory, value):
    """The same advantage for every sampled token, one array a turn."""
    return tuple(
        np.full(len(t.completion.token_ids), value, dtype=np.float32) for t in trajectory.turns
    )


def sample_of(trajectory):
    """The one timeline of `two_turns`: 10 prompt ids, 3 sampled, 3 given, 2 sampled."""
    ids = trajectory.turns[1].completion.prompt_ids + trajectory.turns[1].completion.token_ids
    mask = np.zeros(len(ids), dtype=bool)
    mask[10:13] = mask[16:18] = True
    zeros = np.zeros(len(ids), dtype=np.float32)
    spans = (TurnSpan(10, 13, 0), TurnSpan(16, 18, 1))
    return TrainingSample(
        trajectory.episode_id, trajectory.group_id, np.array(ids), mask, zeros, zeros, spans, 3, 4
    )


def metrics_of_step(rollout, samples, update_metrics):
    """What is logged of a step, whose timelines are counted as the recorder counts them."""
    counts = TimelineCounts.from_groups(rollout.groups, samples)
    return step_metrics(rollout, samples, counts, update_metrics)
