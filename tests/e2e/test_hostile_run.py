"""A run by the command line whose workflow hands over every hostile value in every field that it
can set: it ends, counts its faults, and whoever looks at its folder afterwards can."""

import json
from collections import Counter

import pytest

from ajet.core.record.run_folder import RunFolder
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.read.episode_reader import EpisodeReader
from ajet.read.logview.run_page import RunPage, to_json
from tests.core.rollout.test_hostile_values import CALLS, NAMES, OUTPUTS, Hostile, rolled_out
from tests.e2e.toy_run import ToyRun

WORKFLOW = "tests.core.rollout.test_hostile_values->Hostile"
FIELDS = [*OUTPUTS, *CALLS]
LARGE = {"long text", "a huge key", "bytes", "torch array"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """One step of a group for each field, with a member for each value."""
    run = ToyRun(
        tmp_path_factory.mktemp("hostile"),
        f"ajet.rollout.user_workflow={WORKFLOW}",
        f"ajet.rollout.num_repeat={len(NAMES)}",
        f"ajet.data.train_batch_size={len(FIELDS)}",
        "ajet.data.shuffle=false",
        "ajet.rollout.max_failure_rate=1.0",
        "ajet.rollout.max_response_length_in_one_turn=4",
        "ajet.trainer_common.total_training_steps=1",
    )
    rows = [{"query": field} for field in FIELDS]
    (run.folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run.call(*run.arguments)
    assert result.exit_code == 0, result.output
    return run


def ended_as(run):
    """By field and value: how the episode ended."""
    with EpisodeReader(run.path / "episodes.sqlite") as reader:
        rows = reader.list(limit=len(FIELDS) * len(NAMES) + 1)
    number = len("train-")
    return {
        (FIELDS[int(row.task_id[number:])], NAMES[row.rollout_index]): row.status for row in rows
    }


async def test_each_episode_ends_as_it_does_beside_a_run_and_the_metrics_count_it(hostile):
    statuses = ended_as(hostile)
    beside = {
        (field, name): str(member.status)
        for field, group in zip(FIELDS, await rolled_out(Hostile, fields=FIELDS), strict=True)
        for name, member in zip(NAMES, group.trajectories, strict=True)
    }
    assert statuses.keys() == beside.keys()
    # What is too long for the toy run's prompts is not too long there.
    fitted = {what: status for what, status in statuses.items() if status != "truncated"}
    assert fitted == {what: beside[what] for what in fitted}
    assert {name for _, name in statuses.keys() - fitted.keys()} <= LARGE
    metrics = json.loads((hostile.path / "logs" / "metrics.jsonl").read_text())
    counted = {name: metrics[f"episodes/{name}"] for name in EpisodeStatus}
    assert {name: number for name, number in counted.items() if number} == Counter(
        statuses.values()
    )
    assert metrics["episodes/total"] == len(FIELDS) * len(NAMES)


def test_the_page_shows_the_run_its_list_and_its_episodes(hostile):
    page_of_run = RunPage(RunFolder(hostile.path))
    to_json(page_of_run.run())
    to_json(page_of_run.episodes({"text": "a"}))
    shown, after = 0, None
    while True:
        page = page_of_run.episodes({"limit": "100"} | ({"after": str(after)} if after else {}))
        for row in page["episodes"][::7]:
            assert b'"members"' in to_json(page_of_run.episode(row["episode_id"]))
        shown += len(page["episodes"])
        if not page["episodes"]:
            break
        after = page["episodes"][-1]["id"]
    assert shown == len(FIELDS) * len(NAMES)


def test_the_audit_finds_every_token_trained_as_it_should_be(hostile):
    result = hostile.call("audit", str(hostile.path))
    assert result.exit_code == 0, result.output


def test_an_episode_of_each_field_and_of_each_value_is_replayed(hostile):
    with EpisodeReader(hostile.path / "episodes.sqlite") as reader:
        rows = reader.list(limit=len(FIELDS) * len(NAMES))
    diagonal = [row for row in rows if row.rollout_index % len(FIELDS) == int(row.task_id[6:])]
    assert len(diagonal) == len(NAMES)
    for row in diagonal:
        result = hostile.call("replay", str(hostile.path), row.episode_id)
        assert result.exit_code == 0, (row, result.output, result.exception)
