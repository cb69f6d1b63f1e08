"""What recording costs: milliseconds to write an episode, and to list 100,000 of them.

    python benchmarks/episode_store.py [--episodes 100000] [--out FILE.json]

An episode here is two turns of 80 and 130 prompt tokens and 30 sampled each, as in the demo.
Limits: 0.3 ms to write one, 100 ms to list a page under any filter. Bytes an episode: the file's.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.sample import TrainingSample, TurnSpan
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.read.episode_reader import EpisodeFilter, EpisodeReader

EPISODES_A_STEP, MEMBERS = 256, 8
LIMIT_WRITE_MS, LIMIT_LIST_MS = 0.3, 100.0
FILTERS = {
    "none": EpisodeFilter(),
    "status": EpisodeFilter(status="timeout"),
    "success": EpisodeFilter(is_success=True, mode="train"),
    "reward": EpisodeFilter(min_reward=0.999),
    "steps": EpisodeFilter(first_step=3, last_step=4),
    "text": EpisodeFilter(text="problem 77 "),
    "absent_text": EpisodeFilter(text="no such words"),
}


def episode(rng: np.random.Generator, step: int, group: int, member: int) -> Trajectory:
    """Two turns with messages, tools and ids of a realistic length."""
    first = tuple(rng.integers(0, 1024, 80).tolist())
    sampled = [tuple(rng.integers(0, 1024, 30).tolist()) for _ in range(2)]
    second = first + sampled[0] + tuple(rng.integers(0, 1024, 20).tolist())
    logprobs = [tuple((-rng.random(30)).tolist()) for _ in range(2)]
    system = {"role": "system", "content": "You solve word problems with Python. " * 8}
    user = {"role": "user", "content": f"problem {group} of step {step}: how many apples? " * 3}
    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_0", "function": {}}]}
    tool = {"role": "tool", "content": "<stdout>42</stdout>", "tool_call_id": "call_0"}
    tools = [{"type": "function", "function": {"name": "run", "description": "Run it. " * 40}}]
    turns = (
        Turn(
            Completion(first, sampled[0], logprobs[0], "stop", step), [system, user], tools, reply
        ),
        Turn(
            Completion(second, sampled[1], logprobs[1], "stop", step),
            [system, user, reply, tool],
            tools,
            {"role": "assistant", "content": "\\boxed{42}"},
        ),
    )
    group_id = f"{step:06d}-train-{group:04d}"
    who = WorkflowTask(
        Task(f"task-{group}", user["content"]), f"{group_id}-{member:02d}", group_id, member, step,
        "train", 0,
    )  # fmt: skip
    status = EpisodeStatus.TIMEOUT if rng.random() < 0.01 else EpisodeStatus.OK
    reward = float(rng.random())
    return Trajectory(
        who, turns, status, WorkflowOutput(metadata={"final_answer": "42"}), reward, reward > 0.5
    )


def sample(trajectory: Trajectory) -> TrainingSample:
    ids = trajectory.turns[1].completion.prompt_ids + trajectory.turns[1].completion.token_ids
    mask = np.zeros(len(ids), dtype=bool)
    mask[80:110] = mask[130:160] = True
    zeros = np.zeros(len(ids), dtype=np.float32)
    spans = (TurnSpan(80, 110, 0), TurnSpan(130, 160, 1))
    return TrainingSample(
        trajectory.episode_id, trajectory.group_id, np.array(ids), mask, zeros, zeros, spans, 1, 1
    )


def write_all(path: Path, num_episodes: int) -> list[tuple[float, float]]:
    """Milliseconds of wall and of CPU time an episode, for each step written."""
    rng, spent = np.random.default_rng(0), []
    with EpisodeStore(path) as store:
        for step in range(1, num_episodes // EPISODES_A_STEP + 1):
            groups = [
                Group(f"{step}-{g}", tuple(episode(rng, step, g, m) for m in range(MEMBERS)))
                for g in range(EPISODES_A_STEP // MEMBERS)
            ]
            members = [t for g in groups for t in g.trajectories]
            advantages = {t.episode_id: (np.ones(30, np.float32),) * 2 for t in members}
            samples = [sample(t) for t in members]
            started, cpu_started = time.perf_counter(), time.process_time()
            store.write(step, groups, advantages, samples)
            wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
            spent.append((wall / len(members) * 1000, cpu / len(members) * 1000))
    return spent


def list_all(path: Path) -> dict[str, float]:
    """Milliseconds for the first page of 50, by filter; the best of three."""
    spent = {}
    with EpisodeReader(path) as reader:
        for name, which in FILTERS.items():
            tries = []
            for _ in range(3):
                started = time.perf_counter()
                reader.list(which, limit=50)
                tries.append((time.perf_counter() - started) * 1000)
            spent[name] = round(min(tries), 2)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/episode_store.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.sqlite"
        write_ms = write_all(path, options.episodes)
        listed_ms = list_all(path)
        size = path.stat().st_size
    num_episodes = len(write_ms) * EPISODES_A_STEP
    wall_ms, cpu_ms = np.median(write_ms, axis=0).tolist()
    result = {
        "episodes": num_episodes,
        "write_ms_per_episode": round(wall_ms, 4),
        "write_cpu_ms_per_episode": round(cpu_ms, 4),
        "write_ms_limit": LIMIT_WRITE_MS,
        "list_ms": listed_ms,
        "list_ms_limit": LIMIT_LIST_MS,
        "bytes_per_episode": size // num_episodes,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
