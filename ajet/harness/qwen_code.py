"""`harness:qwen-code`: Qwen Code, over Chat Completions. Tried: 0.24.4."""

from __future__ import annotations

import json

from ajet.core.config.services import HarnessConfig
from ajet.harness.workflow import HarnessWorkflow, Launch, Setting

SETTINGS = {
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "security": {"auth": {"selectedType": "openai"}},
}


class QwenCode(HarnessWorkflow):
    """Runs ``qwen --prompt`` with all tools allowed."""

    name = "harness:qwen-code"
    program = "qwen"

    def launch(self, setting: Setting, harness: HarnessConfig) -> Launch:
        return Launch(
            ["--yolo", *harness.arguments, "--prompt", setting.prompt],
            {
                "OPENAI_BASE_URL": setting.base_url,
                "OPENAI_API_KEY": setting.api_key,
                "OPENAI_MODEL": setting.model,
            },
            {".qwen/settings.json": json.dumps(SETTINGS)},
        )
