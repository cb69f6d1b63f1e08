"""Finds what is wrong with the model that a config names, without loading it: a model of this
package, a folder, a .gguf, or a name on the Hub, of which only this machine's cache is looked at.
"""

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ajet.cli.notices import Finding
from ajet.core.config import AjetConfig
from ajet.core.config.model import ModelConfig
from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.model.lfs import pointer_problem
from ajet.core.text.error_text import did_you_mean, extra_advice, windows_advice
from ajet.plan.model_config import EMBEDDED, read_config

API_MODEL = re.compile(
    r"(openai/|anthropic/|google/)?"
    r"(gpt-[345]|chatgpt|o[134](-|$)|claude|gemini|deepseek-(chat|reasoner)$|"
    r"qwen-(max|plus|turbo|long)|grok-|mistral-(large|medium|small)-latest)"
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
WEIGHTS = ("*.safetensors", "*.bin")
NO_TOKENIZER = "no tokenizer (tokenizer.json)"
SHARED_LAYERS = ("lm_head", "model.embed_tokens")
"""The layers that share weights in a model with tied embeddings."""
EXPANDED = ("fp8", "mxfp4")
"""Quantisations that transformers expands when it loads a model for training."""
WITHOUT_CACHE = ("openai-gpt", "reformer", "rwkv", "xlnet")
"""Model types without a cache in transformers, which the in-process engine needs."""
WITHOUT_TEXT_MODEL = ("glm4v_moe", "qwen3_vl_moe")
"""Multimodal model types for which transformers has no causal language model of text only."""


def model_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields whether `ajet.model.path` leads to weights, a tokenizer and a chat template, and
    whether the model's layers can have the config's adapters."""
    yield from _path_findings(config.ajet.model)
    yield from _lora_findings(config)


def _lora_findings(config: AjetConfig) -> Iterator[Finding]:
    """Yields an error for an adapter on an output layer that shares the embedding's weights.
    core/update/lora.py refuses it too, but only after the model is loaded."""
    lora = config.ajet.trainer_common.lora
    targets = lora.target_modules
    if not lora.rank or targets == "all-linear":  # all-linear excludes the output layer
        return
    if isinstance(targets, str):
        is_shared = any(re.fullmatch(targets, name) for name in SHARED_LAYERS)
    else:
        is_shared = any(f".{name}".endswith(f".{t}") for name in SHARED_LAYERS for t in targets)
    try:
        is_tied = is_shared and read_config(config.ajet.model.path or "").tie_word_embeddings
    except ModelError:  # `_path_findings` reports it
        return
    if is_tied:
        yield Finding(
            "error",
            f"ajet.trainer_common.lora.target_modules={targets}: the output layer shares the "
            "embedding's weights (tie_word_embeddings), so an engine cannot adapt one without the "
            "other; leave both out",
            Code.MODEL_UNSUPPORTED,
        )


def _path_findings(model: ModelConfig) -> Iterator[Finding]:
    path, has_template = model.path or "", model.chat_template is not None
    key = f"ajet.model.path: {path}"
    local = Path(path).expanduser()
    if path.startswith("embedded:"):
        available = sorted(file.parent.name for file in EMBEDDED.glob("*/config.json"))
        name = path.removeprefix("embedded:")
        if name in available:
            yield from _folder_findings(EMBEDDED / name, has_template)
            return
        hint = did_you_mean(path, [f"embedded:{model}" for model in available])
        problem = f"{key}: no such model in this package; {hint}"
        yield Finding("error", problem, Code.MODEL_NOT_FOUND)
    elif local.is_dir():
        yield from _folder_findings(local, has_template)
    elif local.is_file():
        yield _gguf_finding(local, key)
    elif API_MODEL.match(path):
        yield Finding(
            "error",
            f"{key}: this is the name of a model behind an API, and ajet trains open weights: "
            "give a folder or a name on the Hub, such as Qwen/Qwen2.5-0.5B-Instruct",
            Code.MODEL_NOT_FOUND,
        )
    elif path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith(".gguf"):
        yield Finding(
            "error",
            f"{key}: no such file or folder ({local.absolute()})",
            Code.MODEL_NOT_FOUND,
        )
    else:
        yield _hub_finding(path, key, has_template)


def _folder_findings(folder: Path, has_template: bool) -> Iterator[Finding]:
    key = f"ajet.model.path: {folder}"
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("no config.json")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        missing.append("no weights (*.safetensors)")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        missing.append(NO_TOKENIZER)
    if missing:
        yield Finding(
            "error",
            f"{key}: {', '.join(missing)}; give a folder as transformers saves",
            Code.NO_TOKENIZER if missing == [NO_TOKENIZER] else Code.MODEL_NOT_FOUND,
        )
    elif problem := pointer_problem(folder):
        yield Finding("error", f"{key}: {problem}", Code.MODEL_NOT_LOADED)
    elif not has_template and not _has_template(folder):
        yield Finding(
            "error",
            f"{key}: its tokenizer has no chat template; give ajet.model.chat_template",
            Code.NO_CHAT_TEMPLATE,
        )
    elif (
        model_type := _json_object(folder / "config.json").get("model_type")
    ) in WITHOUT_CACHE + WITHOUT_TEXT_MODEL:
        lack = "cache" if model_type in WITHOUT_CACHE else "language model for text only"
        yield Finding(
            "error",
            f"{key}: models of type {model_type!r} have no {lack} in transformers; give a model of "
            "one of the families in docs/models.md",
            Code.MODEL_UNSUPPORTED,
        )
    else:
        yield Finding("ok", f"{key}: weights, tokenizer and chat template are there")
        quantisation = _json_object(folder / "config.json").get("quantization_config")
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        if method in EXPANDED:
            yield Finding(
                "warning",
                f"{key}: its weights are quantised ({method}); they are expanded to the run's "
                "number format and trained in it, and checkpoints and exports are not quantised",
            )


def _json_object(file: Path) -> dict[str, Any]:
    """Returns the content of a JSON file; {} for a broken one, which loading reports."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _gguf_finding(file: Path, key: str) -> Finding:
    if file.suffix != ".gguf":
        problem = f"{key}: a file, but not a .gguf: give the folder around it"
        return Finding("error", problem, Code.MODEL_NOT_FOUND)
    if find_spec("gguf") is None:
        advice = f"reading GGUF needs a package: {extra_advice('gguf')}"
        return Finding("error", f"{key}: {advice}", Code.PACKAGE_MISSING)
    try:
        read_config(str(file))
    except ModelError as error:
        return Finding("error", str(error), Code.MODEL_NOT_LOADED)
    return Finding("ok", f"{key}: a GGUF file; its tokenizer and template are read with it")


def _has_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return bool(_json_object(folder / "tokenizer_config.json").get("chat_template"))


def _hub_finding(path: str, key: str, has_own_template: bool) -> Finding:
    """Looks only into this machine's cache of the Hub."""
    if find_spec("huggingface_hub") is None:
        return Finding(
            "warning",
            f"{key}: no folder here; taken for a name on the Hub, whose cache on this machine "
            f"cannot be read: {extra_advice('huggingface_hub')}",
        )
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json")
    except HFValidationError as error:
        reason = f"no folder, and no name on the Hub: {' '.join(str(error).split())}"
        if "$" in path:
            reason = "a variable of the environment is written as ${oc.env:NAME}"
        elif advice := windows_advice(path):
            reason = f"no such folder{advice}"
        problem = f"{key}: {reason}"
        return Finding("error", problem, Code.MODEL_NOT_FOUND)
    if not isinstance(cached, str):
        return Finding(
            "warning",
            f"{key}: no folder here; taken for a name on the Hub, not in this machine's cache: "
            "it will be downloaded; the Hub was not asked for its tokenizer and template",
        )
    snapshot, missing = Path(cached).parent, []
    if not any((snapshot / name).is_file() for name in TOKENIZERS):
        missing.append("tokenizer")
    if not has_own_template and not _has_template(snapshot):
        missing.append("chat template")
    if missing:
        return Finding(
            "warning",
            f"{key}: a name on the Hub, in the cache of this machine without its "
            f"{' and '.join(missing)}: a start needs the network, or ajet.model.chat_template",
        )
    return Finding(
        "ok",
        f"{key}: a name on the Hub, in the cache of this machine with tokenizer and chat template",
    )
