"""Does a pretrained model of 0.5 billion parameters learn to call functions in its template's form?

    pip install --no-deps bfcl-eval
    python -m tutorial.example_function_calling.data --out data/function_calling_4 \\
        --categories simple_python multiple parallel irrelevance --held-out 280
    python benchmarks/function_calling_qwen.py --arm trained --seed 0 --folder runs   # an arm

two_stages.py has the arms; the model is a file that qwen.yaml names. It is measured on 280 held-out
tasks of the four categories, by the benchmark's own checker. As it is, it writes its calls in
another form than its template has, so it is also measured with the calls as text, and with that
form read as calls.

Writes benchmarks/results/function_calling_qwen.json after each arm; what it has of others is kept.
"""

from pathlib import Path

from two_stages import ROOT, TwoStages

DATA = Path("data/function_calling_4")


def main() -> None:
    """Runs and measures one arm, and writes what is known."""
    TwoStages(
        conf=ROOT / "tutorial/example_function_calling/qwen.yaml",
        data=DATA,
        samples={"test": 2},
        categories=("simple_python", "multiple", "parallel", "irrelevance"),
        forms={
            "text": ["suite.prompting=text"],
            "json": ["ajet.rollout.tool_parser=json"],
        },
        result="function_calling_qwen",
        goal=0.15,
    ).main(__doc__)


if __name__ == "__main__":
    main()
