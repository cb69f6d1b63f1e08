"""Groups for the buffer's tests, made by hand and by hypothesis."""

from hypothesis import strategies as st

from ajet.core.inference.endpoint import Completion
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import Limit, Truncation
from ajet.core.trajectory.trajectory import (
    EpisodeStatus,
    Group,
    Selection,
    SelectionName,
    Trajectory,
)
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.core.user_code.activity import TimedCall


def turn(prompt, sampled, version=0, **more):
    completion = Completion(tuple(prompt), tuple(sampled), (-0.5,) * len(sampled), "stop", version)
    messages = [{"role": "user", "content": "?"}]
    return Turn(completion, messages, None, {"role": "assistant", "content": "!"}, **more)


def group(number, version=0, rewards=(1.0, 0.0), step=1, newest=None):
    """Two episodes; the first token's version is `version`, the last turn's `newest`."""
    group_id = f"{step:06d}-train-{number:04d}"
    task = Task(f"t{number}", "what?")
    last = version if newest is None else newest
    members = []
    for member, reward in enumerate(rewards):
        plan = WorkflowTask(task, f"{group_id}-{member:02d}", group_id, member, step, "train", 3)
        turns = (turn([1, 2], [3, 4], version), turn([1, 2, 3, 4, 5], [6], last))
        members.append(
            Trajectory(plan, turns, EpisodeStatus.OK, WorkflowOutput(reward), reward, reward > 0)
        )
    return Group(group_id, tuple(members), task)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
dicts = st.dictionaries(st.text(), json_values, max_size=2)
notes = st.builds(
    TurnNotes,
    is_given=st.booleans(),
    sampling=dicts,
    opening=st.text(),
    continues=st.none() | st.booleans(),
    malformed=st.dictionaries(st.text(), st.text(), max_size=2),
    hinted_prompt=st.lists(st.integers(0, 2**40), max_size=4),
)
ids = st.lists(st.integers(0, 2**40), max_size=4)


calls = st.builds(TimedCall, st.text(), st.floats(0, 9), st.floats(0, 9))


@st.composite
def turns(draw):
    """Some continue the one before, some begin anew."""
    made = []
    for _ in range(draw(st.integers(0, 3))):
        before = made[-1] if made else None
        prompt, messages = draw(ids), draw(st.lists(dicts, max_size=2))
        if before is not None and draw(st.booleans()):
            prompt = [*before.completion.prompt_ids, *before.completion.token_ids, *prompt]
            messages = [*before.messages, before.reply, *messages]
        sampled = tuple(draw(ids))
        logprob = st.floats(-1e6, 0) | st.just(float("-inf"))
        logprobs = tuple(draw(st.lists(logprob, min_size=len(sampled), max_size=len(sampled))))
        completion = Completion(
            tuple(prompt),
            sampled,
            logprobs,
            draw(st.sampled_from(["stop", "length", "abort"])),
            draw(st.integers(0, 99)),
        )
        made.append(
            Turn(
                completion,
                messages,
                draw(st.none() | st.lists(dicts, max_size=2)),
                draw(dicts),
                agent_name=draw(st.text()),
                target_tag=draw(st.text()),
                trainable=draw(st.booleans()),
                reward=draw(st.none() | st.floats(-9, 9)),
                state_key=draw(st.none() | st.text()),
                started_s=draw(st.floats(0, 9)),
                ended_s=draw(st.floats(0, 9)),
                notes=draw(notes),
            )
        )
    return tuple(made)


@st.composite
def trajectories(draw, nested=True):
    task = Task(
        draw(st.text()), draw(st.text()), draw(st.lists(dicts, max_size=1)), "e", draw(dicts)
    )
    mode = draw(st.sampled_from(["train", "eval", "baseline"]))
    who = WorkflowTask(
        task, draw(st.text()), "000001-train-0003", draw(st.integers(0, 9)), 4, mode, 5
    )
    finite = st.floats(-9, 9)
    output = draw(
        st.none()
        | st.builds(
            WorkflowOutput,
            st.none() | finite,
            st.none() | st.booleans(),
            dicts,
            st.dictionaries(st.text(), finite, max_size=1),
        )
    )
    return Trajectory(
        who,
        draw(turns()),
        draw(st.sampled_from(list(EpisodeStatus))),
        output=output,
        reward=draw(st.none() | finite),
        is_success=draw(st.none() | st.booleans()),
        reward_breakdown=draw(st.dictionaries(st.text(), finite, max_size=2)),
        failure=draw(st.none() | st.text()),
        timings=draw(st.dictionaries(st.text(), finite, max_size=2)),
        began_unix_s=draw(finite),
        calls=draw(st.lists(calls, max_size=2).map(tuple)),
        earlier_attempts=draw(st.tuples(trajectories(nested=False)) | st.just(()))
        if nested
        else (),
        truncation=draw(st.none() | st.builds(Truncation, st.sampled_from(Limit), st.text())),
        selection=draw(st.none() | st.builds(Selection, st.sampled_from(SelectionName), st.text())),
    )


groups = st.builds(
    Group,
    st.text(),
    st.lists(trajectories(), max_size=2).map(tuple),
    st.none() | st.builds(Task, st.text(), st.text(), st.just([]), st.just("e"), dicts),
    st.none() | st.floats(-9, 9),
)
