import json
import re
import subprocess
import sys

import pytest

from ajet.core.errors import ConfigError
from ajet.core.record.metrics import MetricsLogger
from ajet.core.record.run_folder import RunFolder
from ajet.core.text.install import install_command


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "run") as opened:
        yield opened


def logged(folder, names, steps, **options):
    metrics = MetricsLogger(names, folder, **options)
    for step in steps:
        metrics.log(step, {"reward/mean": step / 4, "update/loss": float("nan")})
    metrics.close()


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.tensorboard))
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(name)]


def test_tensorboard_reads_what_was_logged(folder):
    logged(folder, "tensorboard", [1, 2])
    assert scalars(folder, "reward/mean") == [(1, 0.25), (2, 0.5)]


def test_a_resumed_run_supersedes_the_steps_that_it_runs_again(folder):
    logged(folder, "tensorboard", [1, 2, 3])
    logged(folder, "tensorboard", [2, 3, 4], start_step=2)
    assert [step for step, _ in scalars(folder, "reward/mean")] == [1, 2, 3, 4]
    lines = [json.loads(line) for line in folder.metrics_jsonl.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]


def test_a_line_cut_off_by_a_kill_is_dropped(folder):
    folder.metrics_jsonl.write_text('{"step": 1}\n{"step": 2, "rewa')
    logged(folder, [], [3], start_step=3)
    lines = [json.loads(line) for line in folder.metrics_jsonl.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 3]
    assert lines[1]["update/loss"] is None  # NaN is no JSON


def test_console_prints_one_line_a_step(folder, capsys):
    logged(folder, ["console", "tensorboard"], [1])
    assert capsys.readouterr().out == "step 1  reward/mean=0.25  update/loss=nan\n"
    assert scalars(folder, "reward/mean") == [(1, 0.25)]


def test_an_unknown_logger_is_one_line_with_the_nearest_name(folder):
    with pytest.raises(ConfigError, match="no logger 'tensorbord'; did you mean 'tensorboard'"):
        MetricsLogger("tensorbord", folder)


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow"])
def test_a_logger_that_is_not_installed_says_how_to_get_it(folder, name):
    try:
        __import__(name)
    except ModuleNotFoundError:
        with pytest.raises(ConfigError, match=re.escape(install_command(name))):
            MetricsLogger(name, folder)
    else:
        pytest.skip(f"{name} is installed here")


def test_tensorboard_needs_neither_torch_nor_tensorflow(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from ajet.core.record.metrics import MetricsLogger\n"
        "from ajet.core.record.run_folder import RunFolder\n"
        f"MetricsLogger('tensorboard', RunFolder.open(Path({str(tmp_path)!r}))).close()\n"
        "print([m for m in ('torch', 'tensorflow', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
