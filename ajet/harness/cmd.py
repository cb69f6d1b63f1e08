"""`harness:cmd`: any command line, with placeholders for what it must know."""

from __future__ import annotations

import dataclasses
import re

from ajet.core.config import AjetConfig
from ajet.core.config.services import HarnessConfig
from ajet.core.errors import ConfigError, KeyMissing
from ajet.core.errors.codes import Code
from ajet.harness.workflow import SECTION, HarnessWorkflow, Launch, Setting

_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")
"""A name in braces; `${NAME}` is a shell's, and stays."""
NAMES = ("prompt", "base_url", "anthropic_url", "api_key", "model", "folder", "shown")


class Cmd(HarnessWorkflow):
    """Runs `ajet.harness.command`. The variables of OpenAI's and Anthropic's clients hold address
    and key, too."""

    name = "harness:cmd"
    program = "the first part of ajet.harness.command"

    @classmethod
    def executable(cls, harness: HarnessConfig) -> list[str]:
        if not harness.command:
            raise KeyMissing(
                f"{SECTION}.command: harness:cmd runs this command line, and it is empty"
            )
        return super().executable(harness.model_copy(update={"program": harness.command[0]}))

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        super().check_config(config)
        harness = config.ajet.harness
        for part in harness.command:
            for name in _PLACEHOLDER.findall(part):
                if name not in NAMES or (name == "shown" and not harness.shown_folders):
                    names = ", ".join(NAMES if harness.shown_folders else NAMES[:-1])
                    raise ConfigError(
                        f"{SECTION}.command: no placeholder {{{name}}}; there are {names}",
                        code=Code.WRONG_VALUE,
                    )

    def launch(self, setting: Setting, harness: HarnessConfig) -> Launch:
        values = dataclasses.asdict(setting)
        return Launch(
            [
                _PLACEHOLDER.sub(lambda match: values[match[1]], part)
                for part in harness.command[1:]
            ],
            {
                "OPENAI_BASE_URL": setting.base_url,
                "OPENAI_API_KEY": setting.api_key,
                "ANTHROPIC_BASE_URL": setting.anthropic_url,
                "ANTHROPIC_API_KEY": setting.api_key,
            },
        )
