"""Episodes that earned enough become rows; a supervised run trains the ids that were sampled."""

import json

import pytest

from ajet.read.episode_reader import EpisodeFilter, EpisodeReader
from tests.e2e.toy_run import ToyRun

SUPERVISED = (
    "ajet.kind=supervised",
    "ajet.experiment_name=imitated",
    "ajet.task_reader.jsonl_dataset_file.training.file_path=good.jsonl",
    "ajet.trainer_common.total_training_steps=null",
    "ajet.trainer_common.total_epochs=1",
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    run = ToyRun(tmp_path_factory.mktemp("distilled"), "ajet.trainer_common.total_training_steps=2")
    assert run.finish() == 0, run.stderr()
    return run


def distill(toy, *options):
    toy_command = ToyRun.__new__(Command)
    toy_command.folder, toy_command.overrides = toy.folder, options
    (toy.folder / "stdout").unlink(missing_ok=True)
    code = toy_command.finish()
    file = toy.folder / "good.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return code, rows


class Command(ToyRun):
    @property
    def arguments(self):
        command = ["distill-data", "launcher_record/toy", "--out", "good.jsonl", "--overwrite"]
        return [*command, *self.overrides]


def turns_of(folder, **which):
    with EpisodeReader(folder / "episodes.sqlite") as reader:
        return [turn for each in reader.walk(EpisodeFilter(**which)) for turn in each.turns]


def test_a_supervised_run_trains_the_very_ids_that_were_sampled(toy):
    code, rows = distill(toy, "--min-reward", "2")
    assert code == 0, toy.stderr()
    sampled = turns_of(toy.path, mode="train", min_reward=2.0)
    assert f"{len(rows)} rows, {len(rows)} of them with exactly" in toy.stdout()
    assert toy.finish(*SUPERVISED) == 0, toy.stderr()
    given = turns_of(toy.path.with_name("imitated"))
    ids = [(t.prompt_ids.tolist(), t.token_ids.tolist()) for t in given]
    expected = [(t.prompt_ids.tolist(), t.token_ids.tolist()) for t in sampled]
    assert all(each in ids for each in expected) and all(each in expected for each in ids)
    assert all(t.notes.is_given and t.loss_mask is not None and t.loss_mask.all() for t in given)


PREFERENCE = (
    "ajet.kind=preference",
    "ajet.experiment_name=preferred",
    "ajet.task_reader.jsonl_dataset_file.training.file_path=good.jsonl",
    "ajet.trainer_common.total_training_steps=2",
)


def test_a_preference_run_trains_the_very_ids_of_the_best_and_the_worst_of_each_group(toy):
    code, rows = distill(toy, "--pairs", "--min-reward", "1")
    assert code == 0 and rows, toy.stderr()
    with EpisodeReader(toy.path / "episodes.sqlite") as reader:
        rewards = {}
        for each in reader.list(limit=1000):
            if each.mode == "train" and each.reward is not None:
                rewards.setdefault(each.group_id, []).append(each.reward)
    ends = sorted([max(of), min(of)] for of in rewards.values() if max(of) >= 1 and len({*of}) > 1)
    assert sorted(row["rewards"] for row in rows) == ends
    assert toy.finish(*PREFERENCE) == 0, toy.stderr()
    turns = turns_of(toy.path.with_name("preferred"))
    given = [(t.prompt_ids.tolist(), t.token_ids.tolist()) for t in turns]
    sampled = [
        (t.prompt_ids.tolist(), t.token_ids.tolist()) for t in turns_of(toy.path, mode="train")
    ]
    assert given and all(each in sampled for each in given)
    [line] = [each for each in toy.stdout().splitlines() if each.startswith("step 1/2 ")]
    assert "loss 0.6931  accuracy 0.000  cross-entropy" in line  # log 2: it is its reference
    assert "ajet why" not in toy.stdout()
    (toy.folder / "stdout").unlink()
    assert toy.finish("--json", *PREFERENCE) == 0
    document = json.loads(toy.stdout())
    assert [each.split()[1] for each in document["next"]] == ["export"]


def test_rows_are_of_good_episodes_of_training_and_as_many_of_a_task_as_are_asked_for(toy):
    code, rows = distill(toy, "--min-reward", "3", "--per-task", "1")
    assert code == 0
    with EpisodeReader(toy.path / "episodes.sqlite") as reader:
        of = {each.episode_id: each for each in reader.list(limit=1000)}
    tasks = [of[row["task_id"]].task_id for row in rows]
    assert len(tasks) == len(set(tasks)) > 0
    assert all(of[row["task_id"]].reward == row["reward"] >= 3 for row in rows)


def test_a_tokenizer_with_another_vocabulary_writes_the_messages_anew(toy):
    _, rows = distill(toy, "--min-reward", "2")
    file = toy.folder / "good.jsonl"
    changed = [row | {"vocabulary": "another"} for row in rows]
    for row in changed:
        for message in row["messages"]:
            message.pop("token_ids", None)
            if message["role"] == "assistant":
                message["token_ids"] = [1, 2, 3]
    file.write_text("".join(json.dumps(row) + "\n" for row in changed))
    assert toy.finish(*SUPERVISED, "ajet.experiment_name=anew") == 0, toy.stderr()
    turns = turns_of(toy.path.with_name("anew"))
    assert turns and all(t.token_ids.tolist() != [1, 2, 3] for t in turns)


def test_no_episode_that_earned_enough_is_one_line(toy):
    (toy.folder / "stderr").unlink(missing_ok=True)
    code, _ = distill(toy, "--min-reward", "100")
    assert code == 1
    line = (
        "error: launcher_record/toy: no training episode has a reward of 100 or more [AJ-RUN-020]"
    )
    assert toy.errors() == [line]
