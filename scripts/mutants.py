"""Makes 100 small mistakes in the code, one at a time, and says which of them the tests notice.

    python scripts/mutants.py --jobs 2                       # all of them, about half an hour
    python scripts/mutants.py --only ajet/core/rollout       # those of one file, folder or group
    python scripts/mutants.py --survivors                    # those that survived the last time
    python scripts/mutants.py --list                         # what would be run, and by which tests
    python scripts/mutants.py --drop-gone                    # results without files that are gone

A mutant is the code with one mistake in it. Each one is written into a temporary copy of the tree,
never into the tree itself, and the tests nearest to its file (`TESTS`) run there until one of them
fails: the mutant is killed. If they all pass, it survived, and a test is missing or the mistake
makes no difference. `KNOWN` mistakes are always among them; the others are drawn by the seed,
evenly over the files of each group in `GROUPS` and over the kinds of code that they change. The
results are in benchmarks/results/mutants.json; a run over a part of them replaces that part there.

The mistakes are those of mutmut 3.8.1, which is used as a library: its operators make them, and its
rules say where none is made (decorated functions other than class methods, type annotations).
cosmic-ray 8.7.0 was weighed against it; both are maintained, with a release in the last half year.
Two things speak for mutmut here. It takes single arguments out of calls or makes them None, which
is what goes wrong between a config and its settings: in the functions of `GROUPS[0]` it makes 734
mutants and cosmic-ray 329, none of them in `RolloutLimits.from_config`. And a mutant of it is a
text, which needs neither a session's database nor a change in the tree itself, as cosmic-ray's
runner does. mutmut's own runner is not used: it forks a process that has imported torch.

Not covered: code that only several ranks or Ray run; the wording of errors and of log lines (a
mutant of it is not drawn).
"""

import argparse
import ast
import difflib
import json
import os
import platform
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
LIMIT_S = 300
TIMES_SLOWER = 4
"""A mutant may take so many times as long as the tests take without it, or `LIMIT_S`."""


@dataclass(frozen=True)
class Known:
    """A mistake that tests once did not notice: `old` is in the file exactly once."""

    name: str
    file: str
    old: str
    new: str


KNOWN = (
    Known(
        "the policy's logits are not divided by the sampling temperature",
        "ajet/core/update/settings.py",
        '"temperature": config.ajet.rollout.temperature,',
        '"temperature": 1.0,',
    ),
    Known(
        "val_before_train is ignored",
        "ajet/core/run/training_run.py",
        'return "before" if self._validates_before else None',
        "return None",
    ),
    Known(
        "a small file is renamed before it is on the disk",
        "ajet/core/record/atomic_file.py",
        "            os.fsync(file.fileno())\n",
        "",
    ),
    Known(
        "validation samples as training does",
        "ajet/core/inference/endpoint.py",
        'if mode == "eval":',
        'if mode == "no mode":',
    ),
)

CONFIG = "config to settings"


@dataclass(frozen=True)
class Group:
    """`count` mutants of these files; of some files, in these functions alone."""

    name: str
    count: int
    files: tuple[str, ...] = ()
    functions: dict[str, tuple[str, ...]] = field(default_factory=dict)


GROUPS = (
    Group(
        CONFIG,
        28,
        functions={
            "ajet/assembly.py": (
                "load_policy_model",
                "make_engine",
                "make_learner",
                "make_gateway",
                "make_runner",
                "prepare_torch",
            ),
            "ajet/backbones/disaggregated/async_run.py": ("open_buffer",),
            "ajet/backbones/disaggregated/explorer.py": ("from_config",),
            "ajet/cluster/placement.py": ("from_config",),
            "ajet/core/buffer/staleness.py": ("from_config",),
            "ajet/core/inference/endpoint.py": ("from_config",),
            "ajet/core/inference/router.py": ("from_config",),
            "ajet/core/judge/judge.py": ("judge_client",),
            "ajet/core/learning/learner.py": ("from_config",),
            "ajet/core/record/selection.py": ("selections",),
            "ajet/core/rollout/batch.py": ("from_config",),
            "ajet/core/rollout/limits.py": ("from_config",),
            "ajet/core/run/run_tasks.py": ("of",),
            "ajet/core/run/training_run.py": ("_validation_due", "_is_multiple", "validate_if_due"),
            "ajet/core/update/settings.py": ("from_config", "optimizer_steps", "tokens_per_pass"),
            "ajet/servers/settings.py": ("from_config",),
        },
    ),
    Group("rollout", 16, files=("ajet/core/rollout/*.py",)),
    Group("advantage", 16, files=("ajet/core/advantage/*.py",)),
    Group(
        "update",
        16,
        files=(
            "ajet/core/update/loss.py",
            "ajet/core/losses/*.py",
            "ajet/core/update/correction.py",
            "ajet/core/update/optimizer.py",
            "ajet/core/update/policy.py",
            "ajet/core/update/critic.py",
            "ajet/core/update/mini_batches.py",
            "ajet/core/losses/mini_batch_tokens.py",
            "ajet/core/update/layouts/*.py",
            "ajet/core/update/update_metrics.py",
        ),
    ),
    Group("trajectory", 10, files=("ajet/core/trajectory/*.py",)),
    Group(
        "checkpoint",
        10,
        files=(
            "ajet/core/learning/checkpoints.py",
            "ajet/core/checkpoint/checkpoint.py",
            "ajet/core/checkpoint/manifest.py",
            "ajet/core/record/atomic_file.py",
            "ajet/core/run/run_state.py",
        ),
    ),
)

REACH = "tests/config_reach"
REACHES = (f"{REACH}/test_settings.py", f"{REACH}/test_parts.py", f"{REACH}/test_update_fields.py")
UPDATE = "tests/core/update"
TESTS: dict[str, tuple[str, ...]] = {
    "ajet/assembly.py": (*REACHES, "tests/test_assembly_of_updates.py", "tests/test_assembly.py"),
    "ajet/backbones/disaggregated/async_run.py": (*REACHES,),
    "ajet/backbones/disaggregated/explorer.py": (*REACHES,),
    "ajet/cluster/placement.py": (*REACHES, "tests/cluster/test_placement.py"),
    "ajet/servers/settings.py": (*REACHES,),
    "ajet/core/advantage": (
        "tests/core/advantage",
        "tests/core/learning",
        *REACHES,
    ),
    "ajet/core/buffer/staleness.py": (*REACHES, "tests/core/buffer/test_staleness_bound.py"),
    "ajet/core/inference/endpoint.py": (*REACHES,),
    "ajet/core/inference/router.py": (*REACHES, "tests/core/inference/test_router.py"),
    "ajet/core/judge/judge.py": (*REACHES, "tests/judges/test_llm_judges.py"),
    "ajet/core/learning/checkpoints.py": (
        "tests/core/learning",
        f"{UPDATE}/test_checkpoint.py",
    ),
    "ajet/core/learning/learner.py": ("tests/core/learning", *REACHES),
    "ajet/core/record/atomic_file.py": ("tests/core/record",),
    "ajet/core/record/selection.py": ("tests/core/record/test_selection.py", *REACHES),
    "ajet/core/rollout": ("tests/core/rollout", *REACHES),
    "ajet/core/run": ("tests/core/run", *REACHES),
    "ajet/core/trajectory": (
        "tests/core/trajectory",
        "tests/core/rollout/test_malformed_replies.py",
        "tests/core/rollout/test_several_conversations.py",
        "tests/core/rollout/test_runner.py",
    ),
    "ajet/core/update/settings.py": (
        *REACHES,
        f"{UPDATE}/test_update_settings.py",
        "tests/test_assembly_of_updates.py",
    ),
    "ajet/core/checkpoint/checkpoint.py": (f"{UPDATE}/test_checkpoint.py", "tests/core/learning"),
    "ajet/core/update/correction.py": (
        f"{UPDATE}/test_correction.py",
        f"{UPDATE}/test_rejection.py",
        f"{UPDATE}/test_policy.py",
    ),
    "ajet/core/update/critic.py": (f"{UPDATE}/test_critic.py",),
    "ajet/core/checkpoint/manifest.py": (f"{UPDATE}/test_checkpoint.py",),
    "ajet/core/update/mini_batches.py": (
        f"{UPDATE}/test_micro_batch_balancing.py",
        f"{UPDATE}/test_policy.py",
    ),
    "ajet/core/losses/mini_batch_tokens.py": (
        f"{UPDATE}/test_losses_of_papers.py",
        f"{UPDATE}/test_policy_losses.py",
    ),
    "ajet/core/update/layouts": (
        f"{UPDATE}/test_trie.py",
        f"{UPDATE}/test_tree_attention.py",
        f"{UPDATE}/test_micro_batch_balancing.py",
        f"{UPDATE}/test_policy.py",
        f"{UPDATE}/test_policy_losses.py",
        f"{UPDATE}/test_critic.py",
    ),
    "ajet/core/update/loss.py": (
        f"{UPDATE}/test_loss.py",
        f"{UPDATE}/test_losses_of_papers.py",
        f"{UPDATE}/test_policy.py",
    ),
    "ajet/core/losses": (
        f"{UPDATE}/test_loss.py",
        f"{UPDATE}/test_ppo_clip.py",
        f"{UPDATE}/test_losses_of_papers.py",
        f"{UPDATE}/test_losses_against_trl.py",
        f"{UPDATE}/test_losses_against_verl.py",
        f"{UPDATE}/test_own_loss.py",
    ),
    "ajet/core/update/optimizer.py": (f"{UPDATE}/test_optimizer.py", f"{UPDATE}/test_policy.py"),
    "ajet/core/update/policy.py": (f"{UPDATE}/test_policy.py", f"{UPDATE}/test_policy_losses.py"),
    "ajet/core/update/update_metrics.py": (
        f"{UPDATE}/test_policy.py",
        f"{UPDATE}/test_policy_losses.py",
    ),
}
"""The tests nearest to a file; those of the longest path that is its own or a folder above it."""

EQUIVALENT: dict[str, str] = {
    "ajet/core/update/optimizer.py template: "
    '- out[f"{name}.step"] = torch.tensor(0.0) + out[f"{name}.step"] = torch.tensor(1.0)': (
        "a template has names, shapes and shards: what is read is put over its content"
    ),
    "ajet/core/update/optimizer.py step: "
    "- if limit and grad_norm > limit: + if limit and grad_norm >= limit:": (
        "where both are equal, gradients are multiplied by their quotient, which is 1 exactly"
    ),
    "ajet/core/trajectory/base_recorder.py generate: "
    '- target_tag: str = "default", + target_tag: str = "XXdefaultXX",': (
        "the method of the base class only raises NotImplementedError, and recorders have their own"
    ),
}
"""Mutants that change nothing that anybody could see, by `Mutant.key`, and why. The next ones of
their files take their places."""


@dataclass(frozen=True)
class Mutant:
    """One mistake: the whole text of the file with it, and what is told of it."""

    group: str
    file: str
    function: str
    operator: str
    line: int
    diff: str
    text: str

    @property
    def key(self) -> str:
        """Names it as long as its line and its function are there."""
        lines = [line for line in self.diff.splitlines() if line[:1] in "+-"]
        return f"{self.file} {self.function}: {' '.join(' '.join(lines).split())}"

    @property
    def tests(self) -> tuple[str, ...]:
        return nearest_tests(self.file)


@dataclass(frozen=True)
class Outcome:
    """What the tests made of a mutant: `killed_by` is a test, "timeout", or None if it survived."""

    killed_by: str | None
    seconds: float
    output: str = ""


@cache
def nearest_tests(file: str) -> tuple[str, ...]:
    """The tests that `TESTS` names for a file, as far as they are there."""
    paths = [path for path in TESTS if file == path or file.startswith(f"{path}/")]
    return tuple(test for test in TESTS[max(paths, key=len)] if (ROOT / test).exists())


# Making mutants.


def known_mutants() -> list[Mutant]:
    """The known mistakes; a pattern that the code has no more is an error."""
    found = []
    for known in KNOWN:
        text = (ROOT / known.file).read_text("utf-8")
        if text.count(known.old) != 1:
            sys.exit(
                f"{known.file}: {known.old.strip()!r} is there {text.count(known.old)} times, and "
                f"not once: bring the known mutant {known.name!r} up to date (KNOWN)"
            )
        diff, line = _difference(text, changed := text.replace(known.old, known.new))
        found.append(Mutant("known", known.file, known.name, "by hand", line, diff, changed))
    return found


def mutants_of(
    file: str, group: str, functions: Sequence[str], draw: random.Random
) -> Iterator[Mutant]:
    """The mutants of a file, or of some of its functions, in an order that is drawn: first what
    kind of code is changed, so that comparisons and numbers are as likely as calls."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.file_mutation import Mutation, create_mutations

    text = (ROOT / file).read_text("utf-8")
    module, mutations, *_ = create_mutations(file, text)
    places = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    names, wording = _functions(text), _wording(text)
    elsewhere = () if functions else GROUPS[0].functions.get(file, ())
    kinds: defaultdict[str, list[Mutation]] = defaultdict(list)
    for mutation in mutations:
        place = places.get(mutation.original_node)
        name = names.get(place.start.line) if place is not None else None
        if name is None or name in elsewhere or (functions and name not in functions):
            continue
        kinds[type(mutation.original_node).__name__].append(mutation)
    for kind in sorted(kinds):
        draw.shuffle(kinds[kind])
    while kinds:
        kind = draw.choice(sorted(kinds))
        mutation = kinds[kind].pop()
        if not kinds[kind]:
            del kinds[kind]
        changed = module.deep_replace(mutation.original_node, mutation.mutated_node)
        assert isinstance(changed, libcst.Module)
        if not _compiles(changed.code):
            continue
        diff, line = _difference(text, changed.code)
        if line not in wording and (name := names.get(line)) is not None:
            operator = _operator(mutation.original_node, mutation.mutated_node)
            yield Mutant(group, file, name, operator, line, diff, changed.code)


def _operator(original: Any, mutated: Any) -> str:
    """The name of mutmut's operator that makes this of that."""
    from mutmut.mutation.mutators import mutation_operators

    for kind, operator in mutation_operators:
        if isinstance(original, kind) and any(mutated.deep_equals(m) for m in operator(original)):
            return operator.__name__.removeprefix("operator_")
    return "unknown"


def _functions(text: str) -> dict[int, str]:
    """The function or method that a line is in; none for constants and defaults."""
    names: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                names.setdefault(line, node.name)  # outer functions come first
    return names


def _wording(text: str) -> set[int]:
    """The lines of errors that are raised, of assertions and of log lines."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")
        if isinstance(node, ast.Raise | ast.Assert) or (isinstance(node, ast.Call) and is_log):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _difference(old: str, new: str) -> tuple[str, int]:
    """The changed lines, and the number of the first of them."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))
    match = re.match(r"@@ -(\d+)", lines[2])
    assert match is not None
    return "\n".join(lines[2:]), int(match[1])


def selection(seed: int) -> list[Mutant]:
    """The known mutants, and those that the seed draws of each group."""
    chosen = known_mutants()
    for group in GROUPS:
        chosen += _drawn(group, seed)
    return chosen


def _drawn(group: Group, seed: int) -> list[Mutant]:
    """One mutant of each file after the other, the files in a drawn order, until there are enough.
    Each file's draw is its own: a change in one file leaves the mutants of the others alone."""
    files = {path: names for path, names in group.functions.items()}
    for pattern in group.files:
        files |= {str(path.relative_to(ROOT)): () for path in sorted(ROOT.glob(pattern))}
    draws = [
        mutants_of(file, group.name, names, random.Random(f"{seed}/{group.name}/{file}"))
        for file, names in files.items()
    ]
    random.Random(f"{seed}/{group.name}").shuffle(draws)
    chosen: list[Mutant] = []
    while draws:
        for mutants in list(draws):
            if len(chosen) == group.count:
                return chosen
            mutant = next((each for each in mutants if each.key not in EQUIVALENT), None)
            if mutant is None:
                draws.remove(mutants)
            else:
                chosen.append(mutant)
    return chosen


# Running tests.


def copy_tree(to: Path) -> None:
    """What git knows of the tree, as it is now, and new files that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def run_tests(tree: Path, tests: Sequence[str], limit_s: float) -> Outcome:
    """The tests in a tree, until one fails. What still runs at the limit is ended."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Outcome("timeout", time.monotonic() - started)
    seconds = time.monotonic() - started
    if process.returncode == 0:
        return Outcome(None, seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return Outcome(failed[1] if failed else f"exit {process.returncode}", seconds, output)


class Trees:
    """Copies of the tree, one for each job."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._free: queue.Queue[Path] = queue.Queue()
        for job in range(jobs):
            tree = folder / f"tree{job}"
            copy_tree(tree)
            self._free.put(tree)

    def check(self, test: str) -> Outcome:
        """A test without a mistake: it must pass, and import the copy."""
        tree = self._free.get()
        try:
            where = subprocess.run(
                [sys.executable, "-c", "import ajet; print(ajet.__file__)"],
                cwd=tree,
                env=os.environ | {"PYTHONPATH": str(tree)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            assert Path(where.strip()).is_relative_to(tree), f"{where} is not in {tree}"
            return run_tests(tree, [test], TIMES_SLOWER * LIMIT_S)
        finally:
            self._free.put(tree)

    def try_out(self, mutant: Mutant, limit_s: float) -> Outcome:
        """The nearest tests with the mistake."""
        tree = self._free.get()
        file = tree / mutant.file
        before = file.read_text("utf-8")
        try:
            file.write_text(mutant.text, "utf-8")
            return run_tests(tree, mutant.tests, limit_s)
        finally:
            file.write_text(before, "utf-8")
            self._free.put(tree)


def try_all(
    mutants: Sequence[Mutant], jobs: int, *, is_checked: bool
) -> Iterator[tuple[Mutant, Outcome]]:
    """Each mutant's outcome as it comes; first the tests are run without any, unless
    that was done before."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees = Trees(Path(folder), jobs)
        used = [] if is_checked else [test for mutant in mutants for test in mutant.tests]
        paths = list(dict.fromkeys(used))
        seconds: dict[str, float] = {}
        for test, outcome in zip(paths, pool.map(trees.check, paths), strict=True):
            if outcome.killed_by is not None:
                sys.exit(f"{outcome.killed_by} fails without any mutant:\n{outcome.output[-4000:]}")
            print(f"{outcome.seconds:6.1f} s without a mutant: {test}", flush=True)
            seconds[test] = outcome.seconds

        def limit(mutant: Mutant) -> float:
            return max(LIMIT_S, TIMES_SLOWER * sum(seconds.get(test, 0.0) for test in mutant.tests))

        futures = [(m, pool.submit(trees.try_out, m, limit(m))) for m in mutants]
        for mutant, future in futures:
            yield mutant, future.result()


# What is told and kept.


def record(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    """One entry of the JSON."""
    kept = {name: value for name, value in asdict(mutant).items() if name != "text"}
    return kept | {
        "tests": list(mutant.tests),
        "killed_by": outcome.killed_by,
        "seconds": round(outcome.seconds, 1),
    }


def key_of(entry: dict[str, Any]) -> str:
    """The key of the mutant that an entry is about."""
    names = ("group", "file", "function", "operator", "line", "diff")
    return Mutant(*(entry[name] for name in names), text="").key


def read_entries(results: Path) -> dict[str, dict[str, Any]]:
    """What the file has, by key."""
    if not results.is_file():
        return {}
    return {key_of(each): each for each in json.loads(results.read_text("utf-8"))["results"]}


def write(
    results: Path, mutants: Sequence[Mutant], entries: dict[str, dict[str, Any]], seed: int
) -> None:
    """The entries of the mutants of this selection, in its order."""
    listed = [entries[mutant.key] for mutant in mutants if mutant.key in entries]
    killed = sum(entry["killed_by"] is not None for entry in listed)
    told = {
        "library": "mutmut",
        "versions": {
            "mutmut": version("mutmut"),
            "libcst": version("libcst"),
            "pytest": version("pytest"),
            "python": platform.python_version(),
        },
        "seed": seed,
        "mutants": len(listed),
        "killed": killed,
        "survived": len(listed) - killed,
        "equivalent": EQUIVALENT,
        "results": listed,
    }
    results.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")


def drop_gone(results: Path) -> None:
    """Leaves the entries of files that are gone out of the results, and says so there: what the
    tests made of them says nothing of the code that is here."""
    told = json.loads(results.read_text("utf-8"))
    kept = [each for each in told["results"] if (ROOT / each["file"]).is_file()]
    gone = [each["file"] for each in told["results"] if each not in kept]
    if not gone:
        return
    killed = sum(entry["killed_by"] is not None for entry in kept)
    counts = {"mutants": len(kept), "killed": killed, "survived": len(kept) - killed}
    gone = [*told.get("files_gone_since_the_run", ()), *gone]
    del told["results"]  # they are last
    told |= counts | {"files_gone_since_the_run": gone, "results": kept}
    results.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")


def show(entries: Sequence[dict[str, Any]]) -> None:
    """A line for each group, and each survivor."""
    totals, killed = Counter(), Counter()
    for entry in entries:
        totals[entry["group"]] += 1
        killed[entry["group"]] += entry["killed_by"] is not None
    print(f"\n{'group':<20} {'mutants':>8} {'killed':>8}")
    for group, number in totals.items():
        print(f"{group:<20} {number:>8} {killed[group]:>8}")
    print(f"{'all':<20} {totals.total():>8} {killed.total():>8}")
    for entry in entries:
        if entry["killed_by"] is None:
            print(f"\nsurvived: {entry['file']}:{entry['line']} {entry['function']}")
            print(entry["diff"])


def _arguments() -> argparse.Namespace:
    about, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--jobs", type=int, default=2, help="Mutants that are tried at a time. [2]")
    parser.add_argument(
        "--only", metavar="FILE", help="Those of a file, a folder or a group alone."
    )
    parser.add_argument("--seed", type=int, default=0, help="Draws the mutants. [0]")
    parser.add_argument("--survivors", action="store_true", help="Those that survived last time.")
    parser.add_argument("--new", action="store_true", help="Those that the JSON does not have.")
    parser.add_argument("--checked", action="store_true", help="The tests are known to pass.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="The JSON that is written.")
    parser.add_argument("--list", action="store_true", help="Print the mutants, and try none.")
    parser.add_argument(
        "--drop-gone", action="store_true", help="Leave out results of files that are gone."
    )
    return parser.parse_args()


def main() -> None:
    given = _arguments()
    if given.drop_gone:
        drop_gone(given.results)
        return
    os.chdir(ROOT)  # mutmut reads its section of pyproject.toml there
    mutants = selection(given.seed)
    entries = read_entries(given.results)
    only = given.only or ""
    chosen = [m for m in mutants if m.file.startswith(only) or m.group == only]
    if given.survivors:
        lost = {key for key, entry in entries.items() if entry["killed_by"] is None}
        chosen = [mutant for mutant in chosen if mutant.key in lost]
    if given.new:
        chosen = [mutant for mutant in chosen if mutant.key not in entries]
    if given.list:
        for mutant in chosen:
            print(f"{mutant.group}: {mutant.file}:{mutant.line} {mutant.function}\n{mutant.diff}")
            print(f"    {' '.join(mutant.tests)}")
        return
    for number, (mutant, outcome) in enumerate(
        try_all(chosen, given.jobs, is_checked=given.checked), 1
    ):
        entries = read_entries(given.results) | {mutant.key: record(mutant, outcome)}
        write(given.results, mutants, entries, given.seed)
        place = f"{mutant.file}:{mutant.line} ({mutant.operator})"
        verdict = outcome.killed_by or "SURVIVED"
        print(f"{number:3}/{len(chosen)} {outcome.seconds:6.1f} s {place}: {verdict}", flush=True)
    show([entries[mutant.key] for mutant in mutants if mutant.key in entries])


if __name__ == "__main__":
    main()
