"""Follow a page in an environment of its own, as somebody does who has just found it.

    python scripts/persona.py docs/guides/langgraph.md --extra langgraph
    python scripts/persona.py docs/coming_from/verl.md --extra datasets --short

A virtual environment is made, a wheel of this repository is built and installed there with the
extras, and the page is typed into an empty folder, whole: up to a trained agent and its page.
`--short` leaves out what the page calls minutes of computing. Prints the seconds of each block.
What follows `--` is for the installer: -- --find-links wheels.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from guide_blocks import GuideError, run

ROOT = Path(__file__).parents[1]


def install(folder: Path, wheel: Path | None, extras: str, options: list[str]) -> Path:
    """Makes a virtual environment with ajet in it, and returns its folder of commands."""
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    if wheel is None:
        command = [uv, "build", "--wheel", "--quiet", "--out-dir", str(folder), str(ROOT)]
        subprocess.run(command, check=True)
        [wheel] = folder.glob("*.whl")
    environment = folder / "environment"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    what = f"ajet[{extras}] @ {wheel.resolve().as_uri()}" if extras else str(wheel.resolve())
    command = [uv, "pip", "install", "--quiet", "--python", str(environment / "bin/python")]
    constraint = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *constraint, *options, what], check=True)
    return environment / "bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--install", type=Path, help="a wheel, instead of one that is built here")
    parser.add_argument("--extra", default="", help="extras of ajet, as langgraph,ray")
    parser.add_argument("--short", action="store_true", help="without what takes minutes")
    given = [*sys.argv[1:], "--"]
    own, options = given[: given.index("--")], given[given.index("--") + 1 : -1]
    args = parser.parse_args(own)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="persona-") as name:
        folder = Path(name)
        commands = install(folder, args.install, args.extra, options)
        print(f"{time.monotonic() - started_s:7.1f} s  an environment with ajet[{args.extra}]")
        environment = {
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(commands.parent),
        }
        project = folder / "project"
        project.mkdir()
        try:
            for done in run(args.page, project, environment, long=not args.short):
                print(f"{done.seconds:7.1f} s  {done.block.first_line}", flush=True)
        except GuideError as error:
            sys.exit(f"error: {args.page}: {error}")
        pages = [file.name for file in sorted(project.glob("*.html"))]
    print(f"{time.monotonic() - started_s:7.1f} s  in all; pages: {', '.join(pages)}")


if __name__ == "__main__":
    main()
