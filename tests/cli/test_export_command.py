"""`ajet export`: from a run folder, given anywhere, to a folder that transformers loads."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app

RUN = "toy/launcher_record/toy"


@pytest.fixture(autouse=True)
def above(folder, monkeypatch):
    monkeypatch.chdir(folder)


def run(*args: str):
    return CliRunner().invoke(app, args, terminal_width=200)


@pytest.mark.parametrize("source", [RUN, f"{RUN}/checkpoints/step_000001"])
def test_a_run_or_a_checkpoint_is_written_as_a_model_folder(folder, tmp_path, source):
    from safetensors.torch import load_file

    result = run("export", source, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    written = load_file(tmp_path / "out" / "model.safetensors")
    learnt = load_file(folder / RUN / "checkpoints" / "step_000001" / "model.safetensors")
    assert written.keys() == learnt.keys()
    assert all(written[name].equal(learnt[name]) for name in learnt)
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["toy"], "no checkpoint in"),
        ([RUN, "--adapter"], "has no adapters"),
    ],
)
def test_a_mistake_is_one_line(args, said, tmp_path):
    result = run("export", *args, "--out", str(tmp_path / "out"))
    assert result.exit_code == 1, result.output
    [line] = result.stderr.splitlines()
    assert said in line


def test_a_folder_without_a_checkpoint_is_refused_before_torch_is_loaded(tmp_path):
    code = (
        "import sys; from ajet.cli.launcher import app\n"
        f"try: app(['export', 'nothing', '--out', {str(tmp_path / 'out')!r}])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1 False\n", done.stderr
    assert "no checkpoint in" in done.stderr
