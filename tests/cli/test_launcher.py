"""The command line: what it runs, its exit codes, and one line for a user's mistake."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import COMMANDS, FORMER_NAMES, app, command_first, mistyped_command
from ajet.core.text.install import install_command
from ajet.core.workflow import registry

FLOW = """
from ajet import Workflow, WorkflowOutput

class Flow(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput(reward=1.0)

class Judge:
    pass
"""
CLASSES = """
from ajet import BaseJudge, Workflow, register

class Idle(Workflow): pass

class TakesOne(Workflow):
    async def execute(self, workflow_task): pass

class Built(Workflow):
    def __init__(self, size): pass
    async def execute(self, workflow_task, model_tuner): pass

@register("known")
class Known(Workflow):
    def execute(self, workflow_task, model_tuner): pass

@register("idle")
class Registered(Workflow): pass

class Mute(BaseJudge): pass

class JudgesOne(BaseJudge):
    def compute_reward(self, output): pass

class Keyless(BaseJudge):
    def __init__(self, config): raise RuntimeError("no key")
    def compute_reward(self, workflow_task, workflow_output): pass

class Bare(BaseJudge):
    def __init__(self): pass
    def compute_reward(self, workflow_task, workflow_output): pass
"""
YAML = """
ajet:
  model: {path: a-model-that-is-not-there}
  data: {train_batch_size: 264}
  rollout: {user_workflow: workflow.py->Flow, num_repeat: 8}
  trainer_common: {mini_batch_num: 2, total_epochs: 3, val_pass_n: 2}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}, validation: {file_path: test.jsonl}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """A folder math_agent/ with YAML, workflow and data, seen from the folder above it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_WORKFLOWS", {})
    folder = tmp_path / "math_agent"
    folder.mkdir()
    (folder / "math_agent.yaml").write_text(YAML)
    (folder / "workflow.py").write_text(FLOW)
    for name, count in (("train", 100), ("test", 10)):
        rows = (json.dumps({"question": f"{name} {i}", "answer": "#### 1"}) for i in range(count))
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    return folder


def run(*args: str):
    return CliRunner().invoke(app, args, terminal_width=200)


def check(*args: str):
    return run("check", "--conf", "math_agent/math_agent.yaml", *args)


def error_line(result) -> str:
    """The one line of a user's mistake without its code, exit code 1, nothing else."""
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("notice: ")]
    assert len(lines) == 1, result.stderr
    found = re.fullmatch(r"error: (.*) \[AJ-[A-Z]{3}-\d{3}\]", lines[0])
    assert found, result.stderr
    return found[1]


def numbers(result) -> dict[str, str]:
    """The table of `ajet check`: what -> how many."""
    rows = (line.split("│") for line in result.stdout.splitlines() if line.startswith("│"))
    return {row[1].strip(): row[2].strip() for row in rows}


@pytest.mark.parametrize(
    ("args", "parsed"),
    [
        ("--conf x.yaml a=1", "train --conf x.yaml a=1"),
        ("train --conf x.yaml", "train --conf x.yaml"),
        ("--conf x.yaml check a=1", "check --conf x.yaml a=1"),
        ("--conf check --backbone debug", "train --conf check --backbone debug"),
        ("a=1 --conf x.yaml", "train a=1 --conf x.yaml"),
        ("--help", "--help"),
        ("--version", "--version"),
        ("", ""),
    ],
)
def test_a_command_line_without_a_command_trains(args, parsed):
    assert command_first(args.split()) == parsed.split()


def test_check_prints_the_batch_arithmetic(project):
    result = check()
    assert result.exit_code == 0, result.output
    rows = numbers(result)
    assert rows["training tasks"] == "100"
    assert rows["batches per epoch"] == "0.4"  # 100 / 264
    assert rows["episodes per step"] == "2,112"  # 264 x 8
    assert rows["steps"] == "2"  # 3 x 100 tasks in batches of 264
    assert rows["episodes in all"] == "4,224"
    assert rows["optimizer steps in all"] == "4"
    assert rows["validation tasks"] == "10" and rows["validation episodes"] == "20"
    assert rows["tokens of an episode"] == "<= 18,000"
    assert "run folder launcher_record/math_agent" in result.stdout


def test_check_shows_whole_keys_on_a_narrow_terminal(project, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = "".join(
        line.split("│")[3].strip() for line in check().stdout.splitlines() if "│" in line
    )
    assert "rollout.max_response_length_in_one_turn" in shown and "…" not in shown


def test_epochs_are_passes_over_the_tasks_also_where_a_step_takes_more_than_it_trains(project):
    rows = numbers(check("ajet.rollout.enable_oversample=true"))
    assert rows["batches per epoch"] == "0.3"  # 100 / 396
    assert rows["steps"] == "1"  # 3 x 100 tasks, 264 x 1.5 of them a step


def test_check_loads_neither_torch_nor_a_model(project):
    code = (
        "import sys; from ajet.cli.launcher import app\n"
        "app(['check', '--conf', 'math_agent/math_agent.yaml'], standalone_mode=False)\n"
        "print('LOADED', [m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "LOADED []" in done.stdout, done.stdout + done.stderr


def test_check_shows_what_has_no_effect(project):
    result = check("ajet.trainer_common.nnodes=2")
    assert "notice: ignored by backbone debug: ajet.trainer_common.nnodes=2" in result.stdout


@pytest.mark.parametrize("command", [(), ("train",), ("check",)])
def test_every_command_takes_the_same_options_and_tells_the_same_mistake(project, command):
    result = run(*command, "--conf", "math_agent/math_agent.yaml", "ajet.sed=1")
    assert error_line(result) == (
        "override 'ajet.sed=1': ajet.sed: no such key; did you mean 'seed'?"
    )


def test_a_debug_tag_is_named_and_not_empty(project):
    result = run("--conf", "math_agent/math_agent.yaml", "--db", " | ")
    assert error_line(result) == '--debug: give a tag, as in bp("TAG"); several as "A|B"'


@pytest.mark.parametrize("option", ["--kill=python", "--autokill", "--with-appworld"])
def test_options_of_agentjet_that_end_processes_or_start_services_are_wrong_usage(project, option):
    result = run("--conf", "math_agent/math_agent.yaml", option)
    assert result.exit_code == 2
    assert f"No such option: {option.partition('=')[0]}" in result.stderr


def test_both_ways_to_have_ray_are_wrong_usage(project):
    both = ("--with-ray", "--with-ray-cluster")
    result = run("--conf", "math_agent/math_agent.yaml", "--backbone", "debug", *both)
    assert result.exit_code == 2 and "give one of --with-ray and" in result.stderr


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "workflow.py",
            "raise ModuleNotFoundError(name='langgraph.graph')\n",
            f"which is not installed: {install_command('langgraph')}",
        ),
        ("train.jsonl", '{"query": "a"}\n{"q": 1}\n', "row 2 has none of the fields question"),
    ],
)
def test_a_mistake_in_a_users_file_is_one_line(project, file, text, message):
    (project / file).write_text(text)
    assert message in error_line(check())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ajet.rollout.user_workflow=tool_agnt", "'tool_agnt'; name a class as path/file.py->Cla"),
        ("ajet.rollout.agent_modules=[agents.py]", "agent_modules: 'agents.py': no such file"),
        ("ajet.task_judge.judge_protocol=no_such.x->Judge", "no module 'no_such'"),
        ("ajet.task_reader.type=env_service", "env_service.env_url is missing"),
    ],
)
def test_a_mistake_in_an_override_is_one_line(project, override, message):
    assert message in error_line(check(override))


WORKFLOW, JUDGE = "ajet.rollout.user_workflow=", "ajet.task_judge.judge_protocol="
REFUSED_BY_TRAINING = [
    (WORKFLOW + "classes.py->Idle", "classes.py:4: Idle does not define execute(self, workflow_ta"),
    (WORKFLOW + "classes.py->TakesOne", "TakesOne.execute cannot be called with (workflow_task, "),
    (WORKFLOW + "classes.py->Built", "classes.py:9: Built is made as Built(): give the arguments"),
    (WORKFLOW + "classes.py->Workflow", "names Workflow itself: name your class derived from it"),
    (JUDGE + "classes.py->Mute", "classes.py:20: Mute does not define compute_reward(self, work"),
    (JUDGE + "classes.py->JudgesOne", "JudgesOne.compute_reward cannot be called with (workflow"),
    ("ajet.model.device=gpu", "auto, cpu, cuda, cuda:N or mps is expected, got 'gpu'"),
    ("ajet.model.chat_template=no.jinja", "ajet.model.chat_template: no.jinja: no such file"),
    ("ajet.trainer_common.resume=no/where", "ajet.trainer_common.resume: no/where: no such folder"),
    ("ajet.trainer_common.resume=math_agent", "math_agent: this folder holds no checkpoint"),
    ("ajet.trainer_common.logger=[no_such]", "is expected, got 'no_such'"),
]


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(("override", "message"), REFUSED_BY_TRAINING)
def test_check_refuses_what_training_refuses_with_the_same_line(
    project, command, override, message
):
    (project / "classes.py").write_text(CLASSES)
    assert message in error_line(run(command, "--conf", "math_agent/math_agent.yaml", override))
    assert not Path("launcher_record").exists()


@pytest.mark.parametrize("where", ["run folder", "resume"])
def test_a_checkpoint_of_another_model_is_one_line_before_anything_is_loaded(project, where):
    saved = Path("launcher_record/math_agent/checkpoints/step_000003")
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text("{}")
    (saved / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 9}')
    overrides = ["ajet.model.path=embedded:math"]
    if where == "resume":
        overrides.append(f"ajet.trainer_common.resume={saved}")
    line = error_line(check(*overrides))
    assert "step_000003 is of another model: its " in line and "embedded:math" in line


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow"])
def test_check_names_the_package_that_a_logger_needs(project, name):
    if find_spec(name):
        pytest.skip(f"{name} is installed")
    Path(name).mkdir()  # wandb leaves such a folder behind
    line = error_line(check(f"ajet.trainer_common.logger={name}"))
    assert f"{name!r} needs a package that is not installed; {install_command(name)}" in line


def test_a_package_of_an_extra_that_a_command_lacks_is_one_line(tmp_path, monkeypatch):
    if find_spec("pypdf"):
        pytest.skip("pypdf is installed")
    (tmp_path / "a_command.py").write_text("def read() -> None:\n    import pypdf\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "read", "a_command:read")
    assert error_line(run("read")) == (
        f"ajet read needs pypdf, which is not installed: {install_command('documents')}"
    )


def test_check_makes_the_judge(project):
    (project / "classes.py").write_text(CLASSES)
    line = error_line(check(JUDGE + "classes.py->Keyless"))
    assert line.endswith("classes.py:26: RuntimeError: no key")
    assert check(JUDGE + "classes.py->Bare").exit_code == 0


@pytest.mark.parametrize(
    ("agent_name", "message"),
    [
        ("known", None),
        ("knwn", "no workflow is registered as agent_name 'knwn'; did you mean 'known'?"),
        ("idle", "Registered does not define execute(self, workflow_task, model_tuner)"),
    ],
)
def test_check_knows_the_workflow_of_every_task(project, agent_name, message):
    (project / "classes.py").write_text(CLASSES)
    row = {"question": "q", "answer": "#### 1", "agent_name": agent_name}
    (project / "test.jsonl").write_text(json.dumps(row))
    result = check(WORKFLOW + "classes.py->Known")
    assert result.exit_code == 0 if message is None else message in error_line(result)


def test_check_counts_no_optimizer_steps_that_are_not_made(project):
    size = "ajet.data.train_batch_size=4"
    result = check(size, "ajet.trainer_common.mini_batch_num=9")
    assert numbers(result)["optimizer steps per step"] == "4"
    assert numbers(result)["optimizer steps in all"] == "300"  # 3 x 100 tasks in batches of 4
    assert "notice: ajet.trainer_common.mini_batch_num=9: a step has 4 groups" in result.stdout


def test_check_shows_a_path_with_brackets_as_it_is(project):
    folder = project.rename(project.parent / "a[b],c")
    result = run("check", "--conf", f"{folder.name}/math_agent.yaml")
    assert "a[b],c/math_agent.yaml" in result.stdout, result.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("chek --conf x.yaml", "no such command: 'chek'; did you mean 'check'?"),
        ("--conf x.yaml chek", "no such command: 'chek'; did you mean 'check'?"),
        ("distil --out x", "no such command: 'distil'; did you mean 'data distill'?"),
        ("foo --conf x.yaml", "no such command: 'foo'; there are init, examples, check, plan"),
        ("--conf x.yaml a=1", None),
        ("--conf chek --backbone debug", None),
        ("train trian", None),
        ("--split training", None),
        ("solver.yaml", "'solver.yaml' is a config, not a command: write ajet --conf solver.yaml"),
        ("check solver.yaml", "'solver.yaml' is a config, not a command: write ajet check --conf "),
        ("convert script.yaml", None),
    ],
)
def test_a_mistyped_command_is_a_usage_error_with_a_hint(args, message):
    found = mistyped_command(args.split())
    assert found is None if message is None else found and found.startswith(message)
    if message:
        result = run(*args.split())
        assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("prepare-data arithmetic --out d --from x", "leave --from out"),
        ("prepare-data gsm8k --out d --seed 0", "leave --seed out"),
        ("view . --port 99999", "Invalid value for '--port'"),
        ("eval --conf x.yaml --out .", "'--out': .: is a folder; name a file in it"),
    ],
)
def test_an_option_that_does_not_apply_is_a_usage_error(tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    result = run(*args.split())
    assert result.exit_code == 2 and message in result.stderr, result.output
    assert not list(tmp_path.iterdir())


def test_several_mistakes_are_counted_and_told_one_a_line(project):
    result = check("ajet.sed=1", "ajet.modl=2")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "error: 2 mistakes in the config: [AJ-CFG-014]",
        "  override 'ajet.sed=1': ajet.sed: no such key; did you mean 'seed'?",
        "  override 'ajet.modl=2': ajet.modl: no such key; did you mean 'model'?",
    ]


def test_two_workflow_files_of_one_name_stay_apart(project):
    other = project.parent / "other"
    other.mkdir()
    (other / "workflow.py").write_text(FLOW.replace("class Flow(", "class OtherFlow("))
    (other / "other.yaml").write_text(YAML.replace("->Flow", "->OtherFlow"))
    overrides = [f"ajet.task_reader.jsonl_dataset_file.{split}.file_path={project}/{name}.jsonl"
                 for split, name in (("training", "train"), ("validation", "test"))]  # fmt: skip
    assert check().exit_code == 0
    result = run("check", "--conf", "other/other.yaml", *overrides)
    assert result.exit_code == 0, result.output


def test_a_traceback_comes_only_when_asked_for(project, monkeypatch):
    assert isinstance(check("ajet.sed=1").exception, SystemExit)
    assert "ConfigError" in repr(check("ajet.sed=1", "--verbose").exception)
    monkeypatch.setenv("AJET_TRACEBACK", "1")
    assert "ConfigError" in repr(check("ajet.sed=1").exception)


def test_prepare_data_writes_what_check_reads(project):
    result = run("prepare-data", "arithmetic", "--out", "d", "--num-train", "30", "--num-test", "5")
    assert result.exit_code == 0 and "d/train.jsonl: 30 rows" in result.stdout
    reader = ["type=huggingface_dat_repo", "huggingface_dat_repo.dataset_path=d"]
    result = check(*(f"ajet.task_reader.{text}" for text in reader))
    assert result.exit_code == 0 and "│            30 │" in result.stdout, result.output


def test_prepare_data_from_files_that_are_not_there_is_one_line(project):
    result = run("prepare-data", "gsm8k", "--out", "d", "--from", "nowhere")
    assert error_line(result) == "--from nowhere: no such folder or file"
    assert not Path("d").exists()


def test_the_module_is_the_command_line_too(project):
    line = [sys.executable, "-m", "ajet.cli.launcher", "ajet.sed=1", "--conf"]
    done = subprocess.run(
        [*line, "math_agent/math_agent.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: override 'ajet.sed=1': ajet.sed: no such key")


def test_help_imports_no_package_but_typer_and_what_that_needs():
    def packages(code: str) -> set[str]:
        show = "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
        code = f"import atexit, sys\natexit.register(lambda: {show})\n{code}"
        command = [sys.executable, "-c", code, "--help"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return set(done.stderr.split()) - sys.stdlib_module_names

    typers = packages("import typer\ntyper.run(lambda: None)")
    ours = packages("from ajet.cli.launcher import main\nmain()")
    assert ours - typers == {"ajet"}


def test_every_commands_line_in_the_list_is_whole():
    listed = CliRunner().invoke(app, ["--help"], terminal_width=80).stdout.partition("Start:")[2]
    lines = {line.split()[0]: line for line in listed.splitlines() if line.startswith("  ")}
    assert list(lines) == list(COMMANDS)
    assert [line for line in lines.values() if line.endswith("...") or len(line.split()) < 4] == []


@pytest.mark.parametrize(("former", "name"), FORMER_NAMES.items())
def test_a_subcommand_is_also_found_under_its_former_name(former, name):
    helps = [run(*words.split(), "--help").stdout.partition("\n")[2] for words in (former, name)]
    assert helps[0] == helps[1] != ""


@pytest.mark.parametrize(("word", "meant"), [("adit", "audit"), ("env-check", "env")])
def test_a_mistyped_or_former_subcommand_is_a_usage_error_with_a_hint(word, meant):
    result = run("inspect", word, "run")
    assert result.exit_code == 2
    [*_, line] = result.stderr.splitlines()
    assert line == f"Error: no such command: '{word}'; did you mean '{meant}'? [AJ-USE-001]"


def test_a_schema_for_the_screen_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schemas = [run("inspect", "schema", *out).stdout for out in ([], ["--out", "-"])]
    assert schemas[0] == schemas[1] and json.loads(schemas[0])["properties"]
    assert [*tmp_path.iterdir()] == []


def test_every_option_has_help():
    for command in ("train", "check", "convert", "prepare-data", "view", "debug", "eval"):
        text = run(command, "--help").stdout
        options = text.split("Options:")[1].splitlines()
        for place, line in enumerate(options):
            if line.strip().startswith("--"):
                # A long option has its help on the next line.
                assert len(line.split("  ")) > 2 or options[place + 1].startswith(" " * 20), line


@pytest.mark.parametrize("command", ["train", "plan", "env-check", "check", "debug"])
def test_a_command_without_its_arguments_says_which_one_is_missing(command):
    result = run(command)
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: "), result.stderr


@pytest.mark.parametrize("given", ["--ajet.seed=1", "-ajet.seed=1", "--ajet.seed 1"])
def test_an_override_with_dashes_is_shown_without_them(given):
    result = run("--conf", "x.yaml", *given.split())
    assert result.exit_code == 2
    assert "overrides have no dashes: write ajet.seed=1" in result.stderr


@pytest.fixture
def deleted_folder(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"schema", "why"}))
def test_a_command_in_a_deleted_folder_says_so_in_one_line(deleted_folder, command):
    line = error_line(run(command, "--conf", "x.yaml"))
    assert line.startswith("the current folder cannot be read") and line.endswith("cd DIR")


def test_why_of_a_run_in_a_deleted_folder_says_so_in_one_line(deleted_folder):
    line = error_line(run("why", "launcher_record/x"))
    assert line.startswith("the current folder cannot be read") and line.endswith("cd DIR")


def test_commands_that_read_no_path_work_in_a_deleted_folder(deleted_folder):
    for given in (
        ["why", "AJ-USE-009"],
        ["explain", "AJ-USE-009"],
        ["schema"],
        ["init", "--help"],
        ["--version"],
    ):
        assert run(*given).exit_code == 0
    assert run("train", "--conf", "folder/x.yaml", "--help").exit_code == 0
