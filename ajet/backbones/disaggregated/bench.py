"""Mode bench: evaluates each checkpoint of a run on the held-out tasks, in the order of the steps.

    checkpoints/step_N ─> `ajet eval` ─> bench.jsonl, a line each: {"step": N, "held_out/…": …}

Seeds and sampling are those of the run's validation, so the figures are equal. The run may continue
meanwhile; its new checkpoints are not evaluated.
"""

import json

from ajet.backbones.evaluating import Subject, evaluate_subject
from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import CheckpointError
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.step_metrics import held_out_metrics
from ajet.core.terminal import Console
from ajet.core.update.manifest import step_of


def bench(config: AjetConfig, console: Console) -> None:
    """Evaluates all checkpoints and rewrites bench.jsonl."""
    folder = RunFolder(config.run_folder)
    checkpoints = sorted(folder.checkpoints.glob("step_*"), key=step_of)
    if not checkpoints:
        raise CheckpointError(
            f"no checkpoint in {folder.checkpoints}: train first", code=Code.CHECKPOINT_NOT_FOUND
        )
    with folder.bench_jsonl.open("w", encoding="utf-8") as file:
        for path in checkpoints:
            report = evaluate_subject(config, Subject(checkpoint=path))
            line = {"step": step_of(path), **held_out_metrics(report.figures)}
            file.write(json.dumps(line) + "\n")
            file.flush()
            success = report.figures.success
            console.print(f"step {step_of(path)}: success {success}", markup=False)
    console.print(f"written: {folder.bench_jsonl}", markup=False, soft_wrap=True)
