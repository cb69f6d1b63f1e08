"""Tinker's server over embedded:math: in this process, and as one that tests kill."""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from ajet.core.config import load_config
from ajet.core.record.run_folder import RunFolder
from ajet.serve.tinker.samplers import CONFIG
from ajet.serve.tinker.server import make_service, start_server
from tests.warm_start import warm_start

MODEL = "embedded:math"
OPTIONS = ["ajet.model.device=cpu", "ajet.rollout.max_model_len=256"]


@contextmanager
def serving(folder):
    """Yields the address of a server whose files are in `folder`."""
    options = [f"ajet.model.path='{MODEL}'", "ajet.serve.port=auto", *OPTIONS]
    config = load_config(CONFIG, options, backbone="debug", exp_dir=folder)
    with RunFolder.open(config.run_folder) as run:
        server = start_server(make_service(config, run), config, None)
        yield server.base_url.removesuffix("/v1")
        server.close(finish_s=1)


class ServerProcess:
    """A server at a fixed address, whose files are in `folder`."""

    def __init__(self, folder, port):
        self.address = f"http://127.0.0.1:{port}"
        self.root = folder / "tinker" / "tinker"
        self._log = folder / "server.log"
        self._command = ["-m", "ajet.cli.launcher", "serve", "--tinker"]
        self._command += ["--model", MODEL, "--exp-dir", str(folder), f"ajet.serve.port={port}"]
        self._command += OPTIONS
        self.start()

    def start(self):
        """Starts it, and waits until it answers."""
        with self._log.open("a") as log:
            files = {"stdout": log.fileno(), "stderr": log.fileno()}
            self._process = warm_start(self._command, cwd=Path.cwd(), env=os.environ, **files)
        while True:
            try:
                return httpx.get(f"{self.address}/api/v1/healthz").raise_for_status()
            except httpx.HTTPError:
                assert self._process.poll() is None, self._log.read_text()
                time.sleep(0.05)

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
