"""Converts the learning-rate schedule, by its names in transformers and verl.

    lr_scheduler_type: cosine, 200 steps        lr_schedule: cosine
    lr_scheduler_type: cosine, no steps         left out: ours ends with the run's last step

Not covered: several cycles, schedules by other names: the rate then stays constant, and the head of
the YAML says so.
"""

from ajet.convert.draft import Draft

OPTIM = "ajet.trainer_common.optim"
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
}


def take_schedule(draft: Draft, kind: str, num_steps: str, ratio: str | None = None) -> None:
    """Converts the schedule. `kind`, `num_steps` (of the run) and `ratio` (of the last rate) are
    the source's keys."""
    if SCHEDULES.get(draft.take(kind), "constant") != "constant" and draft.number(num_steps) < 1:
        reason = f"the learning rate stays constant: a schedule ends with the run, and {num_steps} "
        draft.leave_out(kind, f"{reason}is not set", algorithm=True)
    else:
        draft.choose(kind, f"{OPTIM}.lr_schedule", SCHEDULES, "the learning rate stays constant")
    if ratio is not None:
        draft.copy(ratio, f"{OPTIM}.min_lr_ratio", float)
