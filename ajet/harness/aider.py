"""`harness:aider`: aider, over Chat Completions, without tools: the model writes edits as text.
Tried: 0.86.2."""

from __future__ import annotations

import json

from ajet.core.config.services import HarnessConfig
from ajet.harness.workflow import HarnessWorkflow, Launch, Setting

KNOWN = {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 1_000_000}
"""What aider would look up on the network. ajet's limits are smaller."""


class Aider(HarnessWorkflow):
    """Runs ``aider --message``. Name the files that the model may edit from the start in
    `ajet.harness.arguments`."""

    name = "harness:aider"
    program = "aider"

    def launch(self, setting: Setting, harness: HarnessConfig) -> Launch:
        off = ("git", "check-update", "show-model-warnings", "show-release-notes", "analytics")
        off += ("detect-urls", "suggest-shell-commands", "pretty", "fancy-input", "gitignore")
        return Launch(
            [
                "--model",
                f"openai/{setting.model}",
                "--yes-always",
                "--chat-history-file",
                f"{setting.home}/chat_history.md",
                "--input-history-file",
                f"{setting.home}/input_history",
                *(f"--no-{name}" for name in off),
                *harness.arguments,
                "--message",
                setting.prompt,
            ],
            {
                "OPENAI_API_BASE": setting.base_url,
                "OPENAI_API_KEY": setting.api_key,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            {".aider.model.metadata.json": json.dumps({f"openai/{setting.model}": KNOWN})},
        )
