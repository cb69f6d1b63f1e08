"""Implements `ajet check`: checks a config and prints the run's arithmetic. Loads no model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Backbone, Conf, ExpDir, Overrides, ProjectDir, Verbose

if TYPE_CHECKING:
    from ajet.cli.notices import Finding
    from ajet.core.config import AjetConfig


@dataclass
class CheckedRun:
    """What `ajet check --json` says of a run, or of one of its stages. `start` says what a start
    would do with the run folder; it is None if a finding is an error."""

    stage: str | None
    agents: list[str]
    judge: str | None
    run_folder: Path
    batch: dict[str, int]
    findings: "list[Finding]" = field(default_factory=list)
    start: str | None = None


def check(
    conf: Conf,
    overrides: Overrides = None,
    backbone: Backbone = None,
    exp_dir: ExpDir = None,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Check a config, everything it names, and this machine.

    Looks at the workflow, the judge, the data and the model's files. Prints the batch arithmetic, a
    line for each finding, and what a start would do with an existing run folder; exit code 1 if a
    finding is an error. Makes the judge, tries its address and the environments', loads no model.
    """
    from ajet.backbones.stages import beginning_from, finished_model
    from ajet.core.config import load_stages
    from ajet.core.config.load import errors_of_stage
    from ajet.core.record.run_log import begin_screen_log

    begin_screen_log(verbose)
    before: AjetConfig | None = None
    runs: list[CheckedRun] = []
    answer(runs=runs)
    for config in load_stages(
        conf, overrides or [], backbone=backbone, exp_dir=exp_dir, project_dir=project_dir
    ):
        if before is not None and (model := finished_model(before)) is not None:
            config = beginning_from(config, model)
        with errors_of_stage(config.stage):
            _check(config, conf, runs)
        before = config


def _check(config: "AjetConfig", conf: Path, runs: list[CheckedRun]) -> None:
    """Prints what there is to say of a run, and adds it to `runs`."""
    from rich.markup import escape
    from rich.table import Table

    from ajet.cli.findings import (
        column_findings,
        data_findings,
        engine_findings,
        reference_findings,
        run_findings,
    )
    from ajet.cli.machine_findings import address_findings, machine_findings
    from ajet.cli.notices import errors_of, show_notices
    from ajet.cli.preflight import check_agents, check_parts, cluster_notices
    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.core.judge import judge_spec, make_judge
    from ajet.core.run.batch_plan import BatchPlan, validation_sample
    from ajet.core.run.run_tasks import RunTasks
    from ajet.core.run.start import describe_start
    from ajet.core.task.reader import make_reader
    from ajet.core.text.redaction import redact
    from ajet.core.text.terminal import Console
    from ajet.core.workflow.registry import DEFAULT_AGENT

    workflows = check_parts(config)
    cluster = cluster_notices(config)
    workflow = config.ajet.rollout.user_workflow or DEFAULT_AGENT
    judge = judge_spec(config.ajet.task_judge)
    loaded_judge = make_judge(config)
    reader = make_reader(config)
    tasks, held_out = reader.get_training_tasks(), reader.get_validation_tasks()
    check_agents(config, workflows, [*tasks, *held_out])
    plan = BatchPlan(config, len(tasks), len(held_out))
    agents = dict.fromkeys(task.metadata.get("agent_name") or workflow for task in tasks)
    playing = ", ".join(map(str, agents)) or workflow
    stage = "" if config.stage is None else f", stage {config.stage}"
    if config.learns_from_rows(is_training=True):
        playing, judge = "given replies", "none"
    reads_games = config.ajet.task_reader.type in ("environment", "env_service")
    judging = judge or f"the {'environment' if reads_games else 'workflow'} itself"
    table = Table(title=escape(f"{conf}{stage}: {playing}, judge {judging}"))
    for title in ("", "number", "from"):
        justify = "right" if title == "number" else "left"
        table.add_column(title, justify=justify, overflow="fold")  # a key is shown whole
    for row in plan.rows():
        table.add_row(*map(escape, row))
    Console().print(table)
    show_notices([*config.notices, *cluster], err=False)
    sample = validation_sample(held_out, config)
    findings = [
        *run_findings(config, workflows.classes_for([*tasks, *held_out])),
        *engine_findings(config),
        *data_findings(plan, tasks, sample),
        *column_findings(config, reader),
        *reference_findings(loaded_judge if config.samples else None, [*tasks, *held_out]),
        *address_findings(config),
        *machine_findings(config, plan),
    ]
    checked = CheckedRun(
        config.stage, list(map(str, agents)), judge, config.run_folder, plan.figures(), findings
    )
    runs.append(checked)
    for finding in findings:
        typer.echo(redact(str(finding)))
    if errors := errors_of(findings):
        line = f"{len(errors)} of these lines would stop the run"
        raise ConfigError(line, code=Code.CHECK_FAILED, parts=errors)
    if config.ajet.backbone != "trinity" or config.trinity.mode not in ("bench", "serve"):
        run_tasks = RunTasks.of(config, workflows, tasks, sample, len(held_out))
        checked.start = describe_start(config, run_tasks)
        typer.echo(redact(f"start: {checked.start}"))
    typer.echo(f"ok: backbone {config.ajet.backbone}, run folder {config.run_folder}")
