"""`harness:codex`: OpenAI's Codex, over the Responses API. Tried: 0.169.0."""

from __future__ import annotations

import json

from ajet.core.config.services import HarnessConfig
from ajet.harness.workflow import HarnessWorkflow, Launch, Setting

CONFIG = """\
model = {model}
model_provider = "ajet"
check_for_update_on_startup = false
web_search = "disabled"
model_context_window = {context}

[model_providers.ajet]
name = "ajet"
base_url = {base_url}
env_key = "AJET_MODEL_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[history]
persistence = "none"
"""
CONTEXT = 1_000_000
"""Tokens after which Codex would shorten its history; ajet's limits are smaller."""


class Codex(HarnessWorkflow):
    """Runs ``codex exec`` in ajet's sandbox, with Codex's turned off."""

    name = "harness:codex"
    program = "codex"

    def launch(self, setting: Setting, harness: HarnessConfig) -> Launch:
        config = CONFIG.format(
            model=json.dumps(setting.model), base_url=json.dumps(setting.base_url), context=CONTEXT
        )
        arguments = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return Launch(
            [*arguments, *harness.arguments, setting.prompt],
            {"CODEX_HOME": f"{setting.home}/.codex", "AJET_MODEL_KEY": setting.api_key},
            {".codex/config.toml": config},
        )
