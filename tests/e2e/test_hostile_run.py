"""A run by the command line whose workflow hands over hostile values in every field that it can
set: it ends, counts its faults, and whoever looks at its folder afterwards can. Every value in
every field, without a run: tests/core/rollout/test_hostile_values.py."""

import json
from collections import Counter

import pytest

from ajet.core.record.run_folder import RunFolder
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.read.episode_reader import EpisodeReader
from ajet.read.logview.run_page import RunPage, to_json
from tests.core.rollout.test_hostile_values import CALLS, NAMES, OUTPUTS, Hostile, rolled_out
from tests.e2e.toy_run import ToyRun

WORKFLOW = "tests.e2e.test_hostile_run->Spread"
FIELDS = [*OUTPUTS, *CALLS]
EVERY = 4
MEMBERS = -(-len(NAMES) // EVERY)
LARGE = {"long text", "a huge key", "bytes", "torch array"}


def name_of(field, rollout_index):
    """Each field gets every fourth value, and the next field the ones after those."""
    return NAMES[(EVERY * rollout_index + FIELDS.index(field)) % len(NAMES)]


class Spread(Hostile):
    def value_name(self, workflow_task):
        return name_of(workflow_task.task.main_query, workflow_task.rollout_index)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """One step of a group for each field, with a member for some of the values."""
    run = ToyRun(
        tmp_path_factory.mktemp("hostile"),
        f"ajet.rollout.user_workflow={WORKFLOW}",
        f"ajet.rollout.num_repeat={MEMBERS}",
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


def rows_of(run):
    """Each episode with its field and its value."""
    with EpisodeReader(run.path / "episodes.sqlite") as reader:
        rows = reader.list(limit=len(FIELDS) * MEMBERS + 1)
    fields = [FIELDS[int(row.task_id.removeprefix("train-"))] for row in rows]
    names = map(name_of, fields, (row.rollout_index for row in rows))
    return list(zip(rows, fields, names, strict=True))


async def test_each_episode_ends_as_it_does_beside_a_run_and_the_metrics_count_it(hostile):
    statuses = {(field, name): row.status for row, field, name in rows_of(hostile)}
    assert {name for _, name in statuses} == {*NAMES}
    groups = await rolled_out(Spread, fields=FIELDS, num_repeat=MEMBERS)
    beside = {
        (field, name_of(field, number)): str(member.status)
        for field, group in zip(FIELDS, groups, strict=True)
        for number, member in enumerate(group.trajectories)
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
    assert metrics["episodes/total"] == len(FIELDS) * MEMBERS


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
    assert shown == len(FIELDS) * MEMBERS


def test_the_audit_finds_every_token_trained_as_it_should_be(hostile):
    result = hostile.call("audit", str(hostile.path))
    assert result.exit_code == 0, result.output


def test_an_episode_of_each_field_and_of_each_value_is_replayed(hostile):
    new, rows = {*FIELDS, *NAMES}, rows_of(hostile)
    for at_least in (2, 1):  # at first those in which both are new
        for row, field, name in rows:
            if len(new & {field, name}) < at_least:
                continue
            new -= {field, name}
            result = hostile.call("replay", str(hostile.path), row.episode_id)
            assert result.exit_code == 0, (row, result.output, result.exception)
    assert not new
