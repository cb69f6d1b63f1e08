"""Serves the runs that clients configure: `ajet serve --swarm`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ajet import backbones
from ajet.cli.notices import show_notices
from ajet.cli.options import RayFlags, serve_or_check, session_settings
from ajet.cli.preflight import check_run
from ajet.core.config import AjetConfig, load_config
from ajet.core.errors import AjetError, KeysConflict
from ajet.core.net.address import fixed_port
from ajet.core.process.interrupt import Interrupt, catch_interrupts
from ajet.core.text.terminal import Console
from ajet.read.reports.summary_table import print_summary
from ajet.serve.exchange.gateway import SwarmGateway
from ajet.serve.exchange.runs import ServedRuns
from ajet.serve.exchange.setup import SETS, check_can_serve

POLL_S = 0.2


@dataclass(frozen=True)
class SwarmCommand:
    """What the command sets, which comes before the config of any client. That config is written
    to `yaml`, and relative paths in it are those of `project_dir` or the current folder."""

    yaml: Path
    overrides: Sequence[str]
    backbone: str | None
    exp_dir: Path | None
    project_dir: Path | None
    flags: RayFlags

    def serve(self, key: str, show_address: Callable[[str], None]) -> int:
        """Serves one run after another until a signal, and returns the exit code."""
        own = self._config("ajet: {}\n", required=()).ajet.serve
        runs = ServedRuns(self._load)
        gateway = SwarmGateway(runs, key, own.host, fixed_port(own.port))
        show_address(gateway.listen().removesuffix("/v1"))

        try:
            with catch_interrupts() as interrupt:

                def fit(config: AjetConfig, stop: Interrupt) -> None:
                    if not interrupt.requested:  # by a signal that came just before the run
                        self._fit(config, stop, gateway)

                exit_code = None
                while exit_code is None and not interrupt.requested:
                    if runs.planned(POLL_S) is not None:
                        exit_code = runs.run(fit)
                return interrupt.exit_code if exit_code is None else exit_code
        finally:
            gateway.close()

    def _config(self, text: str, required: Sequence[str]) -> AjetConfig:
        self.yaml.write_text(text, "utf-8")
        return load_config(
            self.yaml,
            [*self.overrides, *SETS],
            backbone=self.backbone,
            exp_dir=self.exp_dir,
            project_dir=self.project_dir or Path.cwd(),
            required=required,
        )

    def _load(self, text: str) -> tuple[AjetConfig, Sequence[str]]:
        try:
            config = self._config(text, required=("ajet.model.path",))
            check_can_serve(config)
            if config.has_explorer_elsewhere:
                raise KeysConflict(
                    "ajet serve --swarm: trinity.mode=train: clients are the explorer's: set both, "
                    "colocate or explore"
                )
            warnings = check_run(config)
        except AjetError as error:  # its client does not know the file
            message = str(error).replace(f"{self.yaml.parent}/", "")
            raise type(error)(
                message, code=error.code, where=error.where, parts=error.parts
            ) from error
        return config, [*config.notices, *warnings, *self.flags.notices(config.ajet.backbone)]

    def _fit(self, config: AjetConfig, interrupt: Interrupt, gateway: SwarmGateway) -> None:
        show_notices(config.notices)
        session = session_settings(self.flags, debug=None)
        if config.runs_on_ray and serve_or_check(config, session):
            return
        summary = backbones.fit(config, session, interrupt, gateway)
        if summary is not None:
            print_summary(Console(), summary, config.run_folder)
