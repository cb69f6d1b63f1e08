"""What starting a used run folder does: every difference is said, none changes an experiment."""

import json
import sys

import pytest

from ajet.backbones.disaggregated.backbone import EXPLORER_LOCK
from ajet.core.config.effects import CHANGES_LENGTH, CHANGES_NOTHING, Effect, effect_of
from ajet.core.config.nested import flatten
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import CheckpointError, RunChanged, RunComplete, RunFailed
from ajet.core.record.run_folder import RunFolder
from ajet.core.run.attempt_record import read_attempts
from ajet.core.run.code_files import code_files
from ajet.read.episode_reader import EpisodeReader
from tests.in_process_run import config, train

T = "ajet.trainer_common"
ONE, TWO = f"{T}.total_training_steps=1", f"{T}.total_training_steps=2"


@pytest.fixture
def toy(toy):
    toy.shrink()
    return toy


def train_until_step_2_fails(*overrides):
    """A run of two steps that stopped after the first."""
    with pytest.raises(RunFailed):
        train("ajet.rollout.user_workflow=workflow.py->AllFail", TWO, *overrides)


def edit_workflow(toy, name="workflow.py"):
    file = toy.folder / name
    file.write_text(file.read_text() + "\nEDITED = True\n")


def attempts(path):
    return read_attempts(RunFolder(path))


def test_the_same_command_on_a_finished_run_says_so_and_leaves_every_file_alone(toy):
    train(ONE)
    before = {path: path.stat().st_mtime_ns for path in toy.path.rglob("*") if path.is_file()}
    with pytest.raises(RunComplete, match=r"already complete: 1 of 1 steps .*--no-resume"):
        train(ONE)
    del before[toy.path / ".lock"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [attempt.total_steps for attempt in attempts(toy.path)] == [1]


def test_after_an_edit_a_finished_run_is_kept_and_a_new_one_begins(toy, warnings):
    train(ONE)
    edit_workflow(toy)
    assert train(ONE).steps == 1
    old = toy.path.with_name("toy.1")
    assert (
        "changed since the finished run: workflow.py changed; it is kept as toy.1, "
        "and a new run begins"
    ) in warnings
    for path in (old, toy.path):
        with EpisodeReader(path / "episodes.sqlite") as reader:
            assert reader.count() == 4
    assert "EDITED" not in (old / "attempts/0001/code/workflow.py").read_text()
    assert "EDITED" in (toy.path / "attempts/0001/code/workflow.py").read_text()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (f"{T}.optim.lr=0.5", "optim.lr 0.001 -> 0.5"),
        ("ajet.data.train_batch_size=3", "train_batch_size 2 -> 3"),
        ("ajet.seed=7", "ajet.seed 0 -> 7"),
        ("ajet.task_judge.judge_protocol=math", 'judge_protocol null -> "math"'),
        ("+mine.bonus=3", "mine.bonus added"),
    ],
)
def test_an_unfinished_run_does_not_go_on_as_another_experiment(toy, override, said):
    train_until_step_2_fails()
    kept = (toy.path / "config.yaml").read_bytes()
    with pytest.raises(RunChanged) as error:
        train("ajet.rollout.user_workflow=workflow.py->AllFail", TWO, override)
    assert said.replace("added", "null -> 3") in str(error.value)
    assert "stopped after step 1 of 2" in str(error.value)
    assert "--accept-changes" in str(error.value) and "--no-resume" in str(error.value)
    assert (toy.path / "config.yaml").read_bytes() == kept
    assert len(attempts(toy.path)) == 1


def test_accept_changes_goes_on_and_records_what_changed_and_where(toy):
    train_until_step_2_fails()
    rate = f"{T}.optim.lr=0.5"
    assert train(TWO, rate, f"{T}.accept_changes=true").steps == 2
    first, second = attempts(toy.path)
    assert (first.first_step, first.end, first.last_step) == (0, "failed", 1)
    assert first.reason.startswith("RunFailed: ")
    assert (second.first_step, second.end, second.last_step, second.accepted) == (
        1, "complete", 2, True
    )  # fmt: skip
    assert {change.what for change in second.changes} == {
        f"{T}.optim.lr", "ajet.rollout.user_workflow"
    }  # fmt: skip
    assert "lr: 0.001" in (toy.path / "attempts/0001/config.yaml").read_text()
    assert "lr: 0.5" in (toy.path / "attempts/0002/config.yaml").read_text()


def test_how_an_earlier_start_was_answered_is_no_change_of_the_run(toy, warnings):
    train_until_step_2_fails()
    fails = ("ajet.rollout.user_workflow=workflow.py->AllFail", TWO)
    with pytest.raises(RunFailed):
        train(*fails, f"{T}.resume=disable")
    with pytest.raises(RunFailed):  # it goes on, and fails where it failed before
        train(*fails)
    *_, last = attempts(toy.path)
    assert (last.first_step, last.changes) == (1, [])
    assert not any("changed since the last start" in line for line in warnings)


def test_held_out_tasks_that_are_trained_on_are_told_of_when_a_run_starts(toy, warnings):
    train(ONE, "ajet.task_reader.jsonl_dataset_file.validation.file_path=tasks.jsonl")
    told = [line for line in warnings if "are also training tasks" in line]
    assert len(told) == 1 and told[0].startswith(
        "data: 13 of 13 validation tasks are also training"
    )


def test_a_longer_run_goes_on_and_says_so(toy, warnings):
    train(ONE)
    assert train(TWO).steps == 2
    change = f"{T}.total_training_steps 1 -> 2"
    resumes = "resumes after step 1 of 2; changed since the last start"
    assert f"the finished run becomes longer: it {resumes}: {change}" in warnings


def test_a_longer_run_says_that_its_learning_rate_ends_elsewhere(toy, warnings):
    schedule = (f"{T}.optim.lr_schedule=linear", f"{T}.optim.warmup_steps=0")
    train(ONE, *schedule)
    train(TWO, *schedule)
    assert "the learning rate's linear schedule ends at the new last step" in warnings[-1]


def test_another_logger_is_no_other_experiment(toy):
    train_until_step_2_fails()
    with pytest.raises(RunFailed):  # it went on, and failed where it failed before
        train("ajet.rollout.user_workflow=workflow.py->AllFail", TWO, f"{T}.logger=console")
    assert attempts(toy.path)[1].first_step == 1


def test_other_rows_and_other_files_are_other_experiments(toy):
    train_until_step_2_fails()
    same = ("ajet.rollout.user_workflow=workflow.py->AllFail", TWO)
    tasks = (toy.folder / "tasks.jsonl").read_text()
    (toy.folder / "tasks.jsonl").write_text(tasks.replace("What is 3", "What was 3"))
    with pytest.raises(RunChanged, match=r"file_path changed, training tasks changed"):
        train(*same)
    (toy.folder / "tasks.jsonl").write_text(tasks + tasks)
    with pytest.raises(RunChanged, match="training tasks 13 -> 26"):
        train(*same)
    (toy.folder / "tasks.jsonl").write_text(tasks)
    with pytest.raises(RunFailed):
        train(*same)


def test_a_start_that_finished_no_step_leaves_nothing_behind_to_ask_about(toy):
    with pytest.raises(RunFailed):
        train(ONE, "ajet.rollout.user_workflow=workflow.py->Raises", f"{T}.save_freq=0")
    for path in (toy.path / "checkpoints").iterdir():  # as if it had been killed before
        path.rename(toy.folder / path.name)
    assert train(ONE).steps == 1
    assert not toy.path.with_name("toy.1").exists()
    assert [each.end for each in attempts(toy.path)] == ["failed", "complete"]


def test_a_run_folder_without_attempts_is_compared_by_its_config(toy):
    train_until_step_2_fails()
    for file in (toy.path / "attempts/0001").iterdir():
        if file.is_file():
            file.unlink()
    same = ("ajet.rollout.user_workflow=workflow.py->AllFail", TWO)
    with pytest.raises(RunChanged, match=r"changed since: ajet.seed 0 -> 7;"):
        train(*same, "ajet.seed=7")
    with pytest.raises(RunFailed):
        train(*same)


def test_a_killed_start_has_no_end(toy):
    train(ONE)
    file = toy.path / "attempts/0001/attempt.json"
    content = json.loads(file.read_text()) | {"end": None, "ended": None, "last_step": None}
    file.write_text(json.dumps(content))
    assert train(ONE).steps == 1  # it may lack its summary, so it goes on to its end
    first, second = attempts(toy.path)
    assert first.describe() == "attempt 1: steps 1 to …, no end recorded"
    assert second.describe() == "attempt 2: no step after step 1, complete"


def test_a_start_after_a_damaged_attempt_overwrites_none(toy):
    train(ONE)
    train(TWO)
    path = toy.path / "attempts"
    kept = (path / "0002/attempt.json").read_text()
    (path / "0001/attempt.json").write_text("{")
    train(f"{T}.total_training_steps=3")
    assert [attempt.number for attempt in attempts(toy.path)] == [2, 3]
    assert (path / "0002/attempt.json").read_text() == kept


def test_the_replies_of_a_judging_model_stay_at_hand_when_a_run_is_kept_aside(toy):
    train(ONE)
    (toy.path / "judge_replies.sqlite").write_bytes(b"replies")
    train(ONE, f"{T}.resume=disable")
    assert (toy.path / "judge_replies.sqlite").read_bytes() == b"replies"


# --- which files are code ------------------------------------------------------------------------


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_code_is_what_the_named_files_import_also_inside_a_function(toy):
    write(
        toy.folder,
        agent="import helper\ndef later():\n    from prompts.system import TEXT\nclass A: ...",
        helper="import json, torch",
        prompts__system="from . import words",
        prompts__words="",
        launch="import agent",
    )
    found = code_files(config("ajet.rollout.user_workflow=agent.py->A"))
    names = [str(path.relative_to(toy.folder.resolve())) for path in found]
    assert names == ["agent.py", "helper.py", "prompts/system.py", "prompts/words.py"]


def test_code_is_found_through_modules_environments_and_lists_of_tools(toy):
    write(
        toy.folder, game="class Game: ...", judges__math="class J: ...", tools__add="class T: ..."
    )
    (toy.folder / "tools.yaml").write_text("tools: [{class_name: tools.add.T, config: {}}]")
    found = code_files(
        config(
            "ajet.task_judge.judge_protocol=judges.math->J",
            "ajet.environment.custom_envs={g: {env_type: 'game.py->Game'}}",
            "ajet.rollout.multi_turn.tool_config_path=tools.yaml",
        )
    )
    assert [path.name for path in found] == ["game.py", "math.py", "add.py", "workflow.py"]


def test_a_folder_of_installed_packages_on_the_import_path_is_no_code_of_the_user(
    toy, tmp_path, monkeypatch
):
    packages = tmp_path / "packages"  # as pip install --target makes it, or a user's own
    (packages / "lib-1.0.dist-info").mkdir(parents=True)
    (packages / "lib.py").write_text("import other")
    (packages / "other.py").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/shared.py").write_text("import lib")
    monkeypatch.setattr(sys, "path", [str(packages), str(tmp_path / "mine"), *sys.path])
    write(toy.folder, agent="import lib, shared")
    found = code_files(config("ajet.rollout.user_workflow=agent.py->A"))
    assert [path.name for path in found] == ["agent.py", "shared.py"]


def test_a_file_that_is_no_python_imports_nothing(toy):
    write(toy.folder, broken="import helper\nclass :", helper="")
    found = code_files(config("ajet.rollout.user_workflow=broken.py->A"))
    assert [path.name for path in found] == ["broken.py"]


# --- which keys may change -----------------------------------------------------------------------


def test_every_name_in_the_table_of_effects_is_a_key_or_a_section():
    keys = flatten(AjetConfig().to_dict())
    for name in (*CHANGES_LENGTH, *CHANGES_NOTHING):
        assert any(f"{key}.".startswith(f"{name}.") for key in keys), name


def test_a_key_that_is_not_in_the_table_changes_the_experiment():
    assert effect_of("ajet.rollout.temperature") is Effect.EXPERIMENT
    assert effect_of("mine.bonus") is Effect.EXPERIMENT
    assert effect_of("ajet.trainer_common.total_epochs") is Effect.LENGTH
    assert effect_of("ajet.debug.debug_first_n_tasks") is Effect.NOTHING
    assert effect_of("ajet.debugger") is Effect.EXPERIMENT


def test_a_run_whose_explorer_still_works_is_not_kept_under_another_name(toy):
    train(ONE)
    with (
        RunFolder.open(toy.path, EXPLORER_LOCK),
        pytest.raises(CheckpointError, match="a process of backbone trinity still writes there"),
    ):
        train(ONE, f"{T}.resume=disable")
    assert not toy.path.with_name("toy.1").exists()
    assert [attempt.end for attempt in attempts(toy.path)] == ["complete"]
    train(ONE, f"{T}.resume=disable")
    assert toy.path.with_name("toy.1").exists()
