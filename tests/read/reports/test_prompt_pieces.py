"""A render that is encoded piece by piece has the ids of the whole."""

import random

import pytest

from ajet.core.inference.chat_template import ChatTemplate
from ajet.read.reports.audit import PromptPieces
from tests.fakes import FAMILY_TOKENS, chat_tokenizer

TEXTS = (
    "the",
    " ",
    "\n",
    "\n\n",
    "<|",
    "|>",
    "12",
    "é😀",
    "<think>",
    "</tool_call>",
    "<|im_end|>",
    "a",
)


def pieces_of(template, text):
    return [i for ids in PromptPieces(template).encode(text) for i in ids]


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", *FAMILY_TOKENS])
def test_the_pieces_of_a_render_have_the_ids_of_the_whole(family):
    template, rng = ChatTemplate(chat_tokenizer(family)), random.Random(0)
    specials = sorted(template._control_ids)
    for _ in range(100):
        parts = [rng.choice(rng.choice((TEXTS, specials))) for _ in range(rng.randint(0, 12))]
        text = "".join(rng.choice((part, template.marked(part))) for part in parts)
        assert pieces_of(template, text) == template.encode(text)


@pytest.mark.parametrize("strip", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_tokens_that_take_white_space_or_count_as_words_alone_change_no_ids(strip):
    from tokenizers import AddedToken

    tokenizer = chat_tokenizer("qwen2_5")
    tokenizer.add_tokens([AddedToken("END", normalized=False, **strip)])
    template = ChatTemplate(tokenizer)
    for text in (
        "a END b",
        "aEND b",
        "END END",
        " \nEND\n <|im_end|> END",
        "END",
        "xEND<|im_end|>END",
    ):
        assert pieces_of(template, text) == template.encode(text)


def test_a_piece_that_repeats_is_encoded_once():
    template = ChatTemplate(chat_tokenizer("qwen2_5"))
    pieces = PromptPieces(template)
    encoded = []
    encode = template.encode
    template.encode = lambda text: encoded.append(text) or encode(text)
    for _ in range(2):
        list(pieces.encode("<|im_start|>the<|im_end|>the<|im_end|>"))
    assert encoded == ["<|im_start|>the<|im_end|>", "<|im_end|>the<|im_end|>"]
