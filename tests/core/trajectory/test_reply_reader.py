"""A reply is read in one place: stop strings, calls that stay text, the first call alone."""

import pytest

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.trajectory.reply_reader import ReplyReader
from ajet.core.trajectory.turn import TurnNotes
from ajet.tool_parsers import parser_for
from tests.fakes import FAMILY_CALL, chat_tokenizer

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
SAMPLED_IDS = {"mistral": "abcdefghi", "kimi_k2": "functions.add:0"}  # in FAMILY_CALL


def reader_of(family):
    tokenizer = chat_tokenizer(family)
    template = ChatTemplate(tokenizer)
    return ReplyReader(template, parser_for(template)), tokenizer


def completion(ids):
    return Completion((1,), tuple(ids), (0.0,) * len(ids), "stop", 0)


@pytest.mark.parametrize("family", ["qwen2_5", "mistral", "gptoss"])
def test_a_stop_string_that_spells_a_special_token_ends_the_text_before_it(family):
    reader, tokenizer = reader_of(family)
    ids = [*b"before[TOOL_CALLS]after"]
    for stop in ("[TOOL_CALLS]", "LS]a"):
        cut, stopped_at = reader.truncate_at_stop(completion(ids), (stop,))
        assert stopped_at == stop
        assert tokenizer.decode(cut.token_ids).endswith(stop)
        said = reader.read(0, cut, [ADD], TurnNotes(stopped_at=stopped_at)).message["content"]
        assert said == "before[TOOL_CALLS]after".partition(stop)[0]


@pytest.mark.parametrize("family", sorted(FAMILY_CALL))
def test_a_call_is_read_shown_alone_or_left_as_text(family):
    reader, tokenizer = reader_of(family)
    said = completion(tokenizer.encode(FAMILY_CALL[family], add_special_tokens=False))
    called = reader.read(3, said, [ADD], TurnNotes())
    [call] = called.message["tool_calls"]
    assert call["id"] == SAMPLED_IDS.get(family, "call_0003_0")
    left = reader.read(3, said, [ADD], TurnNotes(calls_are_text=True)).message
    assert "tool_calls" not in left and left["content"] == called.text
    assert reader.read(3, said, None, TurnNotes()).message == left
