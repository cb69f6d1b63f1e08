"""Does routing replay keep a mixture-of-experts model learning under an imprecise sampler?

    python benchmarks/routing_replay.py --seeds 3

The demo's model with each MLP replaced by eight experts, two per token: copies of the MLP that
differ by noise (`upcycled`), and routers at random. It runs the demo with a sampler whose routers
are imprecise: noise is added to the scores that the sampler chooses experts by, in place of the
errors of another engine's low precision.

    exact       the sampler is exact; no replay
    replay      the sampler is imprecise; its experts are replayed
    no_replay   the sampler is imprecise; the trainer chooses the experts itself

A run has collapsed if it ends with less greedy success than it began with, and has learnt if it
gains 30 points. `logprob_diff_mean` is the mean difference of sampler and trainer, `router_changed`
the share of tokens and layers whose experts the trainer would not have chosen.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from learning import CONF, ROOT, greedy, kept_runs, run_all, run_training, write_report
from transformers import AutoModelForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

NUM_EXPERTS, TOP_K = 8, 2
SPREAD = 0.3
"""The standard deviation of the experts' weights around the MLP's, relative to that of its own."""
REPLAY = "ajet.rollout.routing_replay=true"
ARMS = {"exact": [], "replay": [REPLAY], "no_replay": []}
GAIN = 0.30


def upcycled(out: Path) -> Path:
    """Writes the demo's model as a mixture of experts (sparse upcycling, arXiv 2212.05055)."""
    source = ROOT / "ajet/embedded/math"
    dense = AutoModelForCausalLM.from_pretrained(source)
    config = Qwen2MoeConfig(
        **{
            name: value
            for name, value in dense.config.to_dict().items()
            if name not in ("model_type", "architectures", "intermediate_size")
        },
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        norm_topk_prob=True,
        moe_intermediate_size=dense.config.intermediate_size,
        shared_expert_intermediate_size=8,
        intermediate_size=dense.config.intermediate_size,
    )
    torch.manual_seed(0)
    model = Qwen2MoeForCausalLM(config)
    missing, _ = model.load_state_dict(dense.state_dict(), strict=False)
    assert all(".mlp." in name for name in missing), missing
    with torch.no_grad():
        for layer, of_dense in zip(model.model.layers, dense.model.layers, strict=True):
            mlp, block = of_dense.mlp, layer.mlp
            gate_up = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
            for weight, copied in (
                (block.experts.gate_up_proj, gate_up),
                (block.experts.down_proj, mlp.down_proj.weight),
            ):
                weight.copy_(copied + SPREAD * copied.std() * torch.randn(weight.shape))
            block.gate.weight.normal_(std=0.5 * dense.config.hidden_size**-0.5)
            block.shared_expert.down_proj.weight.zero_()
    model.save_pretrained(out)
    for file in source.iterdir():
        if not (out / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, out)
    return out


def train_with_noise(noise: float, arguments: list[str]) -> None:
    """Runs `ajet` in this process, with noise on the scores by which the engine chooses experts.
    `noise` is relative to the scores' standard deviation over the experts."""
    from ajet.cli.launcher import main
    from ajet.core.model.routers import Routers
    from ajet.engines import in_process

    drawn = torch.Generator().manual_seed(0)
    choose = Routers.choose

    def imprecise(self: Routers, layer: int, scores_NE: torch.Tensor, own: Any) -> Any:
        if torch.is_inference_mode_enabled():  # the engine's passes
            deviation = scores_NE.std(-1, keepdim=True)
            noisy = scores_NE + noise * deviation * torch.randn(scores_NE.shape, generator=drawn)
            experts = noisy.topk(self.top_k, dim=-1).indices
            own = torch.return_types.topk((scores_NE.gather(-1, experts), experts))
        return choose(self, layer, scores_NE, own)

    Routers.choose = imprecise
    make = in_process.InProcessEngine.__init__
    # Also where nothing is replayed: the noise is in the routers that record.
    in_process.InProcessEngine.__init__ = lambda self, *args, **options: make(
        self, *args, **options | {"records_routes": True}
    )
    sys.argv = ["ajet", *arguments]
    main()


def run(arm: str, seed: int, folder: Path, noise: float, steps: int) -> dict[str, Any]:
    level = 0.0 if arm == "exact" else noise
    program = [str(Path(__file__).resolve()), "--child", str(level)]
    arguments = [*CONF, f"ajet.model.path={folder / 'model'}", *ARMS[arm]]
    arguments += [f"ajet.trainer_common.total_training_steps={steps}"]
    arguments += ["ajet.trainer_common.test_freq=0"]
    name = f"{arm}-{seed}"
    found = run_training(arguments, folder, name, seed, program=program)
    lines = (folder / name / "logs/metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "update/logprob_diff_mean" in row]
    measured = {
        metric: [row[f"update/{metric}"] for row in rows]
        for metric in ("logprob_diff_mean", "router_changed", "router_balance", "router_aux_loss")
        if f"update/{metric}" in rows[0]
    }
    return {"arm": arm, "seed": seed, "noise": level, **found, "by_step": measured}


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for arm in ARMS:
        of_arm = [r for r in runs if r["arm"] == arm]
        if not of_arm:
            continue
        gains = [greedy(r) - greedy(r, "before") for r in of_arm]
        shown[arm] = {
            "greedy_before": [greedy(r, "before") for r in of_arm],
            "greedy_after": [greedy(r) for r in of_arm],
            "sampled_after": [r["success_after"] for r in of_arm],
            "seeds_that_learn": sum(gain >= GAIN for gain in gains),
            "seeds_that_collapse": sum(gain < 0 for gain in gains),
            "logprob_diff_mean": statistics.fmean(
                r["by_step"]["logprob_diff_mean"][0] for r in of_arm
            ),
        }
    return shown


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return train_with_noise(float(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--only", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/routing_replay.json")
    parser.add_argument("--note", help="what else the machine did, for example")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ajet-routing-"))
    upcycled(folder / "model")
    runs = kept_runs(args.out, args.only)

    def write() -> None:
        runs.sort(key=lambda each: (list(ARMS).index(each["arm"]), each["seed"]))
        write_report(args.out, verdict(runs), runs, args.note)

    wanted = [
        (arm, seed, folder, args.noise, args.steps)
        for arm in args.only
        for seed in range(args.seeds)
    ]
    run_all(run, wanted, args.workers, runs, write)
    shutil.rmtree(folder)
    print(json.dumps(verdict(runs), indent=2))


if __name__ == "__main__":
    main()
