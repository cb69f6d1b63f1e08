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

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from report import ROOT, options, read, write
from runs import TRAINER, Run, run_training

AGENTS = {
    "agentscope": "example_math_agent",
    "langgraph": "example_math_langgraph",
    "http": "example_math_http",
    "openai": "example_math_openai",
    "langchain": "example_math_langchain",
}
JUDGED = ("langgraph", "http")
MOST_SLOWER = 0.10


def run(agent: str, steps: int | None, folder: Path) -> Run:
    """One training run: what its summary says, and a digest of its last weights."""
    arguments = ["--conf", str(ROOT / "tutorial" / AGENTS[agent] / "demo.yaml")]
    arguments += [f"{TRAINER}.total_training_steps={steps}"] if steps else []
    found = run_training(arguments, folder, agent, seed=0)
    weights = sorted((folder / agent).glob("checkpoints/*/model.safetensors"))[-1]
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
    return {"agent": agent, **found, "weights": digest}


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
    parser = options(__doc__, "frameworks")
    parser.add_argument("--only", nargs="*", choices=list(AGENTS), default=list(AGENTS))
    parser.add_argument("--steps", type=int, help="by default those of the demo")
    args = parser.parse_args()
    runs = [run for run in read(args.out).get("runs", []) if run["agent"] not in args.only]
    with tempfile.TemporaryDirectory(prefix="ajet-frameworks-") as folder:
        for agent in args.only:
            runs.append(run(agent, args.steps, Path(folder)))
            print(runs[-1], flush=True)
            known = {run["agent"] for run in runs}
            verdict = compared(runs) if "agentscope" in known else {}
            passed = all(verdict[name]["passed"] for name in JUDGED if name in verdict)
            write(args.out, {"passed": passed, "against_agentscope": verdict, "runs": runs})


if __name__ == "__main__":
    main()
