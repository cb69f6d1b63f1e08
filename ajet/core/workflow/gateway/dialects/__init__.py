"""The wire formats of model APIs, one file each, to and from `ChatRequest` and turns."""

from ajet.core.workflow.gateway.dialects.chat_completions import ChatCompletions
from ajet.core.workflow.gateway.dialects.dialect import Dialect
from ajet.core.workflow.gateway.dialects.messages import Messages
from ajet.core.workflow.gateway.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Responses(), Messages())

__all__ = ["DIALECTS", "Dialect"]
