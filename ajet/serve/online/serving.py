"""Runs `ajet serve --learn`: the server of this process, and a learner process for each round. A
server that was killed resumes from the log: it runs an open round again and serves the last
promoted version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from loguru import logger

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.judge import make_judge
from ajet.core.model.load import LoadedModel
from ajet.core.net.address import fixed_port
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.process.interrupt import Interrupt
from ajet.core.process.process_guard import guarded
from ajet.core.record.run_folder import RunFolder, RunOrigin, shown_path
from ajet.core.record.run_recorder import RunRecorder
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.run.attempt_record import end_attempt
from ajet.core.text.terminal import Console
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.update.many_adapters import adapter_models
from ajet.core.update.settings import UpdateSettings
from ajet.core.update.weights import overlay_checkpoint
from ajet.core.workflow.registry import WorkflowFactory
from ajet.read.recorded_run import RecordedRun
from ajet.serve.online.gateway import OnlineGateway, OnlineServices
from ajet.serve.online.log import Round, SessionLog
from ajet.serve.online.models import AnsweringModel, ServedModel, ServedModels
from ajet.serve.online.round import version_path
from ajet.serve.online.sessions import SessionObserver, Sessions
from ajet.serve.online.setup import adapters_of, begin_serving, load_next_message
from ajet.tool_parsers import parser_for

LEARNER_LOG = "learner.log"
POLL_S = 0.2
FINISH_S = 60
"""How long replies under way may take after the first Ctrl-C, in seconds."""
MAX_FAILURES = 3
"""A round whose learner ends this often without a decision is not started again by this server."""


StartLearner = Callable[[RunFolder, Round], subprocess.Popen[bytes]]


def start_learner_process(folder: RunFolder, due: Round) -> subprocess.Popen[bytes]:
    """Starts the process of a round, which ends when this one does."""
    command = [sys.executable, "-P", "-m", "ajet.serve.online.learner"]
    arguments = [str(folder.path), str(due.number)]
    folder.logs.mkdir(exist_ok=True)
    with (folder.logs / LEARNER_LOG).open("ab") as output:
        return subprocess.Popen(
            guarded([*command, *arguments], grace_s=1.0),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


class OnlineServer:
    """Serves a model and runs its rounds. `run` is called once."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        key: str,
        start_learner: StartLearner = start_learner_process,
    ) -> None:
        self.config, self.folder = config, folder
        self._start_learner = start_learner
        tasks = assembly.read_tasks(config)
        begin_serving(config, folder, tasks)
        assembly.prepare_torch(config)
        self.log = SessionLog(folder.path)
        self._images = assembly.run_images(config, folder)
        loaded = assembly.load_policy_model(config, images=self._images)
        self.template = assembly.make_template(loaded)
        self.template.today = self._save_inputs(loaded, tasks.workflows)
        self._base = loaded
        self.models = {
            name: ServedModels(
                self._load(name, self.log.served_version(name)),
                config.ajet.serve.learn.num_versions,
            )
            for name in adapters_of(config)
        }
        self._wake = threading.Event()
        self._learner: subprocess.Popen[bytes] | None = None
        self._round: Round | None = None
        self._num_failures = dict.fromkeys(self.models, 0)
        serve = config.ajet.serve
        self.gateway = OnlineGateway(self._services(), key, serve.host, fixed_port(serve.port))

    def run(self, interrupt: Interrupt, say: Callable[[str], None]) -> None:
        """Serves until Ctrl-C, then finishes the replies under way; a second Ctrl-C ends them.
        `say` is called with a line for each round that begins or ends."""
        self.gateway.listen()
        try:
            while not interrupt.requested:
                self.advance(say)
                for models in self.models.values():
                    if models.has_idle:
                        run_bounded(models.close_idle())
                self._wake.wait(POLL_S)
            again = ""
            if (undecided := self.log.open_round()) is not None:
                again = f"; round {undecided.number} is trained again at the next start"
            say(f"stopping after the replies under way; Ctrl-C again stops at once{again}")
            self.gateway.close(FINISH_S)
        finally:
            self.close()

    def close(self) -> None:
        """Ends the server and its learner; everything acknowledged is in the log."""
        self.gateway.close()
        if self._learner is not None:
            self._learner.terminate()
            self._learner.wait()
        for models in self.models.values():
            run_bounded(models.close())
        newest = self.log.version
        self.log.close()
        end_attempt(self.folder, "stopped", newest)

    def advance(self, say: Callable[[str], None]) -> None:
        """Begins a round that is due, or acts on the decision of one whose learner has ended."""
        self._wake.clear()
        if self._learner is not None:
            if (status := self._learner.poll()) is not None:
                self._learner_ended(status, say)
            return
        due = self.log.open_round() or self._begin_round()
        if due is not None:
            whose = f"adapter {due.adapter} " if due.adapter else ""
            say(f"round {due.number}: {whose}trains from version {due.base}{_without(due)}")
            self._round, self._learner = due, self._start_learner(self.folder, due)

    def _begin_round(self) -> Round | None:
        """Begins a round for an adapter that has enough feedback, if there is one. Adapters take
        turns: the one whose last round is longest ago is first."""
        learn = self.config.ajet.serve.learn
        last = {round_.adapter: round_.number for round_ in self.log.rounds()}
        for adapter in sorted(self.models, key=lambda name: last.get(name, 0)):
            if self._num_failures[adapter] >= MAX_FAILURES:
                continue
            # `begin_round` leaves sessions out for good, so it is only called when a round may be
            # due.
            if self.log.num_waiting(adapter) < learn.sessions_per_round:
                continue
            due = self.log.begin_round(
                learn.sessions_per_round,
                learn.max_staleness,
                learn.excluded_clients,
                learn.max_false_exclusion,
                adapter,
            )
            if due is not None:
                return due
        return None

    def _learner_ended(self, status: int, say: Callable[[str], None]) -> None:
        assert self._round is not None
        ended, self._learner, self._round = self.log.round(self._round.number), None, None
        if ended.state == "open":
            self._num_failures[ended.adapter] += 1
            outcome = "it is started again"
            if self._num_failures[ended.adapter] >= MAX_FAILURES:
                self.log.withdraw_round(ended.number)  # an open round would block other adapters
                undecided = version_path(self.folder.checkpoints, ended.number)
                shutil.rmtree(undecided, ignore_errors=True)
                whose = f"adapter {ended.adapter}" if ended.adapter else "the model"
                outcome = (
                    "it is not started again until the server is restarted; "
                    f"{whose} is served unchanged"
                )
            logger.warning(
                f"round {ended.number}: its learner ended with status {status} and no decision "
                f"(see {shown_path(self.folder.logs / LEARNER_LOG)}); {outcome}"
            )
            return
        self._num_failures[ended.adapter] = 0
        if ended.state == "promoted":
            # Overlaying a checkpoint changes the base in place, and the old version still answers
            # requests: without adapters each version gets a fresh base.
            if not ended.adapter:
                self._base = assembly.load_policy_model(self.config, images=self._images)
            self.models[ended.adapter].promote(self._load(ended.adapter, ended.number))
        done = "is promoted" if ended.state == "promoted" else "is rolled back"
        whose = f" of adapter {ended.adapter}" if ended.adapter else ""
        say(f"round {ended.number}: version {ended.number}{whose} {done}: {ended.report['reason']}")

    def _load(self, adapter: str, version: int) -> ServedModel:
        """Makes the engine of a version; without an adapter this changes the base model."""
        lora, adapters = UpdateSettings.from_config(self.config).lora, None
        if version:
            # The newest checkpoint holds the weights of all adapters.
            newest = version_path(self.folder.checkpoints, self.log.version)
            if not adapter:
                overlay_checkpoint(self._base.model, newest, lora)
            else:
                assert lora is not None
                adapters = adapter_models(self._base.model, newest, lora)
                adapters = {adapter: adapters[adapter]}
        engine = assembly.make_engine(
            self.config,
            self._base,
            self.template,
            deterministic=False,
            gathers=False,
            adapters=adapters,
        )
        return ServedModel(version, engine)

    def _save_inputs(self, loaded: LoadedModel, workflows: WorkflowFactory) -> datetime:
        """Writes what the learner and `ajet inspect rebuild` read of the run; returns the date of
        the run's first start, which templates may print."""
        begun = datetime.now().isoformat(timespec="seconds")
        if self.folder.origin_json.exists():
            begun = RunOrigin.read(self.folder.origin_json).begun
        origin = RunOrigin.from_config(self.config, self.template.stop_token_ids, begun)
        # The recorder only stores inputs here; its first step lies after all rounds, so it cuts
        # off nothing.
        rounds = len(self.log.rounds())
        with RunRecorder(
            self.config,
            self.folder,
            Console(quiet=True),
            first_step=rounds + 1,
            total_steps=rounds + 1,
            is_resumed=True,
        ) as recorder:
            files = assembly.user_files(self.config, workflows)
            recorder.save_inputs(loaded.tokenizer, origin, files)
        if self._images is not None:
            assembly.save_processor_of(self.config, self.folder.tokenizer)
        RecordedRun(self.folder.path).require_complete_config()
        return datetime.fromisoformat(begun)

    def _services(self) -> OnlineServices:
        config = self.config
        adapters = config.ajet.trainer_common.lora.adapters
        sessions = Sessions(self.log, make_recorders(config, self.template), adapters)
        return OnlineServices(
            self.log,
            self.models,
            sessions,
            judge=make_judge(config),
            judge_timeout_s=config.ajet.rollout.episode_timeout_s,
            next_message=load_next_message(config),
            keeps_version=config.ajet.serve.learn.version_for == "session",
            on_feedback=self._wake.set,
        )


def _without(due: Round) -> str:
    """Returns the note on clients whose feedback is not in a round, for its line on the screen."""
    clients = due.unreliable_clients
    if not clients:
        return ""
    names = ", ".join(clients[:5]) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
    return f", without the feedback of {names}, which contradicts that of others"


def make_recorders(
    config: AjetConfig, template: ChatTemplate
) -> Callable[[str, SessionObserver], EpisodeRecorder]:
    """Returns a function that makes the recorder of a session."""
    parser = parser_for(template, config.ajet.rollout.tool_parser)
    limits = RolloutLimits.from_config(config)
    sampling = SamplingParams.from_config(config, "train")
    adapters = AdapterChoice.from_config(config)
    if adapters is not None:  # a session's agent has the name of its adapter
        adapters = replace(adapters, by="agent_name")

    def make(session: str, observer: SessionObserver) -> EpisodeRecorder:
        return EpisodeRecorder(
            endpoint=AnsweringModel(),
            template=template,
            parser=parser,
            limits=limits,
            sampling=sampling,
            episode_id=session,
            seed_path=(config.ajet.seed, "served", session),
            observer=observer,
            adapters=adapters,
        )

    return make
