"""Installs the built packages into fresh environments, and uses them outside the repository.

    make dist && python scripts/try_install.py                   this interpreter, the light install
    … --extras train train,agentscope                                and two steps, in each of these
    … --pages train,langgraph:docs/guides/langgraph.md               and a page, typed as it stands
    … --python found --installer uv pip --artifact wheel sdist       each Python that is here
    … --python python3.12 /opt/python3.13/bin/python                 these

`found` are the Pythons that pyproject.toml names, on the path or in pyenv's folder. Each
interpreter, installer and artifact gets one environment, which the extras are added to in this
order. A page is followed in an empty folder, but for what it calls minutes of computing; with
`--long` that too. Checks that the wheel has all files of the repository, and no top-level package
but ajet. Prints seconds, and exits with 1 if anything failed. What follows `--` is for the
installer: -- --find-links wheels.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from itertools import product
from pathlib import Path

import guide_blocks

ROOT = Path(__file__).parents[1]
CHECKED = "tutorial/example_token_loop/demo.yaml"
OF_VERL = str(ROOT / "tests/data/convert/verl/ppo.yaml")
LIGHT = (
    ("--version",),
    ("examples", "math_agent", "token_loop"),
    ("check", "--conf", CHECKED),
    ("schema", "--out", "schema.json"),
    ("convert", "--from", "verl", OF_VERL, "--out", "converted.yaml"),
)
TRAINED = {"train": "token_loop", "train,agentscope": "math_agent"}
"""Maps extras to the example that needs no other."""
TWO_STEPS = (
    *("ajet.trainer_common.total_training_steps=2", "ajet.trainer_common.test_freq=-1"),
    *("ajet.trainer_common.val_before_train=false", "ajet.data.train_batch_size=4"),
)
HEAVY = ("torch", "transformers", "tensorboard", "agentscope", "ray", "mcp")


class Failed(Exception):
    """Raised with what a command printed, when it failed."""


def check_wheel(wheel: Path) -> None:
    """Raises Failed unless the wheel has every tracked file of ajet/ and tutorial/ but READMEs of
    packages, and nothing beside ajet."""
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    if others := [name for name in top if name != "ajet" and not name.endswith(".dist-info")]:
        raise Failed(f"{wheel.name} has top-level names beside ajet: {', '.join(others)}")
    listed = run(["git", "ls-files", "ajet", "tutorial"], ROOT).splitlines()
    examples = [name.replace("tutorial/", "ajet/examples/", 1) for name in listed]
    wanted = {n for n in examples if not n.endswith(".md") or n.startswith("ajet/examples/")}
    if missing := sorted(wanted - set(names)):
        raise Failed(f"{wheel.name} lacks {', '.join(missing)}")


def run(command: list[str], folder: Path) -> str:
    """Returns what the command prints; raises Failed where it exits with another code than 0."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(
            f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def train_commands(extras: str) -> list[tuple[str, ...]]:
    """Returns the commands that train an example for two steps, and look at what came of it."""
    conf = f"tutorial/example_{TRAINED[extras]}/demo.yaml"
    experiment = f"ajet.experiment_name={TRAINED[extras]}"
    trained = f"runs/{TRAINED[extras]}"
    return [
        ("--conf", conf, "--backbone", "debug", "--exp-dir", "runs", experiment, *TWO_STEPS),
        ("eval", "--conf", conf, "--checkpoint", trained, "--num-tasks", "2", "-k", "1"),
        ("view", trained, "--export", "page.html"),
    ]


def found_pythons() -> list[str]:
    """Returns an interpreter of each version that pyproject.toml names, where one is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = []
    for name in names:
        on_path = shutil.which(f"python{name}")
        known = [*([on_path] if on_path else []), *pyenv.glob(f"{name}.*/bin/python")]
        # A shim of pyenv is on the path for versions that it does not start, too.
        starts = (str(each) for each in known if version(str(each)).startswith(f"{name}."))
        first = next(starts, None)
        if first is not None:
            found.append(first)
    return found


def version(python: str) -> str:
    """Returns the version of an interpreter; nothing where it does not start."""
    command = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def try_one(
    python: str, installer: str, artifact: Path, folder: Path, options: argparse.Namespace
) -> str:
    """Installs, uses, and returns a line of times."""
    run([python, "-m", "venv", *(["--without-pip"] if installer == "uv" else []), "env"], folder)
    binaries = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    pip = [str(binaries / "python"), "-m", "pip", "install", "--quiet"]
    if installer == "uv":
        pip = [uv(), "pip", "install", "--quiet", "--python", str(binaries / "python")]
    times = []
    pages = [page.partition(":")[::2] for page in options.pages]
    for extras, page in (("", ""), *((extras, "") for extras in options.extras), *pages):
        begun, cpu = time.perf_counter(), children_cpu_s()
        wanted = f"ajet[{extras}]" if extras else "ajet"
        run([*pip, *options.installer_options, f"{wanted} @ {artifact.as_uri()}"], folder)
        seconds, cpu_s = time.perf_counter() - begun, children_cpu_s() - cpu
        times.append(f"{wanted} in {seconds:.1f} s, {cpu_s:.1f} of the CPU")
        if not extras:
            check_light(binaries, folder)
        if page:
            times.append(follow(ROOT / page, binaries, folder, options.long))
            continue
        for command in train_commands(extras) if extras else LIGHT:
            run([str(binaries / "ajet"), *command], folder)
    return "; ".join(times)


def uv() -> str:
    """Returns the uv of the path, or the one next to this Python."""
    return shutil.which("uv") or str(Path(sys.executable).parent / "uv")


def follow(page: Path, binaries: Path, folder: Path, long: bool) -> str:
    """Does what a page says with these commands, in an empty folder; returns its name and its
    seconds."""
    begun = time.perf_counter()
    environment = {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(binaries.parent),
        "PYTHONPATH": "",
    }
    project = folder / page.stem
    project.mkdir()
    try:
        for _ in guide_blocks.run(page, project, environment, long=long):
            pass
    except guide_blocks.GuideError as error:
        raise Failed(f"{page}: {error}") from error
    return f"{page.name} in {time.perf_counter() - begun:.1f} s"


def children_cpu_s() -> float:
    """Returns the seconds of the CPU that ended child processes have used; 0 on Windows."""
    times = os.times()
    return times.children_user + times.children_system


def check_light(binaries: Path, folder: Path) -> None:
    """Raises Failed if something heavy was installed, or the types are not found."""
    script = (
        "from importlib.util import find_spec as find; import ajet, pathlib; "
        f"print([name for name in {HEAVY} if find(name)], "
        "(pathlib.Path(ajet.__file__).parent / 'py.typed').is_file())"
    )
    printed = run([str(binaries / "python"), "-c", script], folder).strip()
    if printed != "[] True":
        raise Failed(f"the light install has more than it should, or no py.typed: {printed}")


def main() -> int:
    """Tries every combination, and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="or: found")
    parser.add_argument("--installer", nargs="+", default=["uv"], choices=("uv", "pip"))
    parser.add_argument("--artifact", nargs="+", default=["wheel"], choices=("wheel", "sdist"))
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--extras", nargs="+", default=[], choices=TRAINED)
    parser.add_argument("--pages", nargs="+", default=[], metavar="EXTRAS:PAGE")
    parser.add_argument("--long", action="store_true", help="also what takes a page minutes")
    parser.add_argument("installer_options", nargs="*", help="after --, for the installer")
    options = parser.parse_args()
    globs = {"wheel": "*.whl", "sdist": "*.tar.gz"}
    found = {kind: file for kind, glob in globs.items() for file in options.dist.glob(glob)}
    if len(found) < len(globs):
        print(f"error: {options.dist}: no wheel and sdist there; run make dist")
        return 1
    check_wheel(found["wheel"])
    pythons = found_pythons() if options.python == ["found"] else options.python
    failures = 0
    for python, installer, kind in product(pythons, options.installer, options.artifact):
        with tempfile.TemporaryDirectory(prefix="ajet-install-") as folder:
            try:
                line = try_one(python, installer, found[kind], Path(folder), options)
            except Failed as failure:
                line, failures = f"FAILED: {failure}", failures + 1
        print(f"Python {version(python)}, {installer}, {kind}: {line}", flush=True)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
