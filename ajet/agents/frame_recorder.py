"""Records the pictures of one validation episode if `ajet.environment.render_save_dir` is set.

An environment that cannot draw itself is recorded as text. An error here never fails the episode.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from loguru import logger

from ajet.core.config import AjetConfig
from ajet.core.config.nested import with_values
from ajet.core.environment.environment import Frame
from ajet.core.environment.frames import frame_problem, gif_file, save_frames
from ajet.core.environment.live import LiveEnvironment
from ajet.core.environment.observations import marked_text
from ajet.core.errors import EnvironmentFault
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.workflow.bridge import run_in_thread


class FrameRecorder:
    def __init__(self, gif: Path) -> None:
        self._gif = gif
        self._frames: list[Frame] = []
        self._draws = True

    async def add(self, environment: LiveEnvironment, observation: str) -> None:
        """Adds a frame of the current state, or the observation if the environment cannot be
        drawn."""
        frame: Frame = marked_text(observation)
        if self._draws:
            try:
                frame = await environment.render()
                problem = frame_problem(frame)
            except EnvironmentFault as fault:
                problem = str(fault)
            if problem is not None:
                _warn_once(f"render() {problem}: observations are drawn instead")
                self._draws, frame = False, marked_text(observation)
        self._frames.append(frame)

    async def save(self) -> None:
        try:
            await run_in_thread(partial(save_frames, self._frames, self._gif))
        except (OSError, ValueError) as error:
            _warn_once(f"no pictures in {self._gif.parent}: {error}")


def frame_recorder_for(config: AjetConfig, workflow_task: WorkflowTask) -> FrameRecorder | None:
    """Returns a recorder for the first episode of each of the first held-out tasks, and None for
    other episodes."""
    section = config.ajet.environment
    if (
        section.render_save_dir is None
        or workflow_task.mode != "eval"
        or workflow_task.decoding is not None
        or workflow_task.rollout_index != 0
        or workflow_task.task_batch_index >= section.max_rendered_episodes
    ):
        return None
    root = config.run_folder / Path(section.render_save_dir).expanduser()
    return FrameRecorder(gif_file(root, workflow_task.step, workflow_task.task_id))


def with_render_dir(config: AjetConfig, folder: Path | None) -> AjetConfig:
    """Returns the config with its pictures saved in another folder, if it saves any; None turns
    pictures off."""
    if config.ajet.environment.render_save_dir is None:
        return config
    save_dir = None if folder is None else str(folder)
    return with_values(config, {"ajet.environment.render_save_dir": save_dir})


@cache
def _warn_once(line: str) -> None:
    logger.warning("{}", line)
