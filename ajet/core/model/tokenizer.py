"""A tokenizer without its model: loaded from a run folder, which holds no weights; the file that
`ajet.model.chat_template` names, and the variables of a template, such as Qwen3's
`enable_thinking`. Imports nothing heavy, for `ajet check`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ConfigError, ModelError
from ajet.core.errors.codes import Code

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMBEDDED = "embedded:"
EMBEDDED_DIR = Path(__file__).parents[2] / "embedded"


def template_file(name: str) -> Path:
    """Returns the path of a Jinja file, or of one in this package: ``embedded:qwen2_5``."""
    if name.startswith(EMBEDDED):
        return EMBEDDED_DIR / f"{name.removeprefix(EMBEDDED)}.jinja"
    return Path(name).expanduser()


RESERVED_VARIABLES = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        "tokenizer_kwargs",
    )
)
"""What `apply_chat_template` passes to a template, and its own parameters."""


def reads_variable(source: str, name: str) -> bool:
    """Tells whether a template mentions a variable."""
    return re.search(rf"\b{re.escape(name)}\b", source) is not None


def set_template_variables(tokenizer: "PreTrainedTokenizerBase", values: Mapping[str, Any]) -> None:
    """Sets variables of the tokenizer's chat template (`ajet.model.chat_template_kwargs`) for calls
    that do not set them. They are written into the template, so the run folder, workers and an
    exported model have them too. Raises ConfigError for a name that the template does not
    mention."""
    template: Any = tokenizer.chat_template
    sources: dict[str, str] = template if isinstance(template, dict) else {"": template or ""}
    for name in values:
        if name in RESERVED_VARIABLES or not any(
            reads_variable(source, name) for source in sources.values()
        ):
            raise ConfigError(
                f"ajet.model.chat_template_kwargs.{name}: the model's chat template has no such "
                "variable; leave it out, or give a template that reads it "
                "(ajet.model.chat_template)",
                code=Code.KEY_REFUSED,
            )
    # Python's literals are Jinja's; a call's own value is defined before the template begins.
    defaults = "".join(
        f"{{%- if {name} is not defined %}}{{%- set {name} = {value!r} %}}{{%- endif %}}"
        for name, value in values.items()
    )
    changed = {name: defaults + source for name, source in sources.items()}
    tokenizer.chat_template = changed if isinstance(template, dict) else changed[""]


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """Loads the tokenizer that `save_pretrained` left in `folder`, with its chat template."""
    try:
        is_there = (folder / "tokenizer_config.json").is_file()
    except PermissionError as error:
        raise ModelError(
            f"{folder} cannot be read: {error.strerror}", code=Code.NO_TOKENIZER
        ) from error
    if not is_there:
        raise ModelError(
            f"{folder}: no tokenizer there; it is saved when a run starts", code=Code.NO_TOKENIZER
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # the tokenizers library raises plain exceptions for a damaged file
        one_line = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{folder}: the tokenizer does not load: {one_line}", code=Code.NO_TOKENIZER
        ) from error
    # Without this file a fast tokenizer loads too, but has no vocabulary.
    if tokenizer.is_fast and not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"{folder / 'tokenizer.json'}: no such file; restore a copy of it",
            code=Code.NO_TOKENIZER,
        )
    return tokenizer
