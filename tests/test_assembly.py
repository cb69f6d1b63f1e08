"""What is said about a chat template that shows no tools, or whose calls are not read; torch's
rounding."""

from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from loguru import logger

from ajet.assembly import make_template, prepare_torch
from ajet.core.config.tree import AjetConfig
from ajet.tool_parsers import parser_for
from tests.fakes import chat_tokenizer

NO_TOOLS = "the chat template has no place for tools: the model does not see them"
TOOL = {"type": "function", "function": {"name": "stop", "description": "", "parameters": {}}}
NOT_READ = "no parser for the chat template's form of tool calls: they stay text, unless "
NOT_READ += "ajet.rollout.tool_parser names one"


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("qwen2_5", []),
        ("qwen3_6", []),
        ("llama3_1", []),
        ("mistral", []),
        ("deepseek_v3_1", []),
        ("gptoss", []),
        ("llama3", [NO_TOOLS]),
        ("deepseekv3", [NO_TOOLS]),
        ("glm4moe", []),
        ("kimi_k2", []),
        ("minimax_m2", []),
        ("nemotron_json", []),
        ("nemotron_3_nano", []),
        ("gemma4_v5", []),
        ("lfm2_v2", [NOT_READ]),
    ],
)
def test_a_template_that_shows_no_tools_or_whose_calls_are_not_read_is_noticed(family, said):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=None))
    loaded = SimpleNamespace(tokenizer=chat_tokenizer(family), model=model)
    heard = []
    sink = logger.add(lambda line: heard.append(line.strip()), format="{message}")
    template = make_template(loaded)
    template.prompt_ids([{"role": "user", "content": "hi"}])
    without_tools = list(heard)
    for _ in range(2):
        template.prompt_ids([{"role": "user", "content": "hi"}], [TOOL])
    logger.remove(sink)
    assert without_tools == [line for line in said if line == NOT_READ]
    assert heard == said
    assert (
        parser_for(template, "hermes").parse('<tool_call>{"name": "stop"}</tool_call>').tool_calls
    )


def test_threads_that_are_started_later_compute_with_subnormal_numbers_as_0():
    smallest_normal, found = torch.tensor([2.0**-126]), []

    def work():  # in a thread, whose rounding ends with it
        found.append((smallest_normal / 2).item())
        prepare_torch(AjetConfig())
        later = Thread(target=lambda: found.append((smallest_normal / 2).item()))
        later.start()
        later.join()

    first = Thread(target=work)
    first.start()
    first.join()
    assert found == [2.0**-127, 0.0]
