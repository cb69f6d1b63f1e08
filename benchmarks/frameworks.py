"""The same math agent in several frameworks: does each learn what AgentScope's learns, as fast?

    python benchmarks/frameworks.py                             # about 35 minutes on two cores
    python benchmarks/frameworks.py --only agentscope langgraph http --steps 20

Each run is the tutorial's own command in a process of its own, with the same seed: steps of 32
tasks x 8 episodes, 256 held-out tasks before and after. The prompts have the same tokens and the
draws the same seeds, so runs differ only where the frameworks do (AgentScope asks a third time when
its agent calls the tool twice). `slower` compares the seconds of whole runs.
Goal: LangGraph and HTTP within 10 % of AgentScope's seconds, and no worse on the held-out tasks
than the 95 % interval of the difference of two such figures. `--only` keeps what the file has of
the other agents.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AGENTS = {
    "agentscope": "example_math_agent",
    "langgraph": "example_math_langgraph",
    "http": "example_math_http",
    "openai": "example_math_openai",
    "langchain": "example_math_langchain",
}
JUDGED = ("langgraph", "http")
MOST_SLOWER = 0.10
KEPT = ("success_before", "success_after", "num_held_out", "wall_seconds", "episodes", "steps")


def run(agent: str, steps: int | None, folder: Path) -> dict[str, Any]:
    """One training run."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--backbone", "debug"]
    command += ["--conf", str(ROOT / "tutorial" / AGENTS[agent] / "demo.yaml")]
    command += ["--exp-dir", str(folder), f"ajet.experiment_name={agent}"]
    command += [f"ajet.trainer_common.total_training_steps={steps}"] if steps else []
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return figures(agent, folder / agent)


def figures(agent: str, run_folder: Path) -> dict[str, Any]:
    """What a run's summary says, and a digest of its last weights."""
    summary = json.loads((run_folder / "summary.json").read_text())
    weights = sorted(run_folder.glob("checkpoints/*/model.safetensors"))[-1]
    return {
        "agent": agent,
        **{key: summary[key] for key in KEPT},
        "weights": hashlib.sha256(weights.read_bytes()).hexdigest()[:16],
    }


def compared(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Each run against AgentScope's."""
    [base] = [run for run in runs if run["agent"] == "agentscope"]
    shown: dict[str, Any] = {}
    for run in runs:
        change = run["success_after"] - base["success_after"]
        error = _standard_error(run) ** 2 + _standard_error(base) ** 2
        slower = run["wall_seconds"] / base["wall_seconds"] - 1
        shown[run["agent"]] = {
            "slower": round(slower, 4),
            "success_difference": round(change, 4),
            "interval_95": round(1.96 * error**0.5, 4),
            "same_weights": run["weights"] == base["weights"],
            "passed": slower <= MOST_SLOWER and change >= -1.96 * error**0.5,
        }
    return shown


def _standard_error(run: dict[str, Any]) -> float:
    """Of the held-out success, a share of independent tasks."""
    share = run["success_after"]
    return (share * (1 - share) / run["num_held_out"]) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(AGENTS), default=list(AGENTS))
    parser.add_argument("--steps", type=int, help="by default those of the demo")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/frameworks.json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ajet-frameworks-"))
    kept = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    runs = [run for run in kept if run["agent"] not in args.only]
    verdict: dict[str, Any] = {}
    for agent in args.only:
        runs.append(run(agent, args.steps, folder))
        print(json.dumps(runs[-1]), flush=True)
        known = {run["agent"] for run in runs}
        verdict = compared(runs) if "agentscope" in known else {}
        report = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "passed": all(verdict[name]["passed"] for name in JUDGED if name in verdict),
            "against_agentscope": verdict,
            "runs": runs,
        }
        args.out.write_text(json.dumps(report, indent=2) + "\n")
    shutil.rmtree(folder)
    print(json.dumps(verdict, indent=2))


if __name__ == "__main__":
    main()
