r"""What `ajet plan --try` says of a run on the debug backbone, beside what then happens.

    python benchmarks/plan_accuracy.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--only demo ...]

Each case is planned, then run for a few steps by the user's own command, in a process of its own.
Times are medians over the steps after the first. Memory is the peak of the run's own
process, as the plan's is; judges and sandboxes have processes beside it, which `peak_rss_bytes` of
the summary adds. Runs of the real model end with a checkpoint and a validation. On a shared
machine, `--peak-only` leaves the times that the JSON has as they are.
Goal: step and memory are within 25 % of the plan; the JSON says where they are not.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from report import ROOT, options, read, write
from runs import TRAINER, ajet, logged

AGENT = ROOT / "benchmarks/real_step_agent.py"
DEMO = ROOT / "tutorial/example_math_agent/demo.yaml"
CASES = ("demo", "float32", "bfloat16")
REPLY = 125
QUIET = (f"{TRAINER}.val_before_train=false", f"{TRAINER}.save_freq=0")


def real_conf(folder: Path, model: Path, dtype: str) -> Path:
    """Writes the YAML of 4 groups of 8 with prompts of about 324 tokens."""
    for name in ("train", "test"):
        rows = ({"main_query": f"{name} {i}", "metadata": {"words": 290}} for i in range(16))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {
        use: {"file_path": str(folder / f"{name}.jsonl")}
        for use, name in (("training", "train"), ("validation", "test"))
    }
    config = {
        "experiment_name": dtype,
        "model": {"path": str(model), "dtype": dtype},
        "task_reader": {"type": "jsonl_dataset_file", "jsonl_dataset_file": files},
        "data": {"train_batch_size": 4, "max_prompt_length": 512, "max_response_length": REPLY},
        "rollout": {
            "user_workflow": f"{AGENT}->FixedLengths",
            "num_repeat": 8,
            "max_env_worker": 32,
            "max_response_length_in_one_turn": REPLY,
            "max_model_len": 1024,
        },
        "task_judge": {"judge_protocol": f"{AGENT}->Checksum"},
        "trainer_common": {
            "torch_threads": os.cpu_count(),
            "max_tokens_per_micro_batch": 1536,
            "use_kl_loss": True,
            "kl_loss_coef": 0.01,
            "optim": {"lr": 1e-6},
        },
    }
    path = folder / "run.yaml"
    path.write_text(json.dumps({"ajet": config}))  # JSON is YAML
    return path


ENVIRONMENT = os.environ | {"COLUMNS": "160", "PYTHONPATH": str(ROOT)}


def planned(conf: Path, cwd: Path) -> dict[str, float]:
    """Returns the numbers of the plan, which its tables round, by a library call."""
    code = (
        "import json, sys; from ajet.core.config import load_config; "
        "from ajet.assembly import prepare_torch; from ajet.core.run.batch_plan import BatchPlan; "
        "from ajet.core.task.reader import make_reader; "
        "from ajet.plan.cpu_plan import cpu_plan, try_rollout; "
        "c = load_config(sys.argv[1], [], backbone='debug'); prepare_torch(c); "
        "t = try_rollout(c, make_reader(c).get_training_tasks()); "
        "p = cpu_plan(BatchPlan(c, 16, 16), t.size, t); "
        "print(json.dumps({'rollout_s': p.rollout_s, 'update_s': p.update_s, 'step_s': p.step_s, "
        "'peak_bytes': p.peak_gib * 2**30}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(conf)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def happened(conf: Path, case: str, steps: int, folder: Path) -> dict[str, float]:
    usage = ajet(
        *("--conf", conf, "--backbone", "debug", "--exp-dir", folder / "runs", *QUIET),
        f"{TRAINER}.total_training_steps={steps}",
        f"{TRAINER}.test_freq={0 if case == 'demo' else steps}",
        folder=folder,
        environment=ENVIRONMENT,
    )
    (run,) = (folder / "runs").glob("*/summary.json")
    rows = logged(run.parent)
    metrics = rows[1:] or rows

    def median(name: str) -> float:
        return statistics.median(each[name] for each in metrics if name in each)

    rollout_s, update_s = median("rollout/seconds"), median("update/seconds")
    return {
        "rollout_s": rollout_s,
        "update_s": update_s,
        "step_s": rollout_s + update_s,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def measure(case: str, model: Path, steps: int, old: dict[str, Any] | None) -> dict[str, Any]:
    """Measures a case; with an `old` result only memory is taken from the new one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conf = DEMO if case == "demo" else real_conf(folder, model, case)
        plan, found = planned(conf, folder), happened(conf, case, steps, folder)
    if old is not None:
        plan = old["planned"] | {"peak_bytes": plan["peak_bytes"]}
        found = old["happened"] | {"peak_bytes": found["peak_bytes"]}
    return {
        "case": case,
        "steps": steps,
        "planned": plan,
        "happened": found,
        "happened_over_planned": {name: found[name] / plan[name] for name in plan},
    }


def main() -> None:
    parser = options(__doc__, "plan_accuracy", steps=3)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M as a GGUF file")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--peak-only", action="store_true", help="keep the times of --out")
    args = parser.parse_args()
    cases = {each["case"]: each for each in read(args.out).get("cases", [])}
    for case in args.only:
        earlier = cases[case] if args.peak_only else None
        cases[case] = measure(case, args.model.resolve(), args.steps, earlier)
        print(json.dumps(cases[case], indent=1), flush=True)
    write(args.out, {"cases": [cases[name] for name in CASES if name in cases]})


if __name__ == "__main__":
    main()
