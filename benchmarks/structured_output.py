r"""What grammars cost, and whether an agent with a schema learns.

    python benchmarks/structured_output.py --model SMOLLM2

speed     A mask of llguidance, and of xgrammar where it is installed, for each token of 50 replies
          with one schema: microseconds for a token (the next mask, and taking the token), and
          milliseconds to compile. Then decode steps of the engine over `--model`, 8 rows under the
          schema and 8 free ones, in turns: the CPU time that a step takes longer.
learn     The demo's word problems, answered by one forced call of a strict tool, whose code must be
          like print(12+7) and is run. Success sampled and greedy, before and after, and the share
          of calls without the schema; and the same with a tool that is not strict.
"""

import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from report import measured_on, options, read, write
from runs import DEMO, TRAINER, run_training

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "open"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
NUM_REPLIES, ROWS, NEW_TOKENS, REPEATS = 50, 8, 48, 7
AGENT = '''"""Calls a strict tool, whose code is run."""

import json
import re

from ajet import Workflow, WorkflowOutput
from ajet.tools.python_code import PYTHON_TOOL, run_python
from tutorial.example_math_agent.workflow import SYSTEM_PROMPT

NAME = PYTHON_TOOL["function"]["name"]
SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": r"^print\\([0-9+*/() -]{1,40}\\)$"}},
    "required": ["code"],
    "additionalProperties": False,
}


class StrictAgent(Workflow):
    is_strict = True

    async def execute(self, workflow_task, model_tuner):
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": workflow_task.task.main_query},
        ]
        function = {"name": NAME, "parameters": SCHEMA, "strict": self.is_strict}
        tools = [{"type": "function", "function": function}]
        reply = await model_tuner.chat(messages, tools, tool_choice=NAME)
        calls = reply.get("tool_calls")
        arguments = json.loads(calls[0]["function"]["arguments"]) if calls else {}
        code = str(arguments.get("code", ""))
        is_malformed = not re.fullmatch(SCHEMA["properties"]["code"]["pattern"], code)
        answer = re.search("<stdout>(.*?)</stdout>", await run_python(code, 5), re.DOTALL)
        return WorkflowOutput(
            metadata={"final_answer": f"\\\\boxed{{{answer[1].strip() if answer else ''}}}"},
            log_metrics={"malformed": float(is_malformed)},
        )


class LooseAgent(StrictAgent):
    is_strict = False
'''


def replies(num: int) -> list[str]:
    rng = np.random.default_rng(0)
    names = ["Ada Lovelace", "Wei", "Jürgen von der Höhe", "O'Neil \\u0041", "An"]
    return [
        json.dumps(
            {
                "name": names[int(rng.integers(len(names)))],
                "age": int(rng.integers(121)),
                "tags": [str(tag) for tag in rng.choice(["new", "old", "open"], rng.integers(4))],
            },
            ensure_ascii=False,
        )
        for _ in range(num)
    ]


def llguidance_times(tokenizer: Any, texts: list[list[int]]) -> dict[str, float]:
    from ajet.core.errors import ModelError
    from ajet.core.inference.grammar import Grammars, json_rule, reply_grammar

    grammars, start = Grammars(tokenizer), time.perf_counter()
    grammar = reply_grammar(json_rule(SCHEMA), tokenizer.eos_token_id)
    grammars.check('start: "a"')
    prepared = time.perf_counter()
    grammars.matcher(grammar)
    compiled, refused = time.perf_counter(), 0
    for ids in texts:
        try:
            grammars.masks(grammar, ids)
        except ModelError:
            refused += 1
    return _times(prepared - start, compiled - prepared, compiled, texts, refused)


def xgrammar_times(tokenizer: Any, texts: list[list[int]]) -> dict[str, float] | None:
    try:
        import xgrammar  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    start = time.perf_counter()
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer))
    prepared = time.perf_counter()
    grammar = compiler.compile_json_schema(
        json.dumps(SCHEMA), any_whitespace=False, separators=(", ", ": ")
    )
    compiled, refused = time.perf_counter(), 0
    bitmask = xgrammar.allocate_token_bitmask(1, len(tokenizer))
    for ids in texts:
        matcher = xgrammar.GrammarMatcher(grammar)
        for token_id in ids:
            matcher.fill_next_token_bitmask(bitmask)
            if not matcher.accept_token(token_id):
                refused += 1
                break
    return _times(prepared - start, compiled - prepared, compiled, texts, refused)


def _times(
    prepare_s: float, compile_s: float, began: float, texts: list[list[int]], refused: int
) -> dict[str, float]:
    return {
        "tokenizer_ms": 1e3 * prepare_s,
        "compile_ms": 1e3 * compile_s,
        "token_us": 1e6 * (time.perf_counter() - began) / sum(map(len, texts)),
        "valid_replies_refused": refused,
    }


def step_times(model_path: str) -> dict[str, float]:
    """CPU milliseconds of a decode step of `ROWS` rows, free and under the schema, in turns."""
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.inference.grammar import Grammars, json_rule, reply_grammar
    from ajet.core.model.load import load_model
    from ajet.engines.in_process import InProcessEngine

    loaded = load_model(model_path)
    grammars = Grammars(loaded.tokenizer)
    # A list of unlimited length: no reply ends before the others.
    endless = {"type": "array", "items": SCHEMA, "minItems": 100}
    end: Any = loaded.tokenizer.eos_token_id
    grammar = reply_grammar(json_rule(endless), end)

    async def measure() -> dict[str, float]:
        engine = InProcessEngine(loaded.model, stop_token_ids=(), grammars=grammars)
        times: dict[str, list[float]] = {"": [], grammar: []}
        prompt = loaded.tokenizer.encode("Some people, as JSON:\n" * 4)
        for repeat in range(REPEATS + 1):
            for kind in times:
                sampling = SamplingParams(max_tokens=NEW_TOKENS, grammar=kind)
                start = time.process_time()
                requests = [
                    engine.generate(prompt, replace(sampling, seed=n), f"{n}-{repeat}/0")
                    for n in range(ROWS)
                ]
                await asyncio.gather(*requests)
                if repeat:  # the first compiles and prepares
                    times[kind].append(time.process_time() - start)
        await engine.close()
        free, restricted = (1e3 * statistics.median(t) / NEW_TOKENS for t in times.values())
        pairs = zip(times[""], times[grammar], strict=True)
        shares = [under / without - 1 for without, under in pairs]
        return {
            "vocabulary": len(loaded.tokenizer),
            "rows": ROWS,
            "free_ms": free,
            "restricted_ms": restricted,
            "overhead": statistics.median(shares),
        }

    return asyncio.run(measure())


def learn(seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """A run with a strict tool and one with a loose one, with the share of training episodes whose
    call does not have the schema."""
    agent = folder / "schema_agent.py"
    agent.write_text(AGENT, "utf-8")
    result: dict[str, Any] = {"seed": seed}
    for name in ("Strict", "Loose"):
        overrides = [
            f"ajet.rollout.user_workflow={agent}->{name}Agent",
            f"{TRAINER}.total_training_steps={steps}",
        ]
        run = run_training([*DEMO, *overrides], folder, f"{name}-{seed}", seed)
        with closing(sqlite3.connect(folder / f"{name}-{seed}" / "episodes.sqlite")) as database:
            query = "SELECT log_metrics FROM episodes WHERE mode = 'train'"
            malformed = [json.loads(row)["malformed"] for (row,) in database.execute(query)]
        kept = ("success_by_decoding", "num_held_out", "wall_seconds", "steps", "episodes")
        result[name.lower()] = {key: run[key] for key in kept} | {"malformed": fmean(malformed)}
    return result


def speed(model: str) -> dict[str, Any]:
    from ajet.core.model.load import load_model

    tokenizer = load_model(model).tokenizer
    texts = [tokenizer.encode(text) for text in replies(NUM_REPLIES)]
    for times in (llguidance_times, xgrammar_times):
        times(tokenizer, texts)  # once for the caches
    return {
        "llguidance": llguidance_times(tokenizer, texts),
        "xgrammar": xgrammar_times(tokenizer, texts),
        "decode_step": step_times(model),
    }


def main() -> None:
    parser = options(__doc__, "structured_output", seeds=1, steps=40)
    parser.add_argument("--model", default="embedded:math", help="folder, GGUF file or hub name")
    parser.add_argument("--only", choices=["speed", "learn"])
    args = parser.parse_args()
    report = read(args.out) | measured_on()
    if args.only != "learn":
        report["speed"] = {**measured_on(), **speed(args.model)}
    if args.only != "speed":
        with tempfile.TemporaryDirectory() as folder:
            runs = [learn(seed, args.steps, Path(folder)) for seed in range(args.seeds)]
        report["learn"] = {**measured_on(), "runs": runs}
    write(args.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
