"""`ajet check`: is this config right, and what will the run come to? Loads no model."""

import typer

from ajet.cli.options import Backbone, Conf, Overrides, ProjectDir, Verbose


def check(
    conf: Conf,
    overrides: Overrides = None,
    backbone: Backbone = None,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Check a config with its workflow, judge and data.

    Prints the batch arithmetic. Loads no model.
    """
    from rich.console import Console
    from rich.table import Table

    from ajet.core.batch_plan import BatchPlan
    from ajet.core.config import load_config
    from ajet.core.importing import load_object
    from ajet.core.judge import judge_class
    from ajet.core.task.reader import make_reader
    from ajet.core.workflow.workflow import Workflow

    config = load_config(conf, overrides or [], backbone=backbone, project_dir=project_dir)
    workflow, judge = config.ajet.rollout.user_workflow, config.ajet.task_judge.judge_protocol
    assert workflow is not None
    where = "ajet.rollout.user_workflow"
    load_object(workflow, base_dirs=config.base_dirs, kind=Workflow, where=where)
    if judge is not None:
        judge_class(judge, config.base_dirs)
    reader = make_reader(config)
    plan = BatchPlan(config, len(reader.get_training_tasks()), len(reader.get_validation_tasks()))
    table = Table(title=f"{conf}: {workflow}, judge {judge or 'the workflow itself'}")
    for title in ("", "number", "from"):
        table.add_column(title, justify="right" if title == "number" else "left")
    for row in plan.rows():
        table.add_row(*row)
    Console().print(table)
    for notice in config.notices:
        typer.echo(f"notice: {notice}")
    typer.echo(f"ok: backbone {config.ajet.backbone}, run folder {config.run_folder}")
