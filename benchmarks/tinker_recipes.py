"""Do recipes of tinker-cookbook, as they are, teach models that `ajet serve --tinker` serves?

    python benchmarks/tinker_recipes.py --python COOKBOOK/bin/python
    python benchmarks/tinker_recipes.py --python … --only math_rl guess_number

COOKBOOK is a virtual environment with `tinker-cookbook[math-rl,multiplayer-rl]==0.5.8`. Each recipe
is its published command in a process of its own, in a folder where the names of its model and of
its data are folders: the cookbook takes those before it asks a hub. Only numbers that the command
line takes are given, most of all the learning rate, which for a tiny model must be larger. The
server is a process too, `ajet serve --tinker --model NAME` in the same folder.

The start models are tiny and made here, from scratch; tinker_recipes_models.py says what each was
taught. Success is measured before and after on prompts that neither the start model nor the recipe
has learnt from, by the recipe's own environment and grader, at temperature 1 and greedily. Results
of recipes that are not run again stay in the file.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import ROOT, measured_on, options, read, write

MODELS = Path(__file__).with_name("tinker_recipes_models.py")
MEASURES = Path(__file__).with_name("tinker_recipes_measures.py")
RL = "tinker_cookbook.recipes"


@dataclass(frozen=True)
class Recipe:
    """A module of the cookbook with arguments; `model` is the name by which it asks for its model,
    its default where it has one, and `start` what is served under that name. `data` is the command
    that makes its data, where there is one."""

    module: str
    model: str
    start: str
    arguments: tuple[str, ...]
    data: tuple[str, ...] = ()


DISTILLED = "distilled/data.jsonl"
RECIPES = {
    "math_rl": Recipe(
        f"{RL}.math_rl.train",
        "Qwen/Qwen3.5-9B-Base",
        "sums",
        (
            "model_name=Qwen/Qwen3.5-9B-Base",
            "group_size=8",
            "learning_rate=4e-3",
            "max_steps=100",
        ),
    ),
    "rl_loop": Recipe(
        f"{RL}.rl_loop", "Qwen/Qwen3.5-9B-Base", "problems", ("learning_rate=3e-3", "max_steps=40")
    ),
    "guess_number": Recipe(
        f"{RL}.multiplayer_rl.guess_number.train",
        "Qwen/Qwen3.5-4B",
        "guesses",
        ("learning_rate=4e-3", "eval_every=0"),
    ),
    "twenty_questions": Recipe(
        f"{RL}.multiplayer_rl.twenty_questions.train",
        "Qwen/Qwen3.5-9B",  # both players: a server has one base model
        "questions",
        (
            "model_name=Qwen/Qwen3.5-9B",
            "batch_size=16",
            "learning_rate=8e-3",
            "eval_every=0",
            "max_steps=12",
        ),
    ),
    "text_arena": Recipe(
        f"{RL}.multiplayer_rl.text_arena.train",
        "Qwen/Qwen3.5-4B",
        "board",
        ("learning_rate=3e-3", "batch_size=128", "eval_every=0", "max_steps=40"),
    ),
    "sl_loop": Recipe(f"{RL}.sl_loop", "Qwen/Qwen3.5-9B-Base", "sums", ("learning_rate=2e-3",)),
    "prompt_distillation": Recipe(
        f"{RL}.prompt_distillation.train",
        "Qwen/Qwen3.6-35B-A3B",
        "languages",
        (f"file_path={DISTILLED}", "learning_rate=1e-2", "num_epochs=12"),
        (f"{RL}.prompt_distillation.create_data", f"output_file={DISTILLED}"),
    ),
    "shorter": Recipe(
        f"{RL}.preference.shorter.train",
        "Qwen/Qwen3.5-4B",
        "talk",
        ("learning_rate=5e-3", "batch_size=3", "max_steps=12"),
    ),
}


@contextmanager
def served(model: str, folder: Path, name: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Has a server's address and its process."""
    log = folder / f"server-{name}.log"
    command = [sys.executable, "-m", "ajet.cli.launcher", "serve", "--tinker", "--model", model]
    command += ["--exp-dir", str(folder / f"server-{name}"), "ajet.serve.port=auto"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=output
        )
    try:
        while (found := re.search(r"TINKER_BASE_URL=(\S+),", log.read_text())) is None:
            if process.poll() is not None:
                raise SystemExit(f"the server ended: {log.read_text()}")
            time.sleep(0.2)
        yield found[1], process
    finally:
        process.terminate()
        process.wait()


class Cookbook:
    """Runs programs in the cookbook's Python, in one folder."""

    def __init__(self, python: str, folder: Path) -> None:
        self._python, self._folder = python, folder
        self._environment = {
            **os.environ,
            "TINKER_API_KEY": "tml-local",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def run(self, *arguments: str, address: str = "", log: str) -> str:
        """Returns what the program prints; `log` is the file of its messages."""
        with (self._folder / log).open("ab") as errors:
            done = subprocess.run(
                [self._python, *arguments],
                cwd=self._folder,
                env=self._environment | {"TINKER_BASE_URL": address},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}, see {log}")
        return done.stdout


def run(name: str, python: str, folder: Path) -> dict[str, Any]:
    """Makes a recipe's start model, runs the recipe, and measures before and after."""
    recipe, cookbook = RECIPES[name], Cookbook(python, folder)
    model, start = folder / recipe.model, folder / recipe.start
    if not start.exists():
        cookbook.run(str(MODELS), "make", recipe.start, recipe.start, log=f"{recipe.start}.log")
    model.parent.mkdir(exist_ok=True)
    model.unlink(missing_ok=True)
    model.symlink_to(start, target_is_directory=True)
    if not (folder / "HuggingFaceH4").exists():
        cookbook.run(str(MODELS), "data", ".", log="data.log")
    measure = (str(MEASURES), name, recipe.model)
    with served(recipe.model, folder, name) as (address, server):
        before = cookbook.run(*measure, address=address, log=f"{name}.log")
        begun_s, cpu_s = time.perf_counter(), cpu_seconds(server.pid)
        client_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        log_path = f"log_path={folder / name}"
        if recipe.data:
            cookbook.run("-m", *recipe.data, address=address, log=f"{name}.log")
        cookbook.run(
            "-m", recipe.module, *recipe.arguments, log_path, address=address, log=f"{name}.log"
        )
        wall_s = time.perf_counter() - begun_s
        server_s = cpu_seconds(server.pid) - cpu_s
        client_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - client_s
        checkpoint = json.loads((folder / name / "checkpoints.jsonl").read_text().splitlines()[-1])
        path = ("--sampler-path", checkpoint["sampler_path"])
        after = cookbook.run(*measure, *path, address=address, log=f"{name}.log")
    return {
        "recipe": name,
        "command": " ".join((f"python -m {recipe.module}", *recipe.arguments)),
        "start": recipe.start,
        "before": json.loads(before.splitlines()[-1]),
        "after": json.loads(after.splitlines()[-1]),
        "minutes": round(wall_s / 60, 1),
        "server_cpu_s": round(server_s),
        "client_cpu_s": round(client_s),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = options(__doc__, "tinker_recipes")
    parser.add_argument("--python", required=True, help="the Python that has tinker-cookbook")
    parser.add_argument("--only", nargs="*", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--folder", type=Path, help="for models and logs; what is there is used")
    args = parser.parse_args()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="ajet-recipes-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"models and logs: {folder}", flush=True)
    for name in args.only:
        result = {**run(name, args.python, folder), **measured_on()}
        write(args.out, read(args.out) | measured_on() | {name: result})
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
