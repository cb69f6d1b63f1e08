"""Implements `ajet inspect score RUN EPISODE`: the probabilities of its tokens during training."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overrides, Verbose


def score(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    episode: Annotated[str, typer.Argument(help="The episode's id, or a unique beginning of it.")],
    overrides: Overrides = None,
    checkpoints: Annotated[
        str,
        typer.Option(help="Steps of kept checkpoints, separated by commas, or all."),
    ] = "all",
    verbose: Verbose = False,
) -> None:
    """Score a recorded episode's tokens under kept checkpoints.

    Writes scores/EPISODE.json into the run folder, from which `ajet view` draws each token's curve.
    Step 0 is the model that the run began with.
    """
    import os
    from statistics import fmean

    from ajet.backbones.debug.scoring import score_episode
    from ajet.core.record.atomic_file import writing
    from ajet.core.record.run_log import begin_screen_log
    from ajet.core.record.scores import EpisodeScores, add_scores
    from ajet.read.recorded_run import RecordedRun

    begin_screen_log(verbose)
    recorded = RecordedRun(run.absolute(), overrides=overrides or [])
    chosen = _chosen(recorded.folder.path / "checkpoints", checkpoints)
    with recorded.reader() as reader:
        record = reader.episode(reader.find(episode))
    with writing(recorded.folder.scores):  # fails now if the folder is not writable
        recorded.folder.scores.mkdir(exist_ok=True)
    os.chdir(recorded.current_folder)  # the model's path may be relative
    all_scores: list[EpisodeScores] = []
    means: dict[int, float] = {}
    for scores in score_episode(recorded, record, chosen):
        logprobs = [logprob for turn in scores.turns for logprob in turn]
        if logprobs:
            means[scores.step] = fmean(logprobs)
            typer.echo(
                f"step {scores.step}: mean log-probability {means[scores.step]:.4f} "
                f"of {len(logprobs)} tokens"
            )
        all_scores.append(scores)
    file = add_scores(recorded.folder, record.row.episode_id, all_scores)
    answer(file=file, mean_logprob_by_step=means)
    typer.echo(f"written: {file}")


def _chosen(folder: Path, steps: str) -> list[Path]:
    """Returns the folders of the checkpoints of these steps, the earliest first."""
    from ajet.core.checkpoint.manifest import REPLACED, candidates, step_of
    from ajet.core.errors import ConfigError, OptionError
    from ajet.core.errors.codes import Code

    kept = {
        step_of(path): path
        for path in reversed(candidates(folder))
        if not path.name.startswith(REPLACED)
    }
    if steps == "all":
        return list(kept.values())
    requested = [step.strip() for step in steps.split(",")]
    if not all(step.isdecimal() for step in requested):
        raise OptionError(
            f"--checkpoints {steps!r}: write steps separated by commas, such as 10,20, or all"
        )
    absent = [step for step in requested if int(step) not in kept]
    if absent:
        has = f"those of steps {', '.join(map(str, kept))}" if kept else "none"
        raise ConfigError(
            f"--checkpoints {steps}: no checkpoint of step {', '.join(absent)} in {folder}, "
            f"which has {has}; max_checkpoints_to_keep says how many a run keeps",
            code=Code.CHECKPOINT_NOT_FOUND,
        )
    return [kept[step] for step in sorted(map(int, requested))]
