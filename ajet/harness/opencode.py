"""`harness:opencode`: opencode, over Chat Completions. Tried: 1.18.33."""

from __future__ import annotations

import json

from ajet.core.config.services import HarnessConfig
from ajet.harness.workflow import HarnessWorkflow, Launch, Setting

CONTEXT, OUTPUT = 1_000_000, 100_000
"""Tokens after which opencode would shorten its history; ajet's limits are smaller."""

TITLE = "task"
"""The session's title; without one opencode asks the model for it, in a call that would be part of
the episode."""


class OpenCode(HarnessWorkflow):
    """Runs ``opencode run`` with all tools allowed."""

    name = "harness:opencode"
    program = "opencode"

    def launch(self, setting: Setting, harness: HarnessConfig) -> Launch:
        model = {"name": setting.model, "limit": {"context": CONTEXT, "output": OUTPUT}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": setting.base_url, "apiKey": setting.api_key},
            "models": {setting.model: model},
        }
        config = {
            "provider": {"ajet": provider},
            "model": f"ajet/{setting.model}",
            "small_model": f"ajet/{setting.model}",
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
        }
        return Launch(
            ["run", "--title", TITLE, *harness.arguments, "--", setting.prompt],
            {
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            },
            {".config/opencode/opencode.json": json.dumps(config)},
        )
