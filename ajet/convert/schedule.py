"""Converts the learning-rate schedule, by its names in transformers and verl.

    lr_scheduler_type: cosine, 200 steps        lr_schedule: cosine
    lr_scheduler_type: cosine, no steps         left out: ours ends with the run's last step

With any other schedule the rate stays constant, and the head of the YAML says so.
"""

from ajet.convert.draft import Choices, Draft

OPTIM = "ajet.trainer_common.optim"
SCHEDULES = Choices(
    {
        "constant": "constant",
        "constant_with_warmup": "constant",
        "linear": "linear",
        "cosine": "cosine",
    },
    "the learning rate stays constant",
)


def take_schedule(draft: Draft, schedule: str, num_steps: str, ratio: str | None = None) -> None:
    """Converts the schedule. `schedule`, `num_steps` (of the run) and `ratio` (of the last rate)
    are keys of the source."""
    name = SCHEDULES.values.get(draft.take(schedule), "constant")
    if name != "constant" and draft.number(num_steps) < 1:
        reason = f"the learning rate stays constant: a schedule ends with the run, and {num_steps} "
        draft.refuse(schedule, f"{reason}is not set")
    else:
        draft.copy(schedule, f"{OPTIM}.lr_schedule", SCHEDULES)

    if ratio is not None:
        draft.copy(ratio, f"{OPTIM}.min_lr_ratio", float)
