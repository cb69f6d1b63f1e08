"""The table of docs/figures.md, made from the JSON files in benchmarks/results.

    python benchmarks/table.py            # prints it
    python benchmarks/table.py --write    # puts it between the two marks of docs/figures.md

Every figure is a ratio within one run, or a count, or comes with the machine it was measured on;
the third column is the goal, or the limit that no program could pass.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/figures.md"
BEGIN, END = "<!-- figures: python benchmarks/table.py --write -->\n", "<!-- end of figures -->\n"
Row = tuple[str, ...]
"""What, measured, goal or limit; and the day, if the file has figures of several."""
Rows = Callable[[Any], Iterable[Row]]
SECTIONS: list[tuple[str, Rows]] = []
"""Benchmarks in the order of the page, and what makes rows of their results."""


def rows_of(script: str) -> Callable[[Rows], Rows]:
    """Puts the rows of a benchmark's results on the page."""

    def put(rows: Rows) -> Rows:
        SECTIONS.append((script, rows))
        return rows

    return put


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def span(values: list[float], form: str) -> str:
    """The least and the greatest of them."""
    return " to ".join(dict.fromkeys(f"{end(values):{form}}" for end in (min, max)))


def each(runs: list[dict[str, Any]], key: str, form: str, unit: float = 1) -> str:
    return ", ".join(f"{run[key] / unit if unit != 1 else run[key]:{form}}" for run in runs)


def seeds_of(runs: list[Any]) -> str:
    return f"{len(runs)} seed{'s' if runs[1:] else ''}"


def with_interval(shown: dict[str, float]) -> str:
    """A mean and its interval; of one run there is none."""
    if "low" not in shown:
        return f"{shown['mean']:+.3f}"
    return f"{shown['mean']:+.3f} [{shown['low']:+.3f}, {shown['high']:+.3f}]"


def by_decoding(runs: list[dict[str, Any]], form: str = ".0%") -> str:
    """Success before and after, sampled and, where it was measured, greedily."""
    found = []
    for decoding in ("sampled", "greedy"):
        of_runs = [run.get("success_by_decoding", {}).get(decoding) for run in runs]
        if None not in of_runs:
            ends = (span([each[when] for each in of_runs], form) for when in ("before", "after"))
            found.append(f"{' → '.join(ends)} {decoding}")
    if found:
        return "; ".join(found)
    before, after = ([run[f"success_{when}"] for run in runs] for when in ("before", "after"))
    return f"{span(before, form)} → {span(after, form)} sampled"


def controls(
    name: str, shown: dict[str, Any], days: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Row]:
    """Rows of the controls that were measured. What learns nothing keeps its success, and what
    needs no reinforcement comes to less. `days` has those of arms."""
    for arm, what, goal in (
        ("shuffled", "shuffled rewards", "holds 0 or less"),
        ("lr0", "learning rate 0", "holds 0"),
    ):
        if "low" in shown.get(arm, {}):
            what = f"{name}, {what}: change, {len(shown[arm]['changes'])} seeds"
            row = (what, with_interval(shown[arm]), goal)
            yield (*row, days[arm]) if arm in days else row
    if best := max(shown.get("temperatures", {}).items(), key=lambda each: each[1], default=None):
        what = f"{name}, the start model at the best of five temperatures ({best[0]})"
        yield what, f"{best[1]:.0%}", ""
    if rejected := shown.get("rejection", {}).get("greedy"):
        what = f"{name}, rejection sampling with as many episodes, greedy, {len(rejected)} seeds"
        yield what, span(rejected, ".0%"), ""
    if "adds" in shown:
        what = f"{name}, what reinforcement adds to the better of these two, greedy"
        yield what, with_interval(shown["adds"]), "above 0"


@rows_of("function_calling")
def function_calling(found: Any) -> Iterator[Row]:
    task = "100 held-out tasks of BFCL simple_python"
    return two_stages(found["results"], task, ".0%", "≥ +15 on 3 of 3 seeds")


@rows_of("gsm8k_learning")
def gsm8k_learning(found: Any) -> Iterator[Row]:
    return two_stages(found["results"], "GSM8K's 1,319 test problems", ".1%", "≥ +1")


def two_stages(results: list[Any], task: str, form: str, goal: str) -> Iterator[Row]:
    """Rows of a pretrained model on a public benchmark; an arm that was not measured has none. Runs
    on an earlier split of the data are named so."""
    arms: dict[tuple[str, str], list[Any]] = {}
    for run in results:
        arms.setdefault((run["arm"], run.get("split", "")), []).append(run)
    for (arm, split), runs in arms.items():
        days = [run["date"] for run in runs if "date" in run]
        for row in _arm(arm, split, runs, task, form, goal):
            yield (*row, max(days)) if days else row


def _arm(arm: str, split: str, runs: list[Any], task: str, form: str, goal: str) -> Iterator[Row]:
    if arm == "trained":
        yield from _stages(runs, task, split, form)
    if arm == "temperatures":
        best = [max(run["success_by_temperature"].values()) for run in runs]
        yield "the supervised model at the best of five temperatures", span(best, form), ""
    elif arm == "rejection":
        for decoding in ("sampled", "greedy"):
            after = [run["success_by_decoding"][decoding]["after"] for run in runs]
            what = f"rejection sampling from the supervised model, {decoding}"
            yield what, span(after, form), ""
    else:
        named = f"{arm}{f' ({split})' if split else ''}"
        wanted = goal if arm == "trained" else "holds 0 or less"
        yield f"points that reinforcement adds there, {named}", _added(runs), wanted
        if all("greedy" in run for run in runs):
            points = _added([run["greedy"] for run in runs])
            yield f"points that reinforcement adds there greedily, {named}", points, ""


def _added(runs: list[Any]) -> str:
    differences = [run["difference"]["test"] for run in runs]
    return "; ".join(
        f"{100 * d['value']:+.1f} [{100 * d['low']:+.1f}, {100 * d['high']:+.1f}]"
        for d in differences
    )


def _stages(runs: list[Any], task: str, split: str, form: str) -> Iterator[Row]:
    """Success by stage on the held-out tasks, and what the stages cost on others."""
    named = f" ({split})" if split else ""
    for decoding in ("sampled", "greedy"):
        found = [run if decoding == "sampled" else run.get("greedy") for run in runs]
        if None in found:
            continue
        for data in ("test", "parallel", "irrelevance"):
            if data not in found[0]["base"] or (split and data != "test"):
                continue
            shares = [[each[when][data] for each in found] for when in ("base", "before", "after")]
            what = task if data == "test" else data
            where = f"SmolLM2-135M, {what}{named}, {seeds_of(runs)}, {decoding}"
            shown = " → ".join(span(share, form) for share in shares)
            yield f"{where}: untrained → supervised → reinforced", shown, ""


@rows_of("real_backbones")
def real_backbones(found: Any) -> Iterator[Row]:
    step = found["step"]
    for backbone in ("verl", "trinity"):
        found = step[backbone]
        yield (
            f"SmolLM2-135M, a step of {step['episodes']} episodes in float32 on {backbone}: "
            "episodes with debug's tokens; difference of the update",
            f"{found['same_tokens']:.0%}; {found['relative_difference_of_the_update']:.2%}",
            "≥ 95%; ≤ 1%",
        )


@rows_of("learning")
def learning(found: Any) -> Iterator[Row]:
    runs = [run for run in found["runs"] if run["arm"] == "learn"]
    goal = "greedy ≤ 40 % → ≥ 85 %"
    what = f"demo, held-out success before → after, {len(runs)} seeds"
    yield what, by_decoding(runs), goal
    seconds = span([run["wall_seconds"] for run in runs], ".0f")
    yield "demo, seconds of training", seconds, "≤ 480"
    gigabytes = span([run["peak_rss_bytes"] / 1e9 for run in runs], ".2f")
    yield "demo, peak memory in GB", gigabytes, "< 2"
    for run in found["runs"]:
        if run["arm"] == "avx2":
            yield (
                f"demo without wider instructions than AVX2, seed {run['seed']}; seconds",
                f"{by_decoding([run])}; {run['wall_seconds']:.0f}",
                f"{goal}; ≤ 480",
            )
    yield from controls("demo", found["verdict"])


@rows_of("init_kinds")
def init_kinds(found: Any) -> Iterator[Row]:
    runs = found["runs"]
    yield (
        f"projects of `ajet init`, {len({run['kind'] for run in runs})} kinds, {len(runs)} runs: "
        "held-out success before → after; processor seconds",
        f"{by_decoding(runs)}; {span([run['cpu_seconds'] for run in runs], '.0f')}",
        "greedy ≤ 40 % → ≥ 85 %",
    )


@rows_of("learning_on_ray")
def learning_on_ray(found: Any) -> Iterator[Row]:
    for backbone in dict.fromkeys(run["backbone"] for run in found["runs"]):
        own = [run for run in found["runs"] if run["backbone"] == backbone]
        yield (
            f"demo on {backbone}, {own[0]['steps']} steps, held-out success before → after, "
            f"{seeds_of(own)}; longest in s",
            f"{by_decoding(own)}; {max(run['wall_seconds'] for run in own):.0f}",
            "≤ 40 % → ≥ 85 % greedy",
        )


@rows_of("learning_games")
def learning_games(found: Any) -> Iterator[Row]:
    for name, arms in found["verdict"].items():
        of_game = [run for run in found["runs"] if run["game"] == name]
        runs = [run for run in of_game if run["arm"] == "learn"]
        days = {run["arm"]: run["date"] for run in of_game}
        yield (
            f"{name}, held-out success before → after, {len(runs)} seeds; longest in s",
            f"{by_decoding(runs, '.1%')}; {max(run['wall_seconds'] for run in runs):.0f}",
            f"≥ {arms['learn']['goal']:.0%}; ≤ 600",
            days["learn"],
        )
        yield from controls(name, arms, days)


@rows_of("compaction")
def compaction(found: Any) -> Iterator[Row]:
    arms: dict[str, list[Any]] = {}
    for run in found["runs"]:
        arms.setdefault(run["arm"], []).append(run)

    def success(arm: str, when: str) -> str:
        return span([run[f"success_{when}"] for run in arms[arm]], ".0%")

    carried = [run["code_in_summaries"] for run in arms["learn"]]
    kept = (span([each[when] for each in carried], ".0%") for when in ("before", "after"))
    what = "a game longer than the context"
    yield (
        f"{what}, compacted: held-out success before → after, {len(carried)} seeds",
        f"{success('learn', 'before')} → {success('learn', 'after')}",
        "more than +30 points on each",
    )
    yield f"{what}: episodes whose summaries are the code", " → ".join(kept), ""
    shuffled = with_interval(found["verdict"]["shuffled"])
    yield f"{what}, compacted, shuffled rewards: change", shuffled, "holds 0 or less"
    yield f"{what}, truncated: held-out success after", success("truncated", "after"), "0"
    dropped = success("dropped", "after")
    yield f"{what}, oldest messages dropped: held-out success after", dropped, "a guess: 6%"


@rows_of("learning_pixels")
def pixels(found: Any) -> Iterator[Row]:
    best_route = found["verdict"]["best_route"]
    arms = (
        ("learn", "frozen_lake as pictures", ""),
        ("other", "frozen_lake with another board's picture", f"; one route: {best_route:.1%}"),
        ("sokoban", "sokoban as pictures", ""),
        ("sokoban_other", "sokoban with another room's picture", ""),
    )
    for arm, what, limit in arms:
        runs = [run for run in found["runs"] if run["arm"] == arm]
        if runs:
            longest = max(run["wall_seconds"] for run in runs)
            shown = f"{what}, held-out success before → after, {seeds_of(runs)}; longest in s"
            is_control = arm.endswith("other")
            goal = f"stays where it is{limit}" if is_control else "≤ 15 % → ≥ 80 % greedy; ≤ 900"
            row = (shown, f"{by_decoding(runs, '.1%')}; {longest:.0f}", goal)
            yield (*row, max(run["date"] for run in runs))


@rows_of("images")
def images(found: Any) -> Iterator[Row]:
    held, updated = found["held"], found["update"]
    yield (
        f"bytes of {held['pictures']} pictures in {held['episodes']} episodes, against a copy "
        "for each episode",
        f"{held['ratio']:.1f}x less, each encoded once",
        f"limit: {held['episodes'] / held['pictures']:.0f}x",
    )
    yield (
        "update of a group of 8 that shows a picture: tree against 8 rows with their pixels",
        f"{updated['ratio']:.1f}x",
        f"≥ 3x; ratio of tokens: {updated['token_ratio']:.1f}x",
    )
    what = "tokens a second after a picture, against a text model of the same shape"
    yield what, f"{found['engine']['ratio']:.2f}x", "1x"


@rows_of("frozen_lake_rows")
def lake_rows(found: Any) -> Iterator[Row]:
    arms, ratio = found["arms"], f"{found['tokens_ratio']:.1f}x"
    rows, tree = arms["rows, packed"]["tokens_computed"], arms["tree"]["tokens_computed"]
    what = "frozen_lake, whole conversations: tokens of an update as a row a turn, as a tree"
    yield what, f"{rows:,}, {tree:,}: {ratio}", "the same gradient"
    faster = ", ".join(f"{found['speedup'][name]:.1f}x" for name in arms if name != "tree")
    what = "its seconds against the tree's: rows padded, rows packed"
    yield what, faster, f"ratio of tokens: {ratio}"


@rows_of("frozen_lake_algorithms")
def algorithms(found: Any) -> Iterator[Row]:
    def episodes(arm: str, level: str) -> str:
        count = found["verdict"][arm][level]["median_episodes"]
        return "not reached" if count is None else f"{count:,}"

    for level in ("0.70", "0.85"):
        what = f"episodes until {float(level):.0%} of held-out lakes, median: GRPO, PPO, GiGPO"
        medians = ", ".join(episodes(arm, level) for arm in ("grpo", "ppo", "gigpo"))
        yield what, medians, "GiGPO fewer than GRPO"


@rows_of("engine_throughput")
def engine(found: Any) -> Iterator[Row]:
    for run in found["results"]:
        limit = run["limit_tokens_s"] / run["generate_tokens_s"]
        yield (
            f"tokens a second against `model.generate`, {run['conversations']} conversations",
            f"{run['ratio']:.1f}x",
            f"≥ 3x; linear layers alone: {limit:.0f}x",
        )


@rows_of("engine_compared")
def engine_compared(found: Any) -> Iterator[Row]:
    for vectors in ("avx512_bf16", "avx2"):
        if vectors not in found:
            continue
        systems = found[vectors]["systems"]
        speed = {system: measured["tokens_s"] for system, measured in systems.items()}
        no_others = ("ajet", "products", "linear")
        others = {s: v for s, v in speed.items() if s.partition(":")[0] not in no_others}
        listed = ", ".join(f"{system.replace(':', ' ')} {v:.0f}" for system, v in others.items())
        for system, tokens_s in speed.items():
            name, _, dtype = system.partition(":")
            if name == "ajet":
                yield (
                    f"tokens a second on SmolLM2-135M, {vectors}, {dtype} (others: {listed})",
                    f"{tokens_s:.0f}: {tokens_s / max(others.values()):.2f}x the best other",
                    f"≥ 1.5x; matrix products alone: {speed[f'products:{dtype}']:.0f}",
                )


@rows_of("update_layouts")
def update(found: Any) -> Iterator[Row]:
    for run in found["results"]:
        what, ratio = f"update as a tree against padded, {run['shape']}", run["token_ratio"]
        yield what, f"{run['speedup']['tree']:.1f}x", f"≥ 2.5x; ratio of tokens: {ratio:.1f}x"


@rows_of("model_families")
def model_families(found: Any) -> Iterator[Row]:
    """Rows of the families beside Qwen2, Qwen3 and Llama."""
    for part, what in (
        ("update", "update as a tree against padded"),
        ("sampling", "sampling with shared prefixes against transformers' own forward"),
    ):
        runs = {run["family"]: run[part] for run in found["results"] if run[part]}
        measured = list(runs.values())
        yield (
            f"{what}: {', '.join(runs)}",
            ", ".join(f"{run['ratio']:.1f}x" for run in measured),
            f"≥ {found['goal']:.0f}x; ratio of tokens: {measured[0]['token_ratio']:.1f}x",
        )


@rows_of("update_real")
def update_real(found: Any) -> Iterator[Row]:
    for run in found["results"]:
        yield (
            f"update of SmolLM2-135M with reference KL, 5,264 tokens as trees, {run['dtype']}: s; "
            "share of its matrix products' own speed",
            f"{run['seconds']:.1f}; {run['share_of_products']:.0%}",
            f"≥ {run['goal']:.0%}; products alone: {run['products']['seconds']:.1f} s",
        )


@rows_of("checkpoint_pause")
def checkpoint_pause(found: Any) -> Iterator[Row]:
    size, lost = found["checkpoint_bytes"] / 1e9, found["lost"]
    yield (
        f"s that a checkpoint of SmolLM2-135M's size ({size:.1f} GB) adds to its step: written at "
        "once; in the background, beside an update",
        f"{lost['at_once']:.1f}; {lost['in_background']:.1f}",
        "",
    )


@rows_of("plan_accuracy")
def plan_accuracy(found: Any) -> Iterator[Row]:
    for run in found["cases"]:
        of_plan, peak = run["happened_over_planned"], "not measured"
        if "peak_bytes" in of_plan:
            gigabytes = run["happened"]["peak_bytes"] / 1e9
            peak = f"{of_plan['peak_bytes']:.2f}x ({gigabytes:.1f} GB)"
        model = "" if run["case"] == "demo" else "SmolLM2-135M, "
        yield (
            f"{model}{run['case']}: time of a step, peak memory against `ajet plan`",
            f"{of_plan['step_s']:.2f}x, {peak}",
            "0.75x to 1.25x",
        )


@rows_of("memory_phases")
def memory_phases(found: Any) -> Iterator[Row]:
    what = "peak memory in GB of the phases of training SmolLM2-135M's shape"
    for arm in found["arms"]:
        yield f"{what}, {arm['dtype']}", f"{arm['peak_bytes'] / 1e9:.2f}", "≤ 4"


@rows_of("grpo_step_vs_trl")
def step(found: Any) -> Iterator[Row]:
    what = f"episodes a second of a GRPO step against trl {found['trl']}"
    for arm, agent in (("agentscope", "with AgentScope"), ("chat", "plain chat")):
        yield f"{what}, {agent}", f"{found['verdict'][arm]['ratio']:.1f}x", "≥ 5x"


@rows_of("learning_vs_trl")
def learning_step(found: Any) -> Iterator[Row]:
    [trl] = {run["trl"] for run in found["runs"] if run["system"] == "trl"}
    for seed, shown in found["verdict"].items():
        steps = max(map(int, shown["by_step"]["ajet"]))
        what = (
            f"seconds of {steps} steps of SmolLM2-135M on function calling, trl {trl} over ajet, "
            f"seed {seed}"
        )
        yield what, f"{shown['seconds_a_step_ratio']:.1f}x", "≥ 4x"


@rows_of("timeline_merging")
def merging(found: Any) -> Iterator[Row]:
    for run in found["results"]:
        what = f"tokens of one row a call against merged timelines, {run['shape']['T']} calls"
        yield what, f"{run['token_ratio']:.1f}x", f"limit {run['limit']:.1f}x"


@rows_of("gateway_latency")
def gateway(found: Any) -> Iterator[Row]:
    what = "what the gateway adds to a call in ms, median"
    for run in found["results"]:
        goal = "≤ 3" if run["episodes"] == 64 else "none lost"
        yield f"{what}, {run['episodes']} episodes in flight", f"{run['added_ms_median']:.1f}", goal


@rows_of("frameworks")
def frameworks(found: Any) -> Iterator[Row]:
    steps = found["runs"][0]["steps"]
    for key, name in (("langgraph", "LangGraph"), ("http", "HTTP")):
        shown = found["against_agentscope"][key]
        yield (
            f"demo in {name}, {steps} steps, against AgentScope: held-out success, seconds",
            f"{shown['success_difference']:+.3f}, {shown['slower']:+.0%}",
            f"within {shown['interval_95']:.3f}, ≤ +10 %",
        )


@rows_of("environment_steps")
def environments(found: Any) -> Iterator[Row]:
    for name, figures in found["environments"].items():
        ratio, bare = figures["ratio"], figures["steps_a_second"]["bare"]
        yield (
            f"steps a second of {name}, of its bare loop's: checked, with the agent's records",
            f"{ratio['live']:.0%}, {ratio['played']:.0%}",
            f"≥ {found['goal']:.0%}; bare: {bare:,.0f} a second",
        )


@rows_of("barrier")
def barrier(found: Any) -> Iterator[Row]:
    for run in found["results"]:
        yield (
            f"asynchronous rollout against a barrier a turn, {run['episodes']} episodes of "
            f"{run['turns']} turns",
            f"{run['ratio']:.2f}x",
            f"≥ 90 % of the limit: {run['limit']:.2f}x",
        )


@rows_of("async_rollout")
def asynchrony(found: Any) -> Iterator[Row]:
    for run in found["results"]:
        yield (
            "rollout and update at the same time against in turns, tokens at most "
            f"{run['max_staleness']} updates old",
            f"{run['ratio']:.2f}x",
            f"≥ 90 % of the limit: {run['limit']:.2f}x",
        )


@rows_of("router")
def router(found: Any) -> Iterator[Row]:
    kept = [run for run in found["cache"] if run["chooser"] == "router"]
    growth, verdict = found["growth"], found["verdict"]
    yield (
        f"hits of the prefix cache, of the ideal ones, {each(kept, 'replicas', ',')} replicas",
        each(kept, "share_of_ideal_hits", ".1%"),
        f"≥ {verdict['goal_share']:.0%}",
    )
    yield (
        f"router: µs an episode, {each(growth, 'replicas', ',')} replicas; its bookkeeping alone",
        f"{each(growth, 'router_us_per_episode', '.0f')}; "
        f"{each(growth, 'bookkeeping_us_per_episode', '.0f')}",
        f"flat: ≤ {verdict['goal_slowest_over_fastest']}x",
    )


@rows_of("backbone_times")
def backbone_times(found: Any) -> Iterator[Row]:
    shown = found["verdict"]
    what = f"demo, {found['steps']} steps, seconds against one process's: {', '.join(shown)}"
    yield what, ", ".join(f"{each['wall_seconds']:.2f}x" for each in shown.values()), "≤ 1.3x"


@rows_of("ray_admission")
def ray_admission(found: Any) -> Iterator[Row]:
    yield (
        "episodes a second on Ray workers, of one process's with as many slots, groups of "
        + each(found["rows"], "group_size", "d"),
        each(found["rows"], "share_of_one_process", ".0%"),
        f"≥ {found['verdict']['goal']:.0%}",
    )


@rows_of("router_process")
def router_process(found: Any) -> Iterator[Row]:
    rows = found["rows"]
    yield (
        f"ms of the router's process an episode, prompts of {each(rows, 'prompt_tokens', ',')} "
        "tokens; if they went through it",
        f"{each(rows, 'direct_us_per_episode', '.1f', 1e3)}; "
        f"{each(rows, 'through_the_router_us_per_episode', '.1f', 1e3)}",
        "flat",
    )


@rows_of("sharding")
def sharding(found: Any) -> Iterator[Row]:
    """Memory, of the arms that are in the file; its times say little (see the script)."""
    ways = {
        ("", False, False): [],
        (", activations recomputed", True, False): [],
        (", Ulysses over all", False, True): [],
    }
    for (_, recomputes, divides), runs in ways.items():
        of_way = (recomputes, divides)
        runs += [
            arm | {"peak_rss": arm["bytes"]["peak_rss"]}
            for arm in found["arms"]
            if arm["sharded"] and (arm["checkpointing"], arm["sequence"] > 1) == of_way
        ]
    plain = next(iter(ways.values()))
    yield (
        f"MB of {found['parameters'] / 1e6:.0f} million weights, gradients and AdamW on a rank "
        f"of {each(plain, 'ranks', 'd')} (FSDP2, gloo)",
        each(plain, "state_bytes", ".0f", 1e6),
        f"1/N: {each(plain, 'limit_bytes', '.0f', 1e6)}",
    )
    for (how, _, _), runs in ways.items():
        if runs:
            yield (
                f"MB of a rank of {each(runs, 'ranks', 'd')} at the peak of an update{how}",
                each(runs, "peak_rss", ".0f", 1e6),
                f"> its state: {each(runs, 'limit_bytes', '.0f', 1e6)}",
            )


@rows_of("traces")
def traces(found: Any) -> Iterator[Row]:
    sent, of_run = found["sent"]["otlp"]["per_episode_ms"], found["run_per_episode_ms"]
    yield (
        "recording a step of the demo, of the step's CPU time; OTLP traces of its episodes, of "
        "theirs",
        f"{found['recording']['share_of_steps']:.1%}; {sent / of_run:.1%}",
        "≤ 3 % each",
    )


@rows_of("convert_scripts")
def convert_scripts(found: Any) -> Iterator[Row]:
    compared = found["num_compared"]
    yield (
        "public scripts of verl whose conversion is that of the arguments bash passes, names "
        "and blanks apart; with another value that decides what is trained",
        f"{found['num_same']} of {compared}; {found['num_essential_wrong']} of {compared}",
        "≥ 98 %; 0",
    )


@rows_of("logview")
def page(found: Any) -> Iterator[Row]:
    browser, limits = found["browser"], found["limits"]
    yield (
        f"the page on {found['episodes']:,} episodes, in Chromium: heading and curves in s, a "
        "filter in ms",
        f"{browser['curves_s']:.1f}; {browser['filter_ms']}",
        f"≤ {limits['first_s']:g}; ≤ {limits['filter_ms']:g}",
    )


@rows_of("why")
def why(found: Any) -> Iterator[Row]:
    shown = found["verdict"]
    yield (
        "`ajet why`: planted faults whose cause comes first; healthy runs with a cause",
        f"{shown['named_first']} of {shown['planted']}; {shown['with_a_cause']} of "
        f"{shown['healthy']}",
        "≥ 17 of 20; ≤ 1 of 20",
    )


@rows_of("preference")
def preference(found: Any) -> Iterator[Row]:
    for arm in found["mean"]:
        runs = [run["success"][arm] for run in found["results"]]
        shown = "; ".join(f"{span([r[how] for r in runs], '.0%')} {how}" for how in runs[0])
        yield f"demo, held-out success of {arm} from 5,120 episodes, {len(runs)} seeds", shown, ""


@rows_of("structured_output")
def structured_output(found: Any) -> Iterator[Row]:
    step, runs = found["speed"]["decode_step"], found["learn"]["runs"]
    yield (
        f"a grammar's share of a decode step, {step['vocabulary']:,} tokens in the vocabulary, "
        f"{step['rows']} rows",
        f"{step['overhead']:.1%}",
        "≤ 5 %",
    )
    malformed = [
        span([run[kind]["malformed"] for run in runs], ".1%") for kind in ("strict", "loose")
    ]
    yield (
        f"an agent with a strict tool, {seeds_of(runs)}, {runs[0]['strict']['steps']} steps: "
        "held-out success before → after; malformed calls, and with a tool that is not strict",
        f"{by_decoding([run['strict'] for run in runs])}; {', '.join(malformed)}",
        "rises; 0",
    )


@rows_of("newcomers")
def newcomers(found: Any) -> Iterator[Row]:
    cases = found["cases"].values()
    yield (
        "coding agents with the wheel alone that trained an agent they had not seen, with at "
        "most one wrong try; commands each",
        f"{found['passed']} of {len(cases)}; {span([c['commands'] for c in cases], '.0f')}",
        f"≥ {found['goal']} of 10",
    )


@rows_of("client_episodes")
def client_episodes(found: Any) -> Iterator[Row]:
    last = found["results"][-1]
    yield (
        f"{last['clients']:,} clients at one `ajet serve`, five calls each at the same time: "
        "episodes ok; ms that a call costs in addition to the model, median",
        f"{last['episodes_ok']:,}; {last['call_ms']['median']:.0f}",
        "all",
    )


@rows_of("client_episodes_on_ray")
def clients_on_ray(found: Any) -> Iterator[Row]:
    arms = found["results"]
    most = max(arms, key=lambda each: each["clients"])
    whole = [f"{each['episodes_ok']}" for each in arms if each["arm"].startswith("run on")]
    yield (
        f"the same over the driver and two engines of a Ray: episodes ok; CPU s of the driver; "
        f"episodes ok of whole runs with {arms[-1]['clients']} clients on verl, trinity",
        f"{most['episodes_ok']:,}; {most['server_cpu_s']:.0f}; {', '.join(whole)}",
        "all",
    )


@rows_of("serve_learning")
def served_models(found: Any) -> Iterator[Row]:
    """Rows of a model that learns from its traffic, honest and with a tenth of clients that lie."""

    def success(run: Any) -> str:
        return f"{run['held_out_before']:.0%} → {run['held_out_after']:.0%}"

    honest = found["honest"]
    yield (
        f"`ajet serve --learn`, {honest['num_sessions']:,} sessions of simulated users: "
        "held-out success before → after; failed requests; versions rebuilt bit for bit",
        f"{success(honest)}; {sum(honest['failed_requests'].values())}; "
        f"{len(honest['rebuild']) - 1} of {honest['version']}",
        "+20 points; 0; all",
    )
    what = "what a round that trains adds to a call, ms at the median, against the same reply"
    yield what, f"{found['steady']['added_ms']['median']:.1f}", "≤ 5"
    yield (
        "the sessions where a tenth of the clients lie: quietly; a hundred times as loud",
        f"{success(found['liars'])}; {success(found['loud'])}",
        "rolled back",
    )
    seeds = [{"popular": found["popular"], "reliable": found["reliable"]}]
    seeds += found["poisoned"].values()
    left_out = [
        {client for each in seed["reliable"]["rounds"] for client in each["unreliable_clients"]}
        for seed in seeds
    ]
    num_liars = sum(len(clients & {"u0", "u1"}) for clients in left_out)
    num_honest = sum(map(len, left_out)) - num_liars
    after = ("popular", "reliable")
    shown = [", ".join(success(seed[run]) for seed in seeds) for run in after]
    yield (
        f"20 clients with the same 12 questions, two of them loud liars, {len(seeds)} seeds: "
        "all clients; without clients that contradict the others; liars and honest clients "
        "left out",
        f"{'; '.join(shown)}; {num_liars} and {num_honest}",
        f"{2 * len(seeds)} and 0 left out",
    )


@rows_of("many_adapters")
def adapters(found: Any) -> Iterator[Row]:
    verdict = found["verdict"]

    def after(arm: str) -> str:
        return ", ".join(f"{value:.2f}" for value in verdict[arm]["after"])

    yield (
        "two LoRA adapters that learn opposite things over one base: success on trained tasks with "
        f"an adapter each (one shared), of two sides, {len(verdict['users apart']['after'])} seeds",
        f"{after('two_sides apart')} ({after('two_sides shared')})",
        "≥ 0.9",
    )
    yield "the same of two users", f"{after('users apart')} ({after('users shared')})", "≥ 0.9"


@rows_of("tinker_api")
def tinker_updates(found: Any) -> Iterator[Row]:
    for run in found["updates"]:
        over = run["tree_over"]
        yield (
            f"Tinker's forward_backward over HTTP, {run['shape']}: the tree against padded, packed "
            "rows",
            f"{over['padded']:.1f}x, {over['packed']:.1f}x",
            f"≥ {found['goal_speedup']}x; limit {run['limit']:.1f}x",
        )


@rows_of("tinker_kills")
def tinker_kills(found: Any) -> Iterator[Row]:
    kills = max(run["kills"] for run in found["runs"])
    yield (
        f"a script of Tinker's SDK whose server is killed {kills} times: weights as without",
        "the same bits" if found["verdict"]["same_bits"] else "other bits",
        "the same bits",
    )


@rows_of("tinker_api")
def tinker_api(found: Any) -> Iterator[Row]:
    latency, models = found["latency"], found["models"]
    created, sampled = models["create_model"], models["sampler_and_first_token"]
    yield (
        "ms of Tinker's asample of one token above the gateway's chat completion, median: "
        "plain HTTP; through the SDK",
        f"{latency['asample_above_gateway_ms']:.1f}; {latency['sdk_above_gateway_ms']:.1f}",
        f"≤ {latency['goal_ms']:g}",
    )
    yield (
        f"Tinker's LoRA of rank 32 over {models['model']}: s of create_model; s of a sampler "
        "and its first token, MB of its engine",
        f"{median(created['seconds']):.1f}; {median(sampled['seconds']):.1f}, "
        f"{median(sampled['mib']):.0f}",
        "",
    )


@rows_of("learning_elsewhere")
def elsewhere(found: Any) -> Iterator[Row]:
    runs = [each for each in found["runs"] if each["arm"] == "learn"]
    name = "TextWorld's Coin Collector"
    yield (
        f"{name}, held-out success before → after, {len(runs)} seeds",
        ", ".join(f"{run['success_before']:.0%} → {run['success_after']:.0%}" for run in runs),
        "every seed rises; limit 75%",
    )
    yield from controls(name, {arm: found["verdict"][arm] for arm in ("shuffled", "lr0")})


@rows_of("rollout_scheduling")
def scheduling(found: Any) -> Iterator[Row]:
    mean = found["with_chat_template"]["ms_an_episode_mean"]
    yield "scheduling of one episode in ms, chat template included", f"{mean:.2f}", "≤ 1"


@rows_of("sandbox_call")
def sandbox_call(found: Any) -> Iterator[Row]:
    new, own = (found[way]["median_ms"] for way in ("new_interpreter", "sequential"))
    what = f"one sandboxed program in ms, median (a new interpreter: {new:.0f})"
    yield what, f"{own:.1f}", "≤ 5"


@rows_of("chaos")
def chaos(found: Any) -> Iterator[Row]:
    rounds = sum(arm["rounds"] for arm in found["arms"].values())
    harmed = sum(len(arm["not_as_promised"]) for arm in found["arms"].values())
    what = f"runs killed {found['kills']} times in all that end as if left alone"
    yield what, f"{rounds - harmed} of {rounds}", "all"


@rows_of("gsm8k_step")
def gsm8k_step(found: Any) -> Iterator[Row]:
    what = f"one step of SmolLM2-135M on GSM8K, {found['episodes']} episodes, in s"
    yield what, f"{found['seconds']['whole_command']:.0f}", "≤ 600"


def table() -> str:
    """The rows as Markdown."""
    lines = ["| on two CPU cores | measured | goal, limit | script, day |", "|---|---|---|---|"]
    for script, rows in SECTIONS:
        found, link = result(script), f"[{script}](../benchmarks/{script}.py)"
        for what, measured, goal, *days in rows(found):
            day = days[0] if days else found["date"]
            lines.append(f"| {what} | {measured} | {goal} | {link}, {day} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    if not parser.parse_args().write:
        print(table(), end="")
        return
    text = PAGE.read_text()
    before, _, rest_of_text = text.partition(BEGIN)
    _, _, after = rest_of_text.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main()
