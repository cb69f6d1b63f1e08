"""An episode whose agent is the test."""

import asyncio

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.trajectory.limits import EpisodeLimits
from ajet.core.trajectory.recorder import EpisodeRecorder
from tests.fakes import ScriptedEndpoint, chat_tokenizer, recorder_parts

TOKENIZER = chat_tokenizer("qwen2_5")
TEMPLATE = ChatTemplate(TOKENIZER)
HI = [{"role": "user", "content": "hi"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class SlowEndpoint(ScriptedEndpoint):
    """Answers when `go` is set; `aborted` are the requests that were given up."""

    def __init__(self, reply="ok"):
        super().__init__(TOKENIZER, lambda *_: reply)
        self.asked, self.go, self.aborted = asyncio.Event(), asyncio.Event(), []

    async def generate(self, prompt_ids, sampling, request_id):
        self.asked.set()
        await self.go.wait()
        return await super().generate(prompt_ids, sampling, request_id)

    def abort(self, request_id):
        self.aborted.append(request_id)


def recorder(reply="ok", endpoint=None, episode_id="e", targets=None, **limits):
    said = reply if callable(reply) else lambda prompt, request_id: reply
    parts = recorder_parts(
        endpoint or ScriptedEndpoint(TOKENIZER, said),
        TEMPLATE,
        limits=EpisodeLimits(**limits),
        episode_id=episode_id,
        seed_path=(0, episode_id),
        trainable_targets=targets,
    )
    return EpisodeRecorder(**parts)
