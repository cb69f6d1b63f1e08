"""A run folder whose files are damaged: every command says one line, or works."""

import contextlib
import random
import shutil

import pytest

from ajet.core.errors import AjetError
from ajet.core.record.run_folder import RunFolder
from ajet.read.episode_reader import EpisodeReader
from ajet.read.logview.run_page import RunPage, to_json
from tests.e2e.toy_run import ToyRun
from tests.forged_manifest import forge_manifest

TWO = "ajet.trainer_common.total_training_steps=2"
THREE = "ajet.trainer_common.total_training_steps=3"
SMALL = ("ajet.data.train_batch_size=2", "ajet.rollout.num_repeat=2")
"""The same files as in a larger run."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two steps, all well; not to be changed."""
    run = ToyRun(tmp_path_factory.mktemp("good"), *SMALL)
    result = run.call(*run.arguments, TWO)
    assert result.exit_code == 0, result.output
    return run


def half(content):
    return content[: len(content) // 2]


def flipped(content):
    changed = bytearray(content)
    draw = random.Random(len(changed))
    for _ in range(-(-len(changed) // 500)):
        changed[draw.randrange(len(changed))] ^= 1 << 3
    return bytes(changed)


def garbage(content):
    return random.Random(7).randbytes(max(len(content), 100))


DAMAGES = {
    "empty": lambda content: b"",
    "half": half,
    "flipped": flipped,
    "garbage": garbage,
    "not utf-8": lambda content: content[:10] + b"\xff\xfe" + content[10:],
    "a folder": None,
}


def damage(file, name):
    """Damages the file, or puts a folder in its place."""
    of = DAMAGES[name]
    content = file.read_bytes()
    if of is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(of(content))


def files_of(run):
    return sorted(
        str(path.relative_to(run.path))
        for path in run.path.rglob("*")
        if path.is_file() and "tensorboard" not in path.parts and path.name != ".lock"
    )


def one_line_or_well(result):
    """The command worked, or said what is wrong in one line."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    notices = ("notice: ", "warning: ", "note: ")
    lines = [line for line in result.stderr.splitlines() if not line.startswith(notices)]
    errors = [line for line in lines if line.startswith("error: ")]
    assert result.exit_code in (0, 1), result.output
    assert len(errors) == result.exit_code, result.output


def look(folder):
    """What the page shows of the run and of its newest episode; AjetErrors are shown too."""
    page = RunPage(RunFolder(folder))
    for of_run in (page.run, page.changes, page.steps, page.comparison, page.config, page.origin):
        with contextlib.suppress(AjetError):
            to_json(of_run())
    with contextlib.suppress(AjetError):
        to_json(page.metrics({"names": "reward/mean"}))
    with contextlib.suppress(AjetError):
        page.episodes({"text": "a"})
    with contextlib.suppress(AjetError):
        for row in page.episodes({})["episodes"][:3]:
            to_json(page.episode(row["episode_id"]))
            query = {"step": str(row["step"]), "mode": row["mode"], "group_id": row["group_id"]}
            to_json(page.group(query))
            to_json(page.step(query))
            to_json(page.task({"task_id": row["task_id"]}))
    page.close()


def damaged_copies(good, folder, resumes):
    """Yields a copy of the run with one file damaged, for each file and damage."""
    copy = ToyRun(folder / "copy", *SMALL)
    shutil.rmtree(copy.folder)
    # Nobody looks at checkpoints, and the others are written anew when a run starts.
    unread = ("code/", "tokenizer/") if resumes else ("checkpoints/",)
    for name in files_of(good):
        if name.startswith(unread):
            continue
        for how in DAMAGES:
            if resumes and how != list(DAMAGES)[len(name) % len(DAMAGES)]:
                continue  # a run takes seconds: one damage for each file
            shutil.rmtree(copy.folder, ignore_errors=True)
            shutil.copytree(good.folder, copy.folder)
            damage(copy.path / name, how)
            yield copy, f"{name}, {how}"


def test_every_damaged_file_is_one_line_or_no_matter_to_those_who_look(good, tmp_path):
    with EpisodeReader(good.path / "episodes.sqlite") as reader:
        episode = reader.list(limit=1)[0].episode_id
    for copy, what in damaged_copies(good, tmp_path, resumes=False):
        print(what)  # shown where it fails
        look(copy.path)
        one_line_or_well(copy.call("audit", str(copy.path)))
        one_line_or_well(copy.call("replay", str(copy.path), episode))


def test_every_damaged_file_is_one_line_or_no_matter_to_a_resumed_run(good, tmp_path):
    for copy, what in damaged_copies(good, tmp_path, resumes=True):
        print(what)
        one_line_or_well(copy.call(*copy.arguments, THREE))


def test_no_damaged_file_of_a_checkpoint_is_exported(good, tmp_path):
    copy = ToyRun(tmp_path / "copy", *SMALL)
    newest = copy.path / "checkpoints" / "step_000002"
    names = [path.name for path in (good.path / "checkpoints" / "step_000002").iterdir()]
    assert "model.safetensors" in names
    for name in names:
        for how in ("half", "flipped", "a folder"):
            print(name, how)
            shutil.rmtree(copy.folder)
            shutil.copytree(good.folder, copy.folder)
            damage(newest / name, how)
            alone = copy.call("export", str(newest), "--out", str(tmp_path / "out"))
            assert alone.exit_code == 1 and not (tmp_path / "out").exists()
            assert f"error: checkpoint {newest} cannot be used: {name} " in alone.stderr
            if how != "flipped":
                continue  # which checkpoint a run's export takes is the same for each damage
            result = copy.call("export", str(copy.path), "--out", str(tmp_path / "out"))
            assert result.exit_code == 0, result.output
            assert f"{newest} is damaged ({name} " in result.stderr
            assert "step_000001" in result.stdout.splitlines()[-1]
            shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "origin.json",
        "episodes.sqlite",
        "logs/metrics.jsonl",
        "logs/run.log",
        "logs/warnings.jsonl",
        "tokenizer/tokenizer.json",
    ],
)
def test_a_folder_in_the_place_of_a_file_is_named_by_the_command_that_needs_it(
    good, tmp_path, name
):
    copy = ToyRun(tmp_path / "copy", *SMALL)
    shutil.rmtree(copy.folder)
    shutil.copytree(good.folder, copy.folder)
    damage(copy.path / name, "a folder")
    read = name.startswith("tokenizer")
    arguments = ["audit", str(copy.path)] if read else [*copy.arguments, THREE]
    result = copy.call(*arguments)
    one_line_or_well(result)
    [error] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert str(copy.path / name) in error
    assert ("no such file" if read else "is a folder, where a file is written") in error


def test_weights_that_lie_under_a_forged_manifest_are_one_line_of_every_command(good, tmp_path):
    copy = ToyRun(tmp_path / "copy", *SMALL)
    shutil.rmtree(copy.folder)
    shutil.copytree(good.folder, copy.folder)
    for path in (copy.path / "checkpoints").iterdir():
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-10])
        forge_manifest(path)
    evaluated = ("eval", "--conf", "toy.yaml", "--split", "training", "--num-tasks", "1")
    for arguments in (
        [*copy.arguments, THREE],
        [*evaluated, "--checkpoint", str(copy.path)],
        ["export", str(copy.path), "--out", str(tmp_path / "out")],
    ):
        result = copy.call(*arguments)
        one_line_or_well(result)
        assert result.exit_code == 1
        assert f"error: checkpoint {copy.path}/checkpoints/step_000002 cannot be" in result.stderr
        assert "; move it away to resume from an earlier one" in result.stderr
    assert not (tmp_path / "out").exists()
