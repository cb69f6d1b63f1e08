"""The runs of a server that its clients configure: one at a time, in the main thread. Errors of a
run end the run, not the server: its clients see them in the status.
"""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.errors import AjetError
from ajet.core.process.interrupt import Interrupt, StoppableInterrupt, stoppable
from ajet.core.text.error_text import one_line
from ajet.core.text.redaction import redact
from ajet.core.user_code.importing import forget_user_modules
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.exchange.exchange import EpisodeExchange
from ajet.serve.exchange.setup import make_exchange

NO_RUN = "no run is in progress: a client starts one (POST /ajet/v1/run)"

Fit = Callable[[AjetConfig, Interrupt], object]
Load = Callable[[str], tuple[AjetConfig, Sequence[str]]]
"""Returns the config of a YAML text, checked, and its notices. Raises AjetError."""


class ServedRuns:
    """Holds the run in progress, and the exchange at which its clients run its episodes.

    offline ── start ── starting ── first episode offered ── running ── stop ── stopping ── offline
    """

    def __init__(self, load: Load) -> None:
        self.exchange = EpisodeExchange()
        self.exchange.close(NO_RUN)
        self._load = load
        self._changed = threading.Condition()
        self._state: Literal["offline", "starting", "started", "stopping"] = "offline"
        self._config: AjetConfig | None = None
        self._interrupt = StoppableInterrupt()
        self._is_in_main_thread = False
        self._error: str | None = None

    # --- the clients' side, in the server's threads ----------------------------------------------

    def start(self, text: str) -> Sequence[str]:
        """Plans a run of the YAML `text`, and returns the notices of its config. Raises
        `RequestError`: 409 while a run is in progress, 400 for a config that cannot run."""
        with self._changed:
            if self._state != "offline":
                raise RequestError(
                    f"a run is in progress ({self.status()['run_folder'] or self._state}): stop "
                    "it first, or take part in it",
                    status=409,
                    code="run_in_progress",
                )
            self._state, self._error, self._interrupt = "starting", None, StoppableInterrupt()
        exchange = None
        forget_user_modules()  # those of the last run: their files may have changed
        try:
            config, notices = self._load(text)
            exchange = make_exchange(config)
        except AjetError as error:
            raise RequestError(str(error), param="config", code=str(error.code)) from error
        except KeyboardInterrupt as error:  # in this thread only the user's code raises it
            raise RequestError("a module of the config raises KeyboardInterrupt") from error
        finally:
            with self._changed:
                self._state = "offline" if exchange is None else self._state
        with self._changed:
            self._config, self.exchange = config, exchange
            self._changed.notify_all()
        return notices

    def stop(self, *, now: bool) -> None:
        """Stops the run after its step, or `now`: what clients were told is stored stays, and the
        same config continues from the last checkpoint."""
        with self._changed:
            if self._state == "offline":
                return
            self._state = "stopping"
            self._interrupt.stop(now=now and self._is_in_main_thread)

    def status(self) -> dict[str, Any]:
        """Returns the exchange's status, with the state and the folder of the run, and the error of
        the last one."""
        status, config = self.exchange.status(), self._config
        state = status["state"] if self._state == "started" else self._state
        if self._state == "started" and status["num_begun"] == 0 and not status["num_offered"]:
            state = "starting"
        folder = None if config is None else str(config.run_folder)
        return status | {
            "state": state,
            "error": self._error,
            "run_folder": folder,
            "accepts_config": True,
        }

    # --- the main thread -------------------------------------------------------------------------

    def planned(self, timeout_s: float) -> AjetConfig | None:
        """Waits for a run to be planned, and returns its config."""
        with self._changed:
            self._changed.wait_for(lambda: self._config is not None, timeout_s)
            return self._config

    def run(self, fit: Fit) -> int | None:
        """Runs the planned config. Returns the exit code if a signal to the process ended it, which
        ends the server too."""
        config, interrupt = self._config, self._interrupt
        assert config is not None
        with stoppable(interrupt):
            try:
                with self._changed:
                    is_wanted = not interrupt.requested
                    if is_wanted:
                        self._state, self._is_in_main_thread = "started", True
                if is_wanted:
                    fit(config, interrupt)
            except KeyboardInterrupt:
                logger.info("the run was stopped")
            # A run is the edge of this server: whatever ends one, clients are told and the next
            # one may start.
            except Exception as error:  # noqa: BLE001
                is_users = isinstance(error, AjetError)
                self._error = str(error) if is_users else one_line(error)
                trace = "" if is_users else f"\n{redact(traceback.format_exc())}"
                logger.error("the run ended: {}{}", self._error, trace)
            finally:
                with self._changed:
                    self._is_in_main_thread = False
                    self._state, self._config = "offline", None
                    self.exchange.close(self._error or "the run has ended")
                gc.collect()  # the model: the next run may need its memory
        return interrupt.exit_code if interrupt.is_signalled else None
