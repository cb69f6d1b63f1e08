"""More than sixty secrets are planted in a run's config, its command line and its environment, then
raised and logged by workflow and judge. None is in the run folder, on the terminal, or with a
tracker. The trackers' own packages are tried where they are installed.

Not covered: what the user's own code prints, and what the model is shown.
"""

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.e2e.toy_run import CONFIG, WORKFLOW, ToyRun, environment

PLANTED: list[str] = []


def secret(form: str = "Zq{}xW7planted") -> str:
    PLANTED.append(form.format(f"{len(PLANTED):02d}"))
    return PLANTED[-1]


def number() -> int:
    PLANTED.append(f"4815162{len(PLANTED):02d}")
    return int(PLANTED[-1])


NAMES = [
    "aws_access_key_id",
    "aws_secret_access_key",
    "GITHUB_PAT",
    "passphrase",
    "pwd",
    "Cookie",
    "auth_key",
    "authorization",
    "openai_key",
    "private_key",
    "access_key",
    "api_key",
    "apiKey",
    "hf_token",
    "token",
    "client_secret",
    "db_password",
    "credentials",
    "jwt",
    "dsn",
    "accesskey",
    "session_cookie",
    "signature",
    "seller",
    "anything",
]
MINE = {
    **{name: secret() for name in NAMES},
    "password": number(),
    "pin": number(),
    "headers": {
        "Authorization": secret("Bearer Zq{}xW7planted"),
        "X-Api-Key": secret(),
        "name": secret(),
    },
    "cookies": {"session": {"value": secret()}},
    "args": ["--api-key", secret(), "--port", 3],
    "path": ["--api-key", secret()],
    "argument": f"--token={secret()}",
    "options": f"timeout=3 password={secret()}",
    "name": f"me, password={secret()}",
    "prompt": f"Authorization: Bearer {secret()}",
    "description": f"ask with {secret('sk-Zq{}xW7plantedplanted')} or not",
    "model": secret("ghp_Zq{}xW7plantedplantedplanted"),
    "version": secret("AKIAZQ{}XW7PLANTEDPL"),
    "service_url": f"https://me:{secret()}@host.example/v1",
    "other_url": f"https://{secret()}@host.example/v1",
    "query_url": f"https://host.example/v1?token={secret()}&x=1",
    "hook_url": f"https://host.example/services/{secret('T{}ZqxW7plantedplanted')}",
    "database": f"postgresql+psycopg://me:{secret('Zq/{}xW7planted')}@db.example/runs",
    "pem": f"-----BEGIN PRIVATE KEY-----\n{secret()}\n-----END PRIVATE KEY-----",
    "bearer_of": f"Bearer {secret()}",
    "nested": [[[secret()]], {"deep": [secret()]}],
    "servers": [
        {
            "command": "python",
            "args": ["server.py", f"--password={secret()}"],
            "env": {"MODE": secret(), "SERVICE_KEY": secret()},
        }
    ],
    "from_environment": "${oc.env:PLANTED_VARIABLE}",
    "scheme": "Bearer ${oc.env:PLANTED_PAT}",
}
VARIABLES = {
    "PLANTED_VARIABLE": secret(),
    "PLANTED_PAT": secret(),
    "PLANTED_API_KEY": secret(),
}
OVERRIDES = [f"+mine.from_command={secret()}", f"+mine.more.api_key={secret()}"]
DEDUPLICATION = secret()
AJET = {
    "task_judge": {
        "judge_protocol": "workflow.py->LeakingJudge",
        "client": {"base_url": f"http://127.0.0.1:9/v1?api_key={secret()}"},
        "llm": {"sampling": {"extra_headers": {"X-Key": secret()}}},
    },
    "environment": {
        "custom_envs": {"Own": {"env_type": "frozen_lake", "env_config": {"licence": secret()}}}
    },
    "task_reader": {
        "tracing": {"filters": [{"type": "deduplication", "params": {"api_key": DEDUPLICATION}}]},
        "data_generation": {"deduplication_filter": {"params": {"api_key": secret()}}},
    },
}
BUFFER = f"postgresql://me:{secret()}@db.example/runs"
HARMLESS = {
    "size": 3,
    "is_open": True,
    "mode": "fast",
    "max_tokens": 12,
    "none": None,
}
LEAKS = """

from loguru import logger

from ajet import BaseJudge

PLANTED = Path(__file__).with_name("planted.txt").read_text().splitlines()


def leak(episode):
    try:
        raise KeyError(" ".join(PLANTED))
    except KeyError:
        logger.exception("it failed with {}", PLANTED)
    for text in (str(dict(episode.config.mine)), *PLANTED):
        logger.warning("seen: " + text)


class Leaking(Plain):
    async def execute(self, workflow_task, model_tuner):
        output = await super().execute(workflow_task, model_tuner)
        leak(model_tuner)
        number = 4 * workflow_task.task_batch_index + workflow_task.rollout_index
        if workflow_task.rollout_index % 2:
            raise ValueError(" ".join(PLANTED[number::16]))
        output.reward = None
        output.metadata["number"] = number
        return output


class LeakingJudge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        number = workflow_output.metadata["number"]
        if workflow_task.rollout_index == 2:
            raise RuntimeError("no verdict: " + " ".join(PLANTED[number - 1 :: 16]))
        return float(number), True
"""
WANDB = """
import json, sys
from pathlib import Path

SAID = Path(__file__).with_name("trackers.said")


class Error(Exception):
    pass


class errors:
    Error = Error


class Settings:
    mode, api_key = "offline", None

    def __init__(self, **options):
        self.options = options


def said(*args, **options):
    with SAID.open("a") as file:
        file.write(repr((__name__, sys.argv, args, options)) + "\\n")
    return sys.modules[__name__]


init = set_tracking_uri = get_experiment_by_name = set_experiment = start_run = said
experiment_id = "1"


def log(*args, **options):
    SAID.open("a").write(repr((args, options)) + "\\n")


log_metrics = log
MlflowException = Error


class info:
    run_id = "1"


def login(**options):
    return False


def finish():
    pass


end_run = finish
"""


TRACKERS = ["wandb", "swanlab", "mlflow"]


def planted_run(folder, trackers=TRACKERS) -> ToyRun:
    run = ToyRun(folder)
    config = yaml.safe_load(CONFIG)
    ajet = config["ajet"]
    for name, section in AJET.items():
        ajet[name] = ajet.get(name, {}) | section
    ajet["rollout"] |= {"user_workflow": "workflow.py->Leaking", "max_failure_rate": 1.0}
    trainer = ajet["trainer_common"]
    trainer |= {"total_training_steps": 1, "logger": [*trackers, "console"]}
    ajet["task_reader"]["jsonl_dataset_file"]["validation"] = {"file_path": "tasks.jsonl"}
    config |= {"mine": MINE | HARMLESS, "trinity": {"buffer": {"url": BUFFER}}}
    (run.folder / "toy.yaml").write_text(yaml.safe_dump(config))
    (run.folder / "workflow.py").write_text(WORKFLOW + LEAKS)
    (run.folder / "planted.txt").write_text("\n".join(PLANTED))
    return run


def leaks_of(run: ToyRun, *folders: Path) -> dict[str, list[str]]:
    """The secrets by file of the run folder and of the other folders, and by output."""
    files = [file for top in (run.path, *folders) for file in top.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"config.yaml", "run.log", "episodes.sqlite"}
    files += [run.folder / name for name in ("stdout", "stderr")]
    leaks = {str(file): found_in(file.read_bytes()) for file in files}
    return {name: found for name, found in leaks.items() if found}


def found_in(data: bytes) -> list[str]:
    return [each for each in PLANTED if each.encode() in data]


def test_no_planted_secret_is_in_the_run_folder_on_the_terminal_or_with_a_tracker(tmp_path):
    assert len(PLANTED) >= 60
    run = planted_run(tmp_path / "toy")
    for name in TRACKERS:
        (run.folder / f"{name}.py").write_text(WANDB)
    env = environment(**VARIABLES)
    assert run.finish(*OVERRIDES, env=env, timeout=240, fresh=True) == 0, run.stderr()
    assert leaks_of(run) == {}
    said = (run.folder / "trackers.said").read_bytes()
    assert found_in(said) == []

    # What is no secret is there, and so is the fact that something was.
    assert all(name in said for name in (b"'wandb'", b"'swanlab'", b"'mlflow'"))
    saved = yaml.safe_load((run.path / "config.yaml").read_text())
    assert {key: saved["mine"][key] for key in HARMLESS} == HARMLESS
    assert saved["mine"]["from_environment"] == "${oc.env:PLANTED_VARIABLE}"
    assert saved["mine"]["service_url"] == "https://***@host.example/v1"
    assert "seen: ***" in (run.path / "logs" / "run.log").read_text()
    with sqlite3.connect(run.path / "episodes.sqlite") as connection:
        errors = [row[0] for row in connection.execute("SELECT error FROM episodes") if row[0]]
    assert len(errors) == 12 and all("***" in error for error in errors)
    assert "'+mine.more.api_key=***'" in run.stdout()


@pytest.mark.parametrize("name", TRACKERS)
def test_no_planted_secret_is_in_the_files_of_a_tracker(tmp_path, name):
    pytest.importorskip(name)
    (tmp_path / "home").mkdir()
    run = planted_run(tmp_path / "toy", [name])
    remote = f"https://me:{PLANTED[0]}@git.example/agent.git"
    for command in (["init", "-q"], ["remote", "add", "origin", remote]):
        subprocess.run(["git", *command], cwd=run.folder, check=True)
    env = environment(**VARIABLES, HOME=str(tmp_path / "home"))
    assert run.finish(*OVERRIDES, env=env, timeout=240, fresh=True) == 0, run.stderr()
    assert (
        any(file.is_file() for file in (run.path / "logs").rglob(f"*{name}*/**/*"))
        or (run.path / "logs" / f"{name}.db").is_file()
    )
    assert leaks_of(run, tmp_path / "home") == {}


def test_a_replay_asks_for_what_the_run_folder_does_not_store(tmp_path):
    run = ToyRun(tmp_path / "toy")
    yaml_file = run.folder / "toy.yaml"
    yaml_file.write_text(f"{CONFIG}\nmine: {{seller: ada, key: '${{oc.env:PLANTED_VARIABLE}}'}}\n")
    env = environment(**VARIABLES)
    assert run.finish("ajet.trainer_common.total_training_steps=1", env=env) == 0
    shutil.rmtree(run.path / "checkpoints")

    def replayed(*arguments: str, **variables: str) -> tuple[int, str]:
        run.overrides = ()
        (run.folder / "stderr").unlink()
        replay = ToyRunReplay(run)
        code = replay.finish(*arguments, env=environment(**variables))
        return code, run.stderr().strip()

    code, line = replayed()
    assert code == 1 and len(line.splitlines()) == 1
    assert "does not have the value of mine.seller, mine.key: a run folder keeps no secrets" in line
    assert f"give KEY=VALUE, set PLANTED_VARIABLE, or --conf {yaml_file}" in line
    assert replayed("mine.seller=ada", **VARIABLES) == (0, "")
    assert replayed("mine.seller=ada", "mine.key=other") == (0, "")
    assert replayed("--conf", "toy.yaml", **VARIABLES) == (0, "")


class ToyRunReplay(ToyRun):
    def __init__(self, run: ToyRun) -> None:
        self.folder, self.overrides = run.folder, ()

    @property
    def arguments(self) -> list[str]:
        return ["replay", "launcher_record/toy", "000001-train-0000-00"]


def test_three_stars_from_a_run_folder_are_not_taken_for_a_value(tmp_path):
    run = ToyRun(tmp_path / "toy")
    assert run.finish("+mine.api_key=***") == 1
    [line] = run.errors()
    assert line.startswith("error: override '+mine.api_key=***': mine.api_key: *** stands for a ")
