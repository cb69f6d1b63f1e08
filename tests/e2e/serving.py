"""Real servers of `ajet serve`, for tests that kill them and start them again."""

import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

from tests.e2e.toy_run import ended, environment
from tests.warm_start import warm_start


@contextmanager
def servers(folder, key, address):
    """A function that starts `ajet serve` with options on a backbone, and returns its process and
    the address that it prints in the form `address`; its log is `<name>.log`. A server on Ray is no
    fork. What is left of them is killed at the end."""
    with ExitStack() as running:

        def started(name, backbone, *options):
            log = (folder / f"{name}.log").open("w+")
            command = ["-m", "ajet.cli.launcher", "serve", "--backbone", backbone, *options]
            files = {"cwd": folder, "stdout": log.fileno(), "stderr": log.fileno()}
            env = environment(AJET_SERVE_API_KEY=key)
            if backbone == "debug":
                process = warm_start(command, env=env, **files)
            else:
                command = [sys.executable, *command, "--with-ray"]
                process = subprocess.Popen(command, env=env, start_new_session=True, **files)
            running.enter_context(ended(process))
            while True:
                said = (folder / f"{name}.log").read_text()
                if found := re.search(address, said):
                    return process, found[1]
                assert process.poll() is None, said
                time.sleep(0.05)

        yield started
