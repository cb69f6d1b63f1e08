"""Forks of recorded episodes: do they come to their turn in the recorded state?

    python benchmarks/fork.py [--forks 10000] [--out FILE.json]

Episodes of FrozenLake (slippery), Countdown (four tries) and guess-the-number are recorded into a
database, with the tokenizers and templates of the tutorials' models and replies that the sampling
seed draws. Then each is forked at each of its turns, four times, as `ajet inspect fork` does.
`state_key` is a hash of all that the game holds, its random generator included (fork_games.py).
Counted are the states up to the turn whose hash and prompt equal the recorded ones, and the forks
that continued differently. As a control the same is tried with another seed for the environment:
each must be refused, or be in the same states all the same. Goal: all of 10,000 forks equal.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import ROOT, options, write

from ajet import assembly
from ajet.backbones.debug.forking import Forking, ForkPoint
from ajet.core.config import AjetConfig, load_config
from ajet.core.errors import DataError
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.reader import make_reader
from ajet.core.trajectory.trajectory import Trajectory
from ajet.engines.scripted import ScriptedEngine
from ajet.read.episode_reader import EpisodeReader, EpisodeRecord

FORKS_OF_A_TURN, CONTROLS, BATCH = 4, 200, 32
GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "frozen_lake": ("HashedLake", {"is_slippery": True}),
    "countdown": ("HashedCountdown", {"max_tries": 4, "max_number": 9}),
    "guess_number": ("HashedGuessing", {}),
}
TAGS = {
    "frozen_lake": "FrozenLake4",
    "countdown": "Countdown2",
    "guess_number": "GuessNumber20",
}


def config_of(game: str) -> AjetConfig:
    where = f"ajet.environment.custom_envs.{TAGS[game]}"
    kind, given = GAMES[game]
    return load_config(
        ROOT / f"tutorial/example_{game}/demo.yaml",
        [
            f"{where}.env_type=benchmarks.fork_games->{kind}",
            *(f"++{where}.env_config.{name}={value}" for name, value in given.items()),
            f"{where}.max_steps=6",
            f"{where}.env_manager_cls=traj_env_agent",
            f"ajet.data.train_batch_size={BATCH}",
            "ajet.data.max_response_length=960",
            "ajet.rollout.max_model_len=1024",
        ],
        backbone="debug",
        project_dir=ROOT,
    )


def reply_of(game: str, seed: int) -> str:
    rng = random.Random(seed)
    if game == "frozen_lake":
        return rng.choice(("Left", "Down", "Right", "Up"))
    if game == "guess_number":
        return str(rng.randint(1, 20))
    return f"{rng.randint(1, 9)}{rng.choice('+-*/')}{rng.randint(1, 9)}"


def engine_of(game: str, template: ChatTemplate) -> ScriptedEngine:
    stop = template.stop_token_ids[0]
    return ScriptedEngine(
        lambda _ids, sampling, _name: [*template.encode(reply_of(game, sampling.seed)), stop]
    )


async def recorded(
    config: AjetConfig, template: ChatTemplate, engine: ScriptedEngine, step: int, folder: Path
) -> list[EpisodeRecord]:
    """The episodes of one step, by way of the database."""
    runner = assembly.make_runner(config, engine, template, judge=None)
    tasks = make_reader(config).get_training_tasks()
    groups = await runner.rollout(RolloutRequest(tasks, step=step, mode="train", num_repeat=1))
    file = folder / f"{config.experiment_name}-{step}.sqlite"
    with EpisodeStore(file) as store:
        store.write(step, groups)
    with EpisodeReader(file) as reader:
        return [reader.episode(g.trajectories[0].episode_id) for g in groups]


class Game:
    """Counts what becomes of the forks of one game."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.config = config_of(name)
        self.template = assembly.make_template(assembly.load_policy_model(self.config))
        self.engine = engine_of(name, self.template)
        self.forking = Forking(self.config, self.template, None, SamplingParams())
        self.counts: Counter[str] = Counter()

    async def run(self, num_forks: int) -> None:
        step = 0
        while self.counts["forks"] < num_forks:
            step += 1
            parts = (self.config, self.template, self.engine)
            for record in await recorded(*parts, step, self.folder):
                self.counts["episodes"] += 1
                for turn in range(len(record.turns)):
                    await self.fork(record, turn)
                if self.counts["controls"] < CONTROLS:
                    await self.control(record)

    async def fork(self, record: EpisodeRecord, turn: int) -> None:
        point = ForkPoint.of(record, turn, self.config)
        self.counts["forks"] += FORKS_OF_A_TURN
        self.counts["turns"] += 1
        try:
            forks = await self.forking.run(point, self.engine, FORKS_OF_A_TURN)
        except DataError:
            self.counts["refused"] += FORKS_OF_A_TURN
            return
        for fork in forks:
            same = equal_states(fork, record, turn)
            self.counts["states_compared"] += turn + 1
            self.counts["states_equal"] += same
            self.counts["forks_with_all_states_equal"] += same == turn + 1
            other = fork.turns[turn].completion.token_ids != _ids(record.turns[turn].token_ids)
            self.counts["with_another_reply"] += other
            self.counts["with_another_reward"] += fork.reward != record.row.reward

    async def control(self, record: EpisodeRecord) -> None:
        """The last turn of the episode, with another seed for its environment."""
        self.counts["controls"] += 1
        last = len(record.turns) - 1
        point = ForkPoint.of(replace(record, seed=record.seed + 1), last, self.config)
        try:
            [fork] = await self.forking.run(point, self.engine, 1)
        except DataError:
            self.counts["controls_refused"] += 1
        else:  # another seed may draw the same number
            self.counts["controls_in_the_same_states"] += equal_states(fork, record, last) > last


def equal_states(fork: Trajectory, record: EpisodeRecord, turn: int) -> int:
    """How many of the states up to the turn are the recorded ones, in prompt and hash."""
    return sum(
        now.state_key == then.state_key and now.completion.prompt_ids == _ids(then.prompt_ids)
        for now, then in zip(fork.turns[: turn + 1], record.turns, strict=False)
    )


def _ids(ids: Any) -> tuple[int, ...]:
    return tuple(ids.tolist())


async def measured(names: Sequence[str], num_forks: int, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        started_s = time.process_time()
        game = Game(name, folder)
        await game.run(-(-num_forks // len(names)))
        found[name] = dict(game.counts) | {"cpu_s": round(time.process_time() - started_s, 1)}
    return found


def main() -> None:
    given = options(__doc__, "fork", forks=10_000).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(list(GAMES), given.forks, Path(folder)))
    total: Counter[str] = Counter()
    for counts in found.values():
        total.update(counts)
    share = total["forks_with_all_states_equal"] / total["forks"]
    write(given.out, {"forks": total["forks"], "share_equal": share, "goal": 1.0, "games": found})
    for name, counts in found.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in counts.items())}")
    print(f"{total['forks']} forks, {share:.2%} with all states equal")


if __name__ == "__main__":
    main()
