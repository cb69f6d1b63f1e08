"""Runs the tests of Tinker's API with several releases of its SDK.

    python scripts/tinker_sdks.py                 the releases of docs/tinker.md
    python scripts/tinker_sdks.py 0.33.1 0.38.0   these

Each release is installed without its dependencies into a temporary folder that is searched before
this interpreter's packages. Prints a line for each, and exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELEASES = ("0.30.0", "0.32.0", "0.34.0", "0.36.0", "0.38.0")
TESTS = (
    "tests/serve/tinker/test_tinker_server.py",
    "tests/serve/tinker/test_tinker_restart.py::test_a_script_of_the_sdk_does_not_notice_a_kill",
)
"""Those that use the SDK's client or only its messages."""


def try_release(release: str, folder: str) -> tuple[bool, str]:
    """Runs the tests; returns whether all pass, and pytest's last line or what went wrong."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    done = subprocess.run([*pip, f"tinker=={release}"], capture_output=True, text=True)
    if done.returncode:
        return False, done.stderr.strip()
    paths = [folder, str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # A test that is skipped because the SDK cannot be imported would look like one that passes.
    imported = [sys.executable, "-c", "import tinker; print(tinker.__version__)"]
    done = subprocess.run(imported, env=environment, capture_output=True, text=True)
    if done.stdout.strip() != release:
        return False, f"cannot be imported: {done.stdout}{done.stderr}".strip()
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    tests += ["--disable-warnings", *TESTS]
    done = subprocess.run(tests, cwd=ROOT, env=environment, capture_output=True, text=True)
    last_line = done.stdout.strip().rpartition("\n")[2]
    return done.returncode == 0, last_line if done.returncode == 0 else done.stdout


def main() -> int:
    """Tries all releases, and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="*", default=RELEASES)
    passed = []
    for release in parser.parse_args().releases:
        with tempfile.TemporaryDirectory(prefix="ajet-tinker-") as folder:
            is_good, line = try_release(release, folder)
        print(f"tinker {release}: {'passed' if is_good else 'FAILED'}: {line}", flush=True)
        passed.append(is_good)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
