"""A recorder that notes the messages which reach it, images and all, and tiny images for them."""

import io

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.task.chat_messages import shown_text
from ajet.core.trajectory.recorder import EpisodeRecorder
from tests.fakes import ScriptedEndpoint, chat_tokenizer, recorder_parts

TOKENIZER = chat_tokenizer("qwen2_5")
TEMPLATE = ChatTemplate(TOKENIZER)


class SeeingRecorder(EpisodeRecorder):
    """`seen` has the messages of each call. The model reads text, with marks for images, and says
    the replies in order, then the last one."""

    def __init__(self, *replies):
        def reply(_prompt, request_id):
            return replies[min(int(request_id[-4:]), len(replies) - 1)]

        super().__init__(**recorder_parts(ScriptedEndpoint(TOKENIZER, reply), TEMPLATE))
        self.seen = []

    async def chat(self, messages, *arguments, **options):
        self.seen.append([dict(message) for message in messages])
        told = [{**message, "content": shown_text(message.get("content"))} for message in messages]
        return await super().chat(told, *arguments, **options)


def png(color="red"):
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 4), color).save(file, "PNG")
    return file.getvalue()
