"""The table of docs/figures.md, made from the JSON files in benchmarks/results.

    python benchmarks/table.py            # prints it
    python benchmarks/table.py --write    # puts it between the two marks of docs/figures.md

Every figure is a ratio within one run, or a count, or comes with the machine it was measured on;
the third column is the goal, or the limit that no program could pass.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/figures.md"
BEGIN, END = "<!-- figures: python benchmarks/table.py --write -->\n", "<!-- end of figures -->\n"
Row = tuple[str, ...]
"""What, measured, goal or limit, script; and the day, if the script's file has figures of
several."""


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def span(values: list[float], form: str) -> str:
    """The least and the greatest of them."""
    return " to ".join(dict.fromkeys(f"{end(values):{form}}" for end in (min, max)))


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
    before, after = ([run[f"success_{when}"] for run in runs] for when in ("before", "after"))
    return "; ".join(found) or f"{span(before, form)} → {span(after, form)} sampled"


def controls(
    name: str, shown: dict[str, Any], script: str, days: Mapping[str, str] = MappingProxyType({})
) -> list[Row]:
    """Rows of the controls that were measured. What learns nothing keeps its success, and what
    needs no reinforcement comes to less. `days` has those of arms."""
    rows: list[Row] = []
    for arm, what, goal in (
        ("shuffled", "shuffled rewards", "holds 0 or less"),
        ("lr0", "learning rate 0", "holds 0"),
    ):
        if "low" in shown.get(arm, {}):
            what = f"{name}, {what}: change, {len(shown[arm]['changes'])} seeds"
            row = (what, with_interval(shown[arm]), goal, script)
            rows.append((*row, days[arm]) if arm in days else row)
    if best := max(shown.get("temperatures", {}).items(), key=lambda each: each[1], default=None):
        what = f"{name}, the start model at the best of five temperatures ({best[0]})"
        rows.append((what, f"{best[1]:.0%}", "", script))
    if rejected := shown.get("rejection", {}).get("greedy"):
        what = f"{name}, rejection sampling with as many episodes, greedy, {len(rejected)} seeds"
        rows.append((what, span(rejected, ".0%"), "", script))
    if "adds" in shown:
        what = f"{name}, what reinforcement adds to the better of these two, greedy"
        rows.append((what, with_interval(shown["adds"]), "above 0", script))
    return rows


def learning() -> list[Row]:
    found, script = result("learning"), "learning"
    runs = [run for run in found["runs"] if run["arm"] == "learn"]
    gigabytes = [run["peak_rss_bytes"] / 1e9 for run in runs]
    return [
        (
            f"demo, held-out success before → after, {len(runs)} seeds",
            by_decoding(runs),
            "greedy ≤ 40 % → ≥ 85 %",
            script,
        ),
        (
            "demo, seconds of training",
            span([run["wall_seconds"] for run in runs], ".0f"),
            "≤ 480",
            script,
        ),
        ("demo, peak memory in GB", span(gigabytes, ".2f"), "< 2", script),
        *(
            (
                f"demo without wider instructions than AVX2, seed {run['seed']}; seconds",
                f"{by_decoding([run])}; {run['wall_seconds']:.0f}",
                "greedy ≤ 40 % → ≥ 85 %; ≤ 480",
                script,
            )
            for run in found["runs"]
            if run["arm"] == "avx2"
        ),
        *controls("demo", found["verdict"], script),
    ]


def two_stages(script: str, task: str, form: str, goal: str) -> list[Row]:
    """Rows of a pretrained model on a public benchmark; an arm that was not measured has none. Runs
    on an earlier split of the data are named so."""
    if not (RESULTS / f"{script}.json").exists():
        return []
    arms: dict[tuple[str, str], list[Any]] = {}
    for run in result(script)["results"]:
        arms.setdefault((run["arm"], run.get("split", "")), []).append(run)

    def added(found: Any) -> str:
        low, high = (f"{100 * found[name]:+.1f}" for name in ("low", "high"))
        return f"{100 * found['value']:+.1f} [{low}, {high}]"

    rows: list[Row] = []
    for (arm, split), runs in arms.items():
        found: list[Row] = []
        named = f"{arm}{f' ({split})' if split else ''}"
        if arm == "trained":
            found += _stages(runs, task, split, form, script)
        if arm == "temperatures":
            best = [max(run["success_by_temperature"].values()) for run in runs]
            what = "the supervised model at the best of five temperatures"
            found.append((what, span(best, form), "", script))
        elif arm == "rejection":
            for decoding in ("sampled", "greedy"):
                after = [run["success_by_decoding"][decoding]["after"] for run in runs]
                what = f"rejection sampling from the supervised model, {decoding}"
                found.append((what, span(after, form), "", script))
        else:
            wanted = goal if arm == "trained" else "holds 0 or less"
            points = "; ".join(added(run["difference"]["test"]) for run in runs)
            what = "points that reinforcement adds there"
            found.append((f"{what}, {named}", points, wanted, script))
            if all("greedy" in run for run in runs):
                points = "; ".join(added(run["greedy"]["difference"]["test"]) for run in runs)
                found.append((f"{what} greedily, {named}", points, "", script))
        days = [run["date"] for run in runs if "date" in run]
        rows += [(*row, max(days)) for row in found] if days else found
    return rows


def _stages(runs: list[Any], task: str, split: str, form: str, script: str) -> list[Row]:
    """Success by stage on the held-out tasks, and what the stages cost on others."""
    seeds = f"{len(runs)} seeds" if runs[1:] else "1 seed"
    rows: list[Row] = []
    for decoding in ("sampled", "greedy"):
        found = [run if decoding == "sampled" else run.get("greedy") for run in runs]
        if None in found:
            continue
        for data, what in (
            ("test", task),
            ("parallel", "parallel"),
            ("irrelevance", "irrelevance"),
        ):
            if data not in found[0]["base"] or (split and data != "test"):
                continue
            shares = [[each[when][data] for each in found] for when in ("base", "before", "after")]
            where = f"SmolLM2-135M, {what}{f' ({split})' if split else ''}, {seeds}, {decoding}"
            shown = " → ".join(span(share, form) for share in shares)
            rows.append((f"{where}: untrained → supervised → reinforced", shown, "", script))
    return rows


def real_backbones() -> list[Row]:
    """Rows of a pretrained model on Ray; none where it was not measured."""
    if not (RESULTS / "real_backbones.json").exists():
        return []
    script, found = "real_backbones", result("real_backbones")["step"]
    return [
        (
            f"SmolLM2-135M, a step of {found['episodes']} episodes in float32 on {backbone}: "
            "episodes with debug's tokens; difference of the update",
            f"{found[backbone]['same_tokens']:.0%}; "
            f"{found[backbone]['relative_difference_of_the_update']:.2%}",
            "≥ 95%; ≤ 1%",
            script,
        )
        for backbone in ("verl", "trinity")
    ]


def learning_on_ray() -> list[Row]:
    rows = []
    runs = result("learning_on_ray")["runs"]
    for backbone in dict.fromkeys(run["backbone"] for run in runs):
        own = [run for run in runs if run["backbone"] == backbone]
        longest = max(run["wall_seconds"] for run in own)
        rows.append(
            (
                f"demo on {backbone}, {own[0]['steps']} steps, held-out success before → after, "
                f"{len(own)} seed{'s' if own[1:] else ''}; longest in s",
                f"{by_decoding(own)}; {longest:.0f}",
                "≤ 40 % → ≥ 85 % greedy",
                "learning_on_ray",
            )
        )
    return rows


def games() -> list[Row]:
    found = result("learning_games")
    return [
        row for name, arms in found["verdict"].items() for row in game(name, arms, found["runs"])
    ]


def game(name: str, arms: dict[str, Any], every_run: list[dict[str, Any]]) -> list[Row]:
    runs = [run for run in every_run if (run["game"], run["arm"]) == (name, "learn")]
    longest = max(run["wall_seconds"] for run in runs)
    script = "learning_games"
    days = {run["arm"]: run["date"] for run in every_run if run["game"] == name}
    return [
        (
            f"{name}, held-out success before → after, {len(runs)} seeds; longest in s",
            f"{by_decoding(runs, '.1%')}; {longest:.0f}",
            f"≥ {arms['learn']['goal']:.0%}; ≤ 600",
            script,
            days["learn"],
        ),
        *controls(name, arms, script, days),
    ]


def compaction() -> list[Row]:
    found, script = result("compaction"), "compaction"
    arms: dict[str, list[Any]] = {}
    for run in found["runs"]:
        arms.setdefault(run["arm"], []).append(run)

    def success(arm: str, when: str) -> str:
        return span([run[f"success_{when}"] for run in arms[arm]], ".0%")

    carried = [run["code_in_summaries"] for run in arms["learn"]]
    kept = (span([each[when] for each in carried], ".0%") for when in ("before", "after"))
    shuffled = found["verdict"]["shuffled"]
    what = "a game longer than the context"
    return [
        (
            f"{what}, compacted: held-out success before → after, {len(carried)} seeds",
            f"{success('learn', 'before')} → {success('learn', 'after')}",
            "more than +30 points on each",
            script,
        ),
        (f"{what}: episodes whose summaries are the code", " → ".join(kept), "", script),
        (
            f"{what}, compacted, shuffled rewards: change",
            with_interval(shuffled),
            "holds 0 or less",
            script,
        ),
        (f"{what}, truncated: held-out success after", success("truncated", "after"), "0", script),
        (
            f"{what}, oldest messages dropped: held-out success after",
            success("dropped", "after"),
            "a guess: 6%",
            script,
        ),
    ]


def pixels() -> list[Row]:
    found, script = result("learning_pixels"), "learning_pixels"
    rows: list[Row] = []
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
            seeds = f"{len(runs)} seed{'s' if runs[1:] else ''}"
            shown = f"{what}, held-out success before → after, {seeds}; longest in s"
            is_control = arm.endswith("other")
            goal = f"stays where it is{limit}" if is_control else "≤ 15 % → ≥ 80 % greedy; ≤ 900"
            row = (shown, f"{by_decoding(runs, '.1%')}; {longest:.0f}", goal, script)
            rows.append((*row, max(run["date"] for run in runs)))
    return rows


def images() -> list[Row]:
    found, script = result("images"), "images"
    held, updated = found["held"], found["update"]
    return [
        (
            f"bytes of {held['pictures']} pictures in {held['episodes']} episodes, against a copy "
            "for each episode",
            f"{held['ratio']:.1f}x less, each encoded once",
            f"limit: {held['episodes'] / held['pictures']:.0f}x",
            script,
        ),
        (
            "update of a group of 8 that shows a picture: tree against 8 rows with their pixels",
            f"{updated['ratio']:.1f}x",
            f"≥ 3x; ratio of tokens: {updated['token_ratio']:.1f}x",
            script,
        ),
        (
            "tokens a second after a picture, against a text model of the same shape",
            f"{found['engine']['ratio']:.2f}x",
            "1x",
            script,
        ),
    ]


def lake_rows() -> list[Row]:
    found = result("frozen_lake_rows")
    arms = found["arms"]
    rows, tree = arms["rows, packed"]["tokens_computed"], arms["tree"]["tokens_computed"]
    return [
        (
            "frozen_lake, whole conversations: tokens of an update as a row a turn, as a tree",
            f"{rows:,}, {tree:,}: {found['tokens_ratio']:.1f}x",
            "the same gradient",
            "frozen_lake_rows",
        ),
        (
            "its seconds against the tree's: rows padded, rows packed",
            ", ".join(f"{found['speedup'][name]:.1f}x" for name in arms if name != "tree"),
            f"ratio of tokens: {found['tokens_ratio']:.1f}x",
            "frozen_lake_rows",
        ),
    ]


def algorithms() -> list[Row]:
    shown = result("frozen_lake_algorithms")["verdict"]
    medians = {
        level: ", ".join(episodes(shown[arm][level]) for arm in ("grpo", "ppo", "gigpo"))
        for level in ("0.70", "0.85")
    }
    return [
        (
            f"episodes until {float(level):.0%} of held-out lakes, median: GRPO, PPO, GiGPO",
            text,
            "GiGPO fewer than GRPO",
            "frozen_lake_algorithms",
        )
        for level, text in medians.items()
    ]


def episodes(entry: dict[str, Any]) -> str:
    found = entry["median_episodes"]
    return "not reached" if found is None else f"{found:,}"


def engine() -> list[Row]:
    return [
        (
            f"tokens a second against `model.generate`, {run['conversations']} conversations",
            f"{run['ratio']:.1f}x",
            f"≥ 3x; linear layers alone: {run['limit_tokens_s'] / run['generate_tokens_s']:.0f}x",
            "engine_throughput",
        )
        for run in result("engine_throughput")["results"]
    ]


def engine_compared() -> list[Row]:
    found = result("engine_compared")
    return [
        row
        for vectors in ("avx512_bf16", "avx2")
        if vectors in found
        for row in engine_on(vectors, found[vectors]["systems"])
    ]


def engine_on(vectors: str, systems: dict[str, Any]) -> list[Row]:
    speed = {system: found["tokens_s"] for system, found in systems.items()}
    limits, own = ("products", "linear"), {s: v for s, v in speed.items() if s.startswith("ajet")}
    others = {
        system: tokens_s
        for system, tokens_s in speed.items()
        if system not in own and system.partition(":")[0] not in limits
    }
    best = max(others, key=lambda system: others[system])
    listed = ", ".join(f"{system.replace(':', ' ')} {v:.0f}" for system, v in others.items())
    return [
        (
            f"tokens a second on SmolLM2-135M, {vectors}, {system.partition(':')[2]} (others: "
            f"{listed})",
            f"{tokens_s:.0f}: {tokens_s / others[best]:.2f}x the best other",
            f"≥ 1.5x; matrix products alone: {speed['products:' + system.partition(':')[2]]:.0f}",
            "engine_compared",
        )
        for system, tokens_s in own.items()
    ]


def update() -> list[Row]:
    return [
        (
            f"update as a tree against padded, {run['shape']}",
            f"{run['speedup']['tree']:.1f}x",
            f"≥ 2.5x; ratio of tokens: {run['token_ratio']:.1f}x",
            "update_layouts",
        )
        for run in result("update_layouts")["results"]
    ]


def model_families() -> list[Row]:
    """Rows of the families beside Qwen2, Qwen3 and Llama."""
    found = result("model_families")
    updates = [(run["family"], run["update"]) for run in found["results"]]
    sampled = [(run["family"], run["sampling"]) for run in found["results"] if run["sampling"]]
    script = "model_families"
    return [
        (
            f"update as a tree against padded: {', '.join(name for name, _ in updates)}",
            ", ".join(f"{run['ratio']:.1f}x" for _, run in updates),
            f"≥ {found['goal']:.0f}x; ratio of tokens: {updates[0][1]['token_ratio']:.1f}x",
            script,
        ),
        (
            "sampling with shared prefixes against transformers' own forward: "
            + ", ".join(name for name, _ in sampled),
            ", ".join(f"{run['ratio']:.1f}x" for _, run in sampled),
            f"≥ {found['goal']:.0f}x; ratio of tokens: {sampled[0][1]['token_ratio']:.1f}x",
            script,
        ),
    ]


def update_real() -> list[Row]:
    return [
        (
            f"update of SmolLM2-135M with reference KL, 5,264 tokens as trees, {run['dtype']}: s; "
            "share of its matrix products' own speed",
            f"{run['seconds']:.1f}; {run['share_of_products']:.0%}",
            f"≥ {run['goal']:.0%}; products alone: {run['products']['seconds']:.1f} s",
            "update_real",
        )
        for run in result("update_real")["results"]
    ]


def plan_accuracy() -> list[Row]:
    return [
        (
            f"{'' if run['case'] == 'demo' else 'SmolLM2-135M, '}{run['case']}: time of a step, "
            "peak memory against `ajet plan`",
            f"{run['happened_over_planned']['step_s']:.2f}x, {_peak(run)}",
            "0.75x to 1.25x",
            "plan_accuracy",
        )
        for run in result("plan_accuracy")["cases"]
    ]


def _peak(run: dict[str, Any]) -> str:
    if "peak_bytes" not in run["happened"]:
        return "not measured"
    of_plan = run["happened_over_planned"]["peak_bytes"]
    return f"{of_plan:.2f}x ({run['happened']['peak_bytes'] / 1e9:.1f} GB)"


def memory_phases() -> list[Row]:
    return [
        (
            f"peak memory in GB of the phases of training SmolLM2-135M's shape, {arm['dtype']}",
            f"{arm['peak_bytes'] / 1e9:.2f}",
            "≤ 4",
            "memory_phases",
        )
        for arm in result("memory_phases")["arms"]
    ]


def step() -> list[Row]:
    found = result("grpo_step_vs_trl")
    return [
        (
            f"episodes a second of a GRPO step against trl {found['trl']}, {agent}",
            f"{found['verdict'][arm]['ratio']:.1f}x",
            "≥ 5x",
            "grpo_step_vs_trl",
        )
        for arm, agent in (("agentscope", "with AgentScope"), ("chat", "plain chat"))
    ]


def merging() -> list[Row]:
    return [
        (
            f"tokens of one row a call against merged timelines, {run['shape']['T']} calls",
            f"{run['token_ratio']:.1f}x",
            f"limit {run['limit']:.1f}x",
            "timeline_merging",
        )
        for run in result("timeline_merging")["results"]
    ]


def agents() -> list[Row]:
    gateway = result("gateway_latency")["results"]
    measured = result("frameworks")
    frameworks, steps = measured["against_agentscope"], measured["runs"][0]["steps"]
    names = {"langgraph": "LangGraph", "http": "HTTP"}
    rows = [
        (
            f"what the gateway adds to a call in ms, median, {run['episodes']} episodes in flight",
            f"{run['added_ms_median']:.1f}",
            "≤ 3" if run["episodes"] == 64 else "none lost",
            "gateway_latency",
        )
        for run in gateway
    ]
    return rows + [
        (
            f"demo in {name}, {steps} steps, against AgentScope: held-out success, seconds",
            f"{frameworks[key]['success_difference']:+.3f}, {frameworks[key]['slower']:+.0%}",
            f"within {frameworks[key]['interval_95']:.3f}, ≤ +10 %",
            "frameworks",
        )
        for key, name in names.items()
    ]


def environments() -> list[Row]:
    found = result("environment_steps")
    return [
        (
            f"steps a second of {name}, of its bare loop's: checked, with the agent's records",
            f"{figures['ratio']['live']:.0%}, {figures['ratio']['played']:.0%}",
            f"≥ {found['goal']:.0%}; bare: {figures['steps_a_second']['bare']:,.0f} a second",
            "environment_steps",
        )
        for name, figures in found["environments"].items()
    ]


def barrier() -> list[Row]:
    return [
        (
            f"asynchronous rollout against a barrier a turn, {run['episodes']} episodes of "
            f"{run['turns']} turns",
            f"{run['ratio']:.2f}x",
            f"≥ 90 % of the limit: {run['limit']:.2f}x",
            "barrier",
        )
        for run in result("barrier")["results"]
    ]


def asynchrony() -> list[Row]:
    return [
        (
            "rollout and update at the same time against in turns, tokens at most "
            f"{run['max_staleness']} updates old",
            f"{run['ratio']:.2f}x",
            f"≥ 90 % of the limit: {run['limit']:.2f}x",
            "async_rollout",
        )
        for run in result("async_rollout")["results"]
    ]


def router() -> list[Row]:
    found = result("router")
    kept = [run for run in found["cache"] if run["chooser"] == "router"]
    growth = found["growth"]
    return [
        (
            f"hits of the prefix cache, of the ideal ones, {_each(kept, 'replicas', ',')} replicas",
            _each(kept, "share_of_ideal_hits", ".1%"),
            f"≥ {found['verdict']['goal_share']:.0%}",
            "router",
        ),
        (
            f"router: µs an episode, {_each(growth, 'replicas', ',')} replicas; "
            "its bookkeeping alone",
            f"{_each(growth, 'router_us_per_episode', '.0f')}; "
            f"{_each(growth, 'bookkeeping_us_per_episode', '.0f')}",
            f"flat: ≤ {found['verdict']['goal_slowest_over_fastest']}x",
            "router",
        ),
    ]


def cluster() -> list[Row]:
    admission = result("ray_admission")
    process = result("router_process")
    times = result("backbone_times")
    return [
        (
            f"demo, {times['steps']} steps, seconds against one process's: "
            + ", ".join(times["verdict"]),
            ", ".join(f"{found['wall_seconds']:.2f}x" for found in times["verdict"].values()),
            "≤ 1.3x",
            "backbone_times",
        ),
        (
            "episodes a second on Ray workers, of one process's with as many slots, groups of "
            + _each(admission["rows"], "group_size", "d"),
            _each(admission["rows"], "share_of_one_process", ".0%"),
            f"≥ {admission['verdict']['goal']:.0%}",
            "ray_admission",
        ),
        (
            "ms of the router's process an episode, prompts of "
            f"{_each(process['rows'], 'prompt_tokens', ',')} tokens; if they went through it",
            ", ".join(f"{row['direct_us_per_episode'] / 1e3:.1f}" for row in process["rows"])
            + "; "
            + ", ".join(
                f"{row['through_the_router_us_per_episode'] / 1e3:.1f}" for row in process["rows"]
            ),
            "flat",
            "router_process",
        ),
    ]


def sharding() -> list[Row]:
    """Memory, of the arms that are in the file; its times say little (see the script)."""
    found = result("sharding")
    sharded = [arm for arm in found["arms"] if arm["sharded"]]
    plain = [arm for arm in sharded if not arm["checkpointing"] and arm["sequence"] == 1]
    recomputed = [arm for arm in sharded if arm["checkpointing"] and arm["sequence"] == 1]
    ulysses = [arm for arm in sharded if not arm["checkpointing"] and arm["sequence"] > 1]

    def megabytes(runs: list[dict[str, Any]], key: str) -> str:
        return ", ".join(f"{value / 1e6:.0f}" for value in (_at(run, key) for run in runs))

    rows = [
        (
            f"MB of {found['parameters'] / 1e6:.0f} million weights, gradients and AdamW on a rank "
            f"of {_each(plain, 'ranks', 'd')} (FSDP2, gloo)",
            megabytes(plain, "state_bytes"),
            f"1/N: {megabytes(plain, 'limit_bytes')}",
            "sharding",
        )
    ]
    ways = (("", plain), (", activations recomputed", recomputed), (", Ulysses over all", ulysses))
    return rows + [
        (
            f"MB of a rank of {_each(runs, 'ranks', 'd')} at the peak of an update{how}",
            megabytes(runs, "bytes.peak_rss"),
            f"> its state: {megabytes(runs, 'limit_bytes')}",
            "sharding",
        )
        for how, runs in ways
        if runs
    ]


def _at(run: dict[str, Any], key: str) -> Any:
    """`a.b` is in the section a."""
    for name in key.split("."):
        run = run[name]
    return run


def _each(runs: list[dict[str, Any]], key: str, form: str) -> str:
    return ", ".join(f"{run[key]:{form}}" for run in runs)


def rest() -> list[Row]:
    scheduling = result("rollout_scheduling")["with_chat_template"]
    call = result("sandbox_call")
    chaos = result("chaos")
    rounds = sum(arm["rounds"] for arm in chaos["arms"].values())
    harmed = sum(len(arm["not_as_promised"]) for arm in chaos["arms"].values())
    gsm8k = result("gsm8k_step")
    return [
        (
            "scheduling of one episode in ms, chat template included",
            f"{scheduling['ms_an_episode_mean']:.2f}",
            "≤ 1",
            "rollout_scheduling",
        ),
        (
            "one sandboxed program in ms, median (a new interpreter: "
            f"{call['new_interpreter']['median_ms']:.0f})",
            f"{call['sequential']['median_ms']:.1f}",
            "≤ 5",
            "sandbox_call",
        ),
        (
            f"runs killed {chaos['kills']} times in all that end as if left alone",
            f"{rounds - harmed} of {rounds}",
            "all",
            "chaos",
        ),
        (
            f"one step of SmolLM2-135M on GSM8K, {gsm8k['episodes']} episodes, in s",
            f"{gsm8k['seconds']['whole_command']:.0f}",
            "≤ 600",
            "gsm8k_step",
        ),
    ]


def traces() -> list[Row]:
    found = result("traces")
    sent, of_run = found["sent"]["otlp"]["per_episode_ms"], found["run_per_episode_ms"]
    return [
        (
            "recording a step of the demo, of the step's CPU time; OTLP traces of its episodes, of "
            "theirs",
            f"{found['recording']['share_of_steps']:.1%}; {sent / of_run:.1%}",
            "≤ 3 % each",
            "traces",
        )
    ]


def client_episodes() -> list[Row]:
    found = result("client_episodes")["results"][-1]
    return [
        (
            f"{found['clients']:,} clients at one `ajet serve`, five calls each at the same time: "
            "episodes ok; ms that a call costs in addition to the model, median",
            f"{found['episodes_ok']:,}; {found['call_ms']['median']:.0f}",
            "all",
            "client_episodes",
        ),
        _clients_on_ray(),
    ]


def _clients_on_ray() -> Row:
    arms = result("client_episodes_on_ray")["results"]
    found = max(arms, key=lambda each: each["clients"])
    whole = [f"{each['episodes_ok']}" for each in arms if each["arm"].startswith("run on")]
    return (
        f"the same over the driver and two engines of a Ray: episodes ok; CPU s of the driver; "
        f"episodes ok of whole runs with {arms[-1]['clients']} clients on verl, trinity",
        f"{found['episodes_ok']:,}; {found['server_cpu_s']:.0f}; {', '.join(whole)}",
        "all",
        "client_episodes_on_ray",
    )


def served_models() -> list[Row]:
    """Rows of a model that learns from its traffic, honest and with a tenth of clients that lie."""
    found = result("serve_learning")

    def said(run: str) -> str:
        before, after = found[run]["held_out_before"], found[run]["held_out_after"]
        return f"{before:.0%} → {after:.0%}"

    honest = found["honest"]
    seeds = [{"popular": found["popular"], "reliable": found["reliable"]}]
    seeds += found["poisoned"].values()

    def after(run: str) -> str:
        runs = [seed[run] for seed in seeds]
        return ", ".join(f"{r['held_out_before']:.0%} → {r['held_out_after']:.0%}" for r in runs)

    left_out = [
        {client for each in seed["reliable"]["rounds"] for client in each["unreliable_clients"]}
        for seed in seeds
    ]
    num_liars = sum(len(clients & {"u0", "u1"}) for clients in left_out)
    num_honest = sum(map(len, left_out)) - num_liars
    return [
        (
            f"`ajet serve --learn`, {honest['num_sessions']:,} sessions of simulated users: "
            "held-out success before → after; failed requests; versions rebuilt bit for bit",
            f"{said('honest')}; {sum(honest['failed_requests'].values())}; "
            f"{len(honest['rebuild']) - 1} of {honest['version']}",
            "+20 points; 0; all",
            "serve_learning",
        ),
        (
            "what a round that trains adds to a call, ms at the median, against the same reply",
            f"{found['steady']['added_ms']['median']:.1f}",
            "≤ 5",
            "serve_learning",
        ),
        (
            "the sessions where a tenth of the clients lie: quietly; a hundred times as loud",
            f"{said('liars')}; {said('loud')}",
            "rolled back",
            "serve_learning",
        ),
        (
            f"20 clients with the same 12 questions, two of them loud liars, {len(seeds)} seeds: "
            "all clients; without clients that contradict the others; liars and honest clients "
            "left out",
            f"{after('popular')}; {after('reliable')}; {num_liars} and {num_honest}",
            f"{2 * len(seeds)} and 0 left out",
            "serve_learning",
        ),
    ]


def adapters() -> list[Row]:
    verdict = result("many_adapters")["verdict"]
    num_seeds = len(verdict["users apart"]["after"])

    def after(arm: str) -> str:
        return ", ".join(f"{value:.2f}" for value in verdict[arm]["after"])

    return [
        (
            "two LoRA adapters that learn opposite things over one base: success on trained tasks "
            f"with an adapter each (one shared), of two sides, {num_seeds} seeds",
            f"{after('two_sides apart')} ({after('two_sides shared')})",
            "≥ 0.9",
            "many_adapters",
        ),
        (
            "the same of two users",
            f"{after('users apart')} ({after('users shared')})",
            "≥ 0.9",
            "many_adapters",
        ),
    ]


def tinker_api() -> list[Row]:
    found, killed = result("tinker_api"), result("tinker_kills")
    kills = max(run["kills"] for run in killed["runs"])
    latency, models = found["latency"], found["models"]
    created, sampled = models["create_model"], models["sampler_and_first_token"]
    rows = [
        (
            f"Tinker's forward_backward over HTTP, {run['shape']}: the tree against padded, packed "
            "rows",
            f"{run['tree_over']['padded']:.1f}x, {run['tree_over']['packed']:.1f}x",
            f"≥ {found['goal_speedup']}x; limit {run['limit']:.1f}x",
            "tinker_api",
        )
        for run in found["updates"]
    ]
    return [
        *rows,
        (
            f"a script of Tinker's SDK whose server is killed {kills} times: weights as without",
            "the same bits" if killed["verdict"]["same_bits"] else "other bits",
            "the same bits",
            "tinker_kills",
        ),
        (
            "ms of Tinker's asample of one token above the gateway's chat completion, median: "
            "plain HTTP; through the SDK",
            f"{latency['asample_above_gateway_ms']:.1f}; {latency['sdk_above_gateway_ms']:.1f}",
            f"≤ {latency['goal_ms']:g}",
            "tinker_api",
        ),
        (
            f"Tinker's LoRA of rank 32 over {models['model']}: s of create_model; s of a sampler "
            "and its first token, MB of its engine",
            f"{median(created['seconds']):.1f}; {median(sampled['seconds']):.1f}, "
            f"{median(sampled['mib']):.0f}",
            "",
            "tinker_api",
        ),
    ]


def elsewhere() -> list[Row]:
    found = result("learning_elsewhere")
    runs = [each for each in found["runs"] if each["arm"] == "learn"]
    shown = [f"{each['success_before']:.0%} → {each['success_after']:.0%}" for each in runs]
    controls = {
        "shuffled": ("shuffled rewards", "holds 0 or less"),
        "lr0": ("learning rate 0", "holds 0"),
    }
    rows = [
        (
            f"TextWorld's Coin Collector, held-out success before → after, {len(runs)} seeds",
            ", ".join(shown),
            "every seed rises; limit 75%",
            "learning_elsewhere",
        )
    ]
    for arm, (name, goal) in controls.items():
        change = found["verdict"][arm]
        rows.append(
            (
                f"TextWorld's Coin Collector, {name}: change, {len(change['changes'])} seeds",
                with_interval(change),
                goal,
                "learning_elsewhere",
            )
        )
    return rows


def scripts() -> list[Row]:
    found = result("convert_scripts")
    compared = found["num_compared"]
    return [
        (
            "public scripts of verl whose conversion is that of the arguments bash passes, names "
            "and blanks apart; with another value that decides what is trained",
            f"{found['num_same']} of {compared}; {found['num_essential_wrong']} of {compared}",
            "≥ 98 %; 0",
            "convert_scripts",
        )
    ]


def init_kinds() -> list[Row]:
    runs = result("init_kinds")["runs"]
    kinds = {run["kind"] for run in runs}
    return [
        (
            f"projects of `ajet init`, {len(kinds)} kinds, {len(runs)} runs: held-out success "
            "before → after; processor seconds",
            f"{by_decoding(runs)}; {span([run['cpu_seconds'] for run in runs], '.0f')}",
            "greedy ≤ 40 % → ≥ 85 %",
            "init_kinds",
        )
    ]


def why() -> list[Row]:
    shown = result("why")["verdict"]
    return [
        (
            "`ajet why`: planted faults whose cause comes first; healthy runs with a cause",
            f"{shown['named_first']} of {shown['planted']}; {shown['with_a_cause']} of "
            f"{shown['healthy']}",
            "≥ 17 of 20; ≤ 1 of 20",
            "why",
        )
    ]


def preference() -> list[Row]:
    found = result("preference")
    rows: list[Row] = []
    for arm in found["mean"]:
        runs = [run["success"][arm] for run in found["results"]]
        shown = "; ".join(f"{span([r[how] for r in runs], '.0%')} {how}" for how in runs[0])
        what = f"demo, held-out success of {arm} from 5,120 episodes, {len(runs)} seeds"
        rows.append((what, shown, "", "preference"))
    return rows


def structured_output() -> list[Row]:
    found = result("structured_output")
    step, runs = found["speed"]["decode_step"], found["learn"]["runs"]
    strict = [run["strict"]["success_by_decoding"] for run in runs]
    shown = [
        " → ".join(
            span([each[name][when] for each in strict], ".0%") for when in ("before", "after")
        )
        + f" {name}"
        for name in ("sampled", "greedy")
    ]
    malformed = [
        span([run[kind]["malformed"] for run in runs], ".1%") for kind in ("strict", "loose")
    ]
    seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
    return [
        (
            f"a grammar's share of a decode step, {step['vocabulary']:,} tokens in the vocabulary, "
            f"{step['rows']} rows",
            f"{step['overhead']:.1%}",
            "≤ 5 %",
            "structured_output",
        ),
        (
            f"an agent with a strict tool, {seeds}, {runs[0]['strict']['steps']} steps: held-out "
            "success before → after; malformed calls, and with a tool that is not strict",
            f"{'; '.join(shown)}; {malformed[0]}, {malformed[1]}",
            "rises; 0",
            "structured_output",
        ),
    ]


def newcomers() -> list[Row]:
    found = result("newcomers")
    cases = found["cases"].values()
    return [
        (
            "coding agents with the wheel alone that trained an agent they had not seen, with at "
            "most one wrong try; commands each",
            f"{found['passed']} of {len(cases)}; {span([c['commands'] for c in cases], '.0f')}",
            f"≥ {found['goal']} of 10",
            "newcomers",
        )
    ]


def page() -> list[Row]:
    found = result("logview")
    browser, limits = found["browser"], found["limits"]
    return [
        (
            f"the page on {found['episodes']:,} episodes, in Chromium: heading and curves in s, a "
            "filter in ms",
            f"{browser['curves_s']:.1f}; {browser['filter_ms']}",
            f"≤ {limits['first_s']:g}; ≤ {limits['filter_ms']:g}",
            "logview",
        )
    ]


def table() -> str:
    """The rows as Markdown."""
    rows = [
        *two_stages(
            "function_calling",
            "100 held-out tasks of BFCL simple_python",
            ".0%",
            "≥ +15 on 3 of 3 seeds",
        ),
        *two_stages("gsm8k_learning", "GSM8K's 1,319 test problems", ".1%", "≥ +1"),
        *real_backbones(),
        *learning(),
        *init_kinds(),
        *learning_on_ray(),
        *games(),
        *compaction(),
        *pixels(),
        *images(),
        *lake_rows(),
        *algorithms(),
        *engine(),
        *engine_compared(),
        *update(),
        *model_families(),
        *update_real(),
        *plan_accuracy(),
        *memory_phases(),
        *step(),
        *merging(),
        *agents(),
        *environments(),
        *barrier(),
        *asynchrony(),
        *router(),
        *cluster(),
        *sharding(),
        *traces(),
        *scripts(),
        *page(),
        *why(),
        *preference(),
        *structured_output(),
        *newcomers(),
        *client_episodes(),
        *served_models(),
        *adapters(),
        *tinker_api(),
        *elsewhere(),
        *rest(),
    ]
    lines = ["| on two CPU cores | measured | goal, limit | script, day |", "|---|---|---|---|"]
    for what, measured, goal, script, *days in rows:
        day = days[0] if days else result(script)["date"]
        link = f"[{script}](../benchmarks/{script}.py)"
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
