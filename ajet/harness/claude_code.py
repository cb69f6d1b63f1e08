"""`harness:claude-code`: Anthropic's Claude Code, over the Messages API. Tried: 2.1.331."""

from __future__ import annotations

from ajet.core.config.services import HarnessConfig
from ajet.harness.workflow import HarnessWorkflow, Launch, Setting


class ClaudeCode(HarnessWorkflow):
    """Runs ``claude --print``. All of its models are the one in training."""

    name = "harness:claude-code"
    program = "claude"

    def launch(self, setting: Setting, harness: HarnessConfig) -> Launch:
        models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
        models += tuple(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("HAIKU", "SONNET", "OPUS"))
        return Launch(
            ["--print", "--dangerously-skip-permissions", *harness.arguments, "--", setting.prompt],
            {
                "ANTHROPIC_BASE_URL": setting.anthropic_url,
                "ANTHROPIC_API_KEY": setting.api_key,
                **dict.fromkeys(models, setting.model),
                "CLAUDE_CONFIG_DIR": f"{setting.home}/.claude",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_MAX_RETRIES": "0",
                "DISABLE_AUTOUPDATER": "1",
                "DISABLE_TELEMETRY": "1",
                "MAX_THINKING_TOKENS": "0",
                "IS_SANDBOX": "1",  # without it, it refuses to run as root, as in podman
            },
        )
