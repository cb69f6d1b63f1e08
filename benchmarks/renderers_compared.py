"""The library `renderers` against this project's session and tool parsers: ids and calls.

    python -m venv E && E/bin/pip install renderers trl -e .      # it is no dependency of ajet
    E/bin/python benchmarks/renderers_compared.py [--out FILE]

For every template family of the tests, both sides get the same tokenizer, messages and sampled ids:

    first      ids of a first prompt, against transformers' own render of the template
    next       ids of the next prompt after a sampled reply: whether the recorded ids come first,
               and whether the text is what the template writes of the whole conversation
    calls      what is read from sampled ids, against what ADR 0013 promises (see `PARSED`)
    round_trip how many markers of all families come back unchanged within the arguments of a call
               that the template wrote (tests/tool_parsers/test_calls_round_trip.py)
    template   a changed template, and names that the library does not know

The library picks a renderer by the model's name; here the right one is given by hand, and its
`DefaultRenderer` where it has none. Cases that one side refuses, or that a template does, are
counted and not compared. Decision record: docs/adr/0013-tool-parsers.md.

Not covered: real tokenizers. The tests' byte-level ones have each family's special tokens and a few
merges, so that ids can be compared but the library's vocabulary of gpt-oss cannot be loaded (it is
downloaded), and only its parser runs there. Templates that are not the model makers' own (OWN) are
left out of `first` and `next` where the library has a renderer of its own. Images.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tokenizers are the tests' own
os.environ["HF_HUB_OFFLINE"] = "1"

from report import ROOT, options, write

from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.inference.session import TokenSession
from ajet.tool_parsers import parser_for
from tests.fakes import FAMILY_CALL, FAMILY_EOS, ONE_CALL, chat_tokenizer, reply_ids
from tests.tool_parsers import test_calls_round_trip as trip

renderers: Any = importlib.import_module("renderers")
OURS = ("core/inference/chat_template.py", "core/inference/session.py", "tool_parsers/*.py")

TODAY = datetime.now().strftime("%d %b %Y")
CONFIGS: dict[str, Callable[[], Any]] = {
    "qwen3": renderers.Qwen3RendererConfig,
    "qwen3_instruct_2507": renderers.Qwen3RendererConfig,
    "qwen3_5_think": lambda: renderers.Qwen35RendererConfig(enable_thinking=True),
    "qwen3_5_nothink": lambda: renderers.Qwen35RendererConfig(enable_thinking=False),
    "qwen3_6": renderers.Qwen36RendererConfig,
    "qwen3_8": renderers.Qwen38RendererConfig,
    "llama3_2": lambda: renderers.Llama3RendererConfig(date_string=TODAY),
    "deepseekv3": renderers.DeepSeekR1RendererConfig,  # trl's template opens thinking, as R1's
    "gptoss": renderers.GptOssRendererConfig,
    "glm4moe": renderers.GLM45RendererConfig,
    "gemma4_v5": renderers.Gemma4RendererConfig,
    "nemotron_3_nano": renderers.Nemotron3RendererConfig,
    "kimi_k2": renderers.KimiK2RendererConfig,
    "minimax_m2": renderers.MiniMaxM2RendererConfig,
}
DEFAULT_PARSERS = {"qwen2_5": "qwen3", "deepseek_v3_1": "deepseek-v3"}
TEXT_ARGUMENTS = ("deepseekv3", "deepseek_v3_1")
OWN = ("mistral", "mistral_args", "deepseek_v3_1", "kimi_k2", "minimax_m2", "nemotron_json")
WITHOUT_VOCABULARY = ("gptoss",)
PLAIN = ["<tool_response>", "</tool_response>"]
SPECIAL = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIAL += ["<|end_of_text|>", "<|image>", "<|image|>", "<image|>"]
CALL_STOP_TOKENS = (
    "<|observation|>",
    "<|tool_response>",
)  # end a reply, no part of its call


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, *calls: tuple[str, str, dict[str, Any]], thinking: str = "") -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {"id": key, "type": "function", "function": {"name": name, "arguments": values}}
            for key, name, values in calls
        ]
    return message


def tool(text: str, key: str = "abcdefgh1") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": key}


TYPES = {
    "s": {"type": "string", "description": "A text."},
    "i": {"type": "integer"},
    "x": {"type": "number"},
    "b": {"type": "boolean"},
    "l": {"type": "array", "items": {"type": "integer"}},
    "o": {"type": "object"},
    "a": {"type": "integer"},
}
PARAMETERS = {"type": "object", "properties": TYPES, "required": ["a"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"To {name}.", "parameters": PARAMETERS},
    }
    for name in ("add", "sub")
]
VALUES = {
    "s": 'a "b"\n<c> \u00fc\u6f22',
    "i": -3,
    "x": 0.5,
    "b": True,
    "l": [1, 2],
    "o": {"k": "v"},
}
ADD = ("abcdefgh1", "add", {"a": 1})
SUB = ("abcdefgh2", "sub", {"a": 2})
ALL = ("abcdefgh1", "add", VALUES)
FOREIGN = "Gr\u00fc\u00dfe, \u6f22\u5b57, e\u0301, \U0001f389 \u0645\u0631\u062d\u0628\u0627"


@dataclass(frozen=True)
class Talk:
    """A conversation that a reply is asked for."""

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


FIRST = (
    Talk("a question", [user("hi")]),
    Talk("system, question", [system("Be brief."), user("hi")]),
    Talk("several turns", [user("1"), assistant("2"), user("3"), assistant("4"), user("5")]),
    Talk("tools offered", [system("Be brief."), user("q")], TOOLS),
    Talk("call, result", [user("q"), assistant("", ADD), tool("5")], TOOLS),
    Talk("text beside a call", [user("q"), assistant("So.", ADD), tool("5")], TOOLS),
    Talk("two calls", [user("q"), assistant("", ADD, SUB), tool("5"), tool("6", SUB[0])], TOOLS),
    Talk("every JSON type", [user("q"), assistant("", ALL), tool("5")], TOOLS),
    Talk(
        "thinking, call, result",
        [user("q"), assistant("", ADD, thinking="hm"), tool("5")],
        TOOLS,
    ),
    Talk("thinking, new question", [user("q"), assistant("4", thinking="2+2"), user("r")]),
    Talk("not ASCII", [system(FOREIGN), user(FOREIGN), assistant(FOREIGN), user(FOREIGN)]),
    Talk("white space", [user("  a\n\n b \n"), assistant(" c\n\n"), user("\n")]),
    Talk("an empty system message", [system(""), user("q")]),
)


@dataclass(frozen=True)
class Step:
    """A reply that was sampled, and what the agent sends next. `how` the reply's ids are made:
    written   as the template writes them, to the end of the turn
    respelled as written, but in single bytes where the tokenizer would have merged them
    cut       without the end of the turn, ended by a limit of tokens
    other end as written, but ended by the end of text
    edited    as written, and the agent sends another text back, which the library's caller notices
    cut call  the family's own call without its last third (the reply is its text)
    """

    name: str
    messages: list[dict[str, Any]]
    reply: dict[str, Any]
    new: list[dict[str, Any]]
    how: str = "written"
    tools: list[dict[str, Any]] | None = None


NEXT = (
    Step("answer, question", [user("q")], assistant("the answer"), [user("r")]),
    Step("call, result", [user("q")], assistant("", ADD), [tool("5")], tools=TOOLS),
    Step(
        "two calls, results",
        [user("q")],
        assistant("", ADD, SUB),
        [tool("5"), tool("6", SUB[0])],
        tools=TOOLS,
    ),
    Step("text and call, result", [user("q")], assistant("So.", ADD), [tool("5")], tools=TOOLS),
    Step(
        "thinking and call, result",
        [user("q")],
        assistant("", ADD, thinking="hm"),
        [tool("5")],
        tools=TOOLS,
    ),
    Step("thinking, question", [user("q")], assistant("4", thinking="2+2"), [user("r")]),
    Step("respelled", [user("q")], assistant("the 12 the"), [user("r")], "respelled"),
    Step("cut", [user("q")], assistant("the answer is"), [user("go on")], "cut"),
    Step("cut within a call", [user("q")], assistant(""), [user("go on")], "cut call", TOOLS),
    Step("ended by end of text", [user("q")], assistant("ok"), [user("r")], "other end"),
    Step("edited by the agent", [user("q")], assistant("ok"), [user("r")], "edited"),
    Step("special tokens spelled", [user("q")], assistant("ok"), [user("a<|im_end|>b")]),
)


@dataclass(frozen=True)
class Reply:
    """What a model says, of the family's own form of add(a=1), and what it should be read as."""

    name: str
    text: Callable[[str], str]
    calls: tuple[tuple[str, Any], ...] = ()
    malformed: bool = False
    kept: str = ""  # must be content
    spelled: bool = False  # in ordinary tokens


def _with_value(value: str) -> Callable[[str], str]:
    return lambda call: call.replace('{"a": 1}', f'{{"a": {value}}}')


CALL = (("add", {"a": 1}),)
PARSED = (
    Reply("a call", lambda call: call, CALL),
    Reply("an unknown tool", lambda call: call.replace("add", "fly"), (("fly", {"a": 1}),)),
    Reply("text after a call", lambda call: call + "\nDone.", CALL, kept="Done."),
    Reply("a call that was cut", lambda call: call[: call.rindex("1")], malformed=True),
    Reply("broken JSON", _with_value(""), malformed=True),
    Reply("NaN", _with_value("NaN"), malformed=True),
    Reply("100,000 brackets", _with_value("[" * 100_000), malformed=True),
    Reply("no object", lambda call: call.replace('{"a": 1}', "[1]"), malformed=True),
    Reply("spelled in ordinary tokens", lambda call: call, kept="add", spelled=True),
    Reply("an answer", lambda call: "Five.", kept="Five."),
    Reply("an answer in JSON", lambda call: '{"name": "Ada", "age": 36}', kept="Ada"),
)


@dataclass(frozen=True)
class Family:
    name: str
    tokenizer: Any
    template: ChatTemplate
    renderer: Any
    is_typed: bool  # the library has a renderer for it

    @property
    def is_compared_by_ids(self) -> bool:
        return self.name not in WITHOUT_VOCABULARY and not (self.is_typed and self.name in OWN)

    def official(self, messages: Sequence[dict[str, Any]], tools: Any) -> list[int] | None:
        """Transformers' own render, None where the template refuses the conversation."""
        shaped = [self._shaped(message) for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                shaped, tools=tools, add_generation_prompt=True, tokenize=False
            )
        except Exception:  # noqa: BLE001 - templates raise what they like
            return None
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _shaped(self, message: dict[str, Any]) -> dict[str, Any]:
        """In the form that the template takes (see `ChatTemplate`)."""
        shaped = dict(message)
        if self.name == "gptoss" and "reasoning_content" in shaped:
            shaped["thinking"] = shaped.pop("reasoning_content")
        if self.name in TEXT_ARGUMENTS and "tool_calls" in shaped:
            shaped["tool_calls"] = [_with_text_arguments(call) for call in shaped["tool_calls"]]
        return shaped


def _with_text_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def family(name: str) -> Family:
    tokenizer = chat_tokenizer(name)
    known = set(tokenizer.get_vocab())
    tokenizer.add_tokens([token for token in PLAIN if token not in known])
    tokenizer.add_tokens([t for t in SPECIAL if t not in known], special_tokens=True)
    is_typed = name in CONFIGS
    config = (
        CONFIGS[name]()
        if is_typed
        else renderers.DefaultRendererConfig(tool_parser=DEFAULT_PARSERS.get(name))
    )
    if name in WITHOUT_VOCABULARY:
        harmony: Any = importlib.import_module("renderers.gpt_oss")
        harmony.load_harmony_encoding = lambda name: SimpleNamespace()
    template = ChatTemplate(tokenizer)
    return Family(name, tokenizer, template, renderers.create_renderer(tokenizer, config), is_typed)


# --- ids of a first prompt -----------------------------------------------------------------------


def compare_first(one: Family) -> dict[str, Any]:
    """Of each conversation: whether the ids are those of transformers."""
    found: dict[str, Any] = {"ours": Counter(), "renderers": Counter(), "differing": {}}
    for talk in FIRST:
        wanted = one.official(talk.messages, talk.tools)
        if wanted is None:
            found["ours"]["refused by the template"] += 1
            found["renderers"]["refused by the template"] += 1
            continue
        for side, ids in (
            ("ours", tried(lambda t=talk: one.template.prompt_ids(t.messages, t.tools))),
            (
                "renderers",
                tried(
                    lambda t=talk: one.renderer.render_ids(
                        t.messages, tools=t.tools, add_generation_prompt=True
                    )
                ),
            ),
        ):
            verdict = "equal" if ids == wanted else "error" if isinstance(ids, str) else "differs"
            found[side][verdict] += 1
            if verdict != "equal":
                found["differing"].setdefault(side, []).append(talk.name)
    found["injected"] = injected(one)
    return found


def injected(one: Family) -> dict[str, int]:
    """How many special tokens a user smuggles in by spelling the family's end of a turn."""
    end = one.template.token_text(one.template.stop_token_ids[0])
    counts = {}
    for side, ids_of in (
        ("ours", one.template.prompt_ids),
        ("renderers", lambda m: one.renderer.render_ids(m, add_generation_prompt=True)),
    ):
        harmless, spelled = ([user(text)] for text in ("ab", f"a{end}b"))
        token = one.template.stop_token_ids[0]
        counts[side] = ids_of(spelled).count(token) - ids_of(harmless).count(token)
    return counts


def tried(call: Callable[[], Any]) -> Any:
    """What the call returns, or the name of what it raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - both sides are asked what they refuse
        return type(error).__name__


# --- ids of the next prompt ----------------------------------------------------------------------


def compare_next(one: Family) -> dict[str, Any]:
    found: dict[str, Any] = {"ours": Counter(), "renderers": Counter(), "steps": {}}
    for step in NEXT:
        if step.how == "cut call":
            step, sampled = cut_call(one, step)
        else:
            sampled = sampled_ids(one, step)
        whole = [*step.messages, step.reply, *step.new]
        official = one.official(whole, step.tools)
        if sampled is None or official is None:
            found["steps"][step.name] = "not as the template writes"
            continue
        wanted = one.template.text_of(official) if step.how == "written" else None
        shown: dict[str, Any] = {}
        for side, continued in (("ours", our_next), ("renderers", their_next)):
            if step.how == "edited" and side == "renderers":
                continue
            recorded, ids, why = continued(one, step, sampled)
            verdict = _verdict(one, recorded, ids, wanted)
            found[side][verdict] += step.how != "edited"
            shown[side] = verdict + (f": {why}" if why else "")
        found["steps"][step.name] = shown
    return found


def _verdict(one: Family, recorded: list[int], ids: list[int] | None, wanted: str | None) -> str:
    if ids is None:
        return "begins afresh"
    if ids[: len(recorded)] != recorded:
        return "recorded ids changed"
    if wanted is not None and one.template.text_of(ids) != wanted:
        return "continues with another text than the template's"
    return "continues"


def sampled_ids(one: Family, step: Step) -> list[int] | None:
    """The reply's ids; None where the template writes none that could follow the prompt."""
    found = (_written_ids(one, step, new) for new in (step.new, []))
    ids = next(filter(None, found), None)
    if ids is None or step.how in ("written", "edited"):
        return ids
    if step.how == "respelled":
        return [*one.template.text_of(ids[:-1]).encode(), ids[-1]]
    end = {"cut": [], "other end": [one.tokenizer.convert_tokens_to_ids("<|endoftext|>")]}
    return [*ids[:-1], *end[step.how]]


def _written_ids(one: Family, step: Step, new: list[dict[str, Any]]) -> list[int] | None:
    """What the template writes of the reply, if that follows the prompt and holds its thinking."""
    whole = [*step.messages, step.reply, *new]
    prompt = tried(lambda: one.template.render(step.messages, step.tools))
    history = tried(lambda: one.template.render(whole, step.tools, add_generation_prompt=False))
    thinking = step.reply.get("reasoning_content", "")
    if not history.startswith(prompt) or thinking not in history[len(prompt) :]:
        return None
    return reply_ids(one.template, step.messages, step.tools, step.reply, *new)


def cut_call(one: Family, step: Step) -> tuple[Step, list[int] | None]:
    """The step with what an agent is told of the cut call, and the ids of that."""
    call = FAMILY_CALL.get(one.name)
    if call is None:
        return step, None
    ids = one.template.encode(call)
    ids = ids[: len(ids) * 2 // 3]
    return replace(step, reply=assistant(our_calls(one, ids)[1])), ids


def our_next(
    one: Family, step: Step, sampled: list[int]
) -> tuple[list[int], list[int] | None, str | None]:
    """What was recorded, the next prompt's ids (None if a branch begins), and why so."""
    session = TokenSession(one.template)
    prompt = session.prompt_for(step.messages, step.tools)
    finish = "length" if step.how.startswith("cut") else "stop"
    logprobs = (0.0,) * len(sampled)
    completion = Completion(tuple(prompt.ids), tuple(sampled), logprobs, finish, 0)
    session.record(step.messages, step.tools, step.reply, completion)
    shown = {**step.reply, "content": "edited"} if step.how == "edited" else step.reply
    after = session.prompt_for([*step.messages, shown, *step.new], step.tools)
    recorded = [*prompt.ids, *sampled]
    return recorded, (after.ids if after.continues else None), after.reason


def their_next(
    one: Family, step: Step, sampled: list[int]
) -> tuple[list[int], list[int] | None, str | None]:
    """As `our_next`. That the agent edited the reply is for the library's caller to notice."""
    prompt = one.template.prompt_ids(step.messages, step.tools)
    recorded = [*prompt, *sampled]
    if not hasattr(one.renderer, "bridge_to_next_turn"):
        return recorded, None, "no bridge"
    bridged = tried(
        lambda: one.renderer.bridge_to_next_turn(prompt, sampled, step.new, tools=step.tools)
    )
    if isinstance(bridged, str):
        return recorded, None, bridged
    return recorded, None if bridged is None else list(bridged.token_ids), None


# --- what is read --------------------------------------------------------------------------------


def compare_calls(one: Family) -> dict[str, Any]:
    found: dict[str, Any] = {"ours": Counter(), "renderers": Counter(), "otherwise": {}}
    for reply, ids in cases(one):
        for side, read in (("ours", our_calls), ("renderers", their_calls)):
            got = tried(lambda read=read, ids=ids: read(one, ids))
            verdict, detail = how_read(reply, got)
            found[side][verdict] += 1
            if detail:
                found["otherwise"].setdefault(side, {})[reply.name] = f"{verdict}: {detail}"
    return found


def cases(one: Family) -> Iterator[tuple[Reply, list[int]]]:
    """What is said, and its ids. Cases for which the family's form has no place are left out."""
    if one.name not in FAMILY_CALL:
        return
    call = FAMILY_CALL[one.name]
    for token in CALL_STOP_TOKENS:
        call = call.removesuffix(token)
    for reply in PARSED:
        if reply.kept == "Done." and call.endswith("<|call|>"):
            continue  # which ends the reply
        text = _said(one, reply, reply.text(call))
        ids = one.template.encode(one.template.marked(text) if reply.spelled else text)
        changes = ids != one.template.encode(_said(one, reply, call))
        if changes or not (reply.malformed or reply.spelled):
            yield reply, ids
    for message in written_replies(one):
        asked = [call["function"] for call in message["tool_calls"]]
        reply = Reply(
            f"as the template writes {len(asked)}",
            str,
            tuple((function["name"], function["arguments"]) for function in asked),
        )
        ids = reply_ids(one.template, [user("q")], TOOLS, message, *results(message))
        text = one.template.text_of(ids)
        begin = _said(one, reply, text).removesuffix(text)
        yield reply, [*one.template.encode(begin), *ids]


def _said(one: Family, reply: Reply, text: str) -> str:
    """The text after what the family's models write before it: thinking, a channel's name."""
    prompt = one.template.render([user("q")], TOOLS)
    if "</think>" not in text and prompt.rstrip().endswith("<think>"):
        return f"hm\n</think>\n\n{text}"
    if "</think>" not in text and one.name == "glm4moe":
        return f"<think>hm</think>\n{text}"
    is_answer = not (reply.calls or reply.malformed or reply.spelled)
    return f"<|channel|>final<|message|>{text}" if is_answer and one.name == "gptoss" else text


def written_replies(one: Family) -> list[dict[str, Any]]:
    replies = [assistant("", ALL)]
    return replies if one.name in ONE_CALL else [*replies, assistant("", ALL, SUB)]


def results(reply: dict[str, Any]) -> list[dict[str, Any]]:
    return [tool("5", call["id"]) for call in reply["tool_calls"]]


def how_read(reply: Reply, got: Any) -> tuple[str, str]:
    """A verdict, and what was found instead where the reply was not read as promised."""
    if isinstance(got, str):
        return "raised", got
    calls, content, malformed = got
    if calls != list(reply.calls):
        return "other calls", str(calls)[:120]
    if bool(malformed) != reply.malformed:
        return "malformed or not", "malformed" if malformed else "nothing is malformed"
    lost = reply.kept not in content
    return ("text is lost", reply.kept) if lost else ("as promised", "")


def compare_round_trip(one: Family) -> dict[str, Any]:
    """Counts markers that come back. `renderers_values` is lenient: no `$ref` in the schema, no
    line break at the end of a value, and the library may call the call invalid."""
    names = ("ours", "renderers", "renderers_values")
    counts: dict[str, Any] = {"markers": len(trip.MARKERS), **dict.fromkeys(names, 0)}
    thinking = "hm" if one.name in trip.THINKS else None
    prompt = one.template.prompt_ids(trip.QUESTION, trip.TOOLS)

    def read(arguments: dict[str, Any]) -> list[Any]:
        call = {"name": "add", "arguments": arguments}
        calls = [{"id": "call00000", "type": "function", "function": call}]
        reply = {"role": "assistant", "content": "", "tool_calls": calls}
        if thinking:
            reply["reasoning_content"] = thinking
        ids = reply_ids(one.template, trip.QUESTION, trip.TOOLS, reply, tool("5", "call00000"))
        if one.name == "gptoss":
            ids = [*one.template.encode("<|start|>assistant"), *ids]
        parse = partial(one.renderer.parse_response, tools=trip.TOOLS, prompt_ids=prompt)
        parsed = tried(partial(parse, ids))
        return [] if isinstance(parsed, str) else parsed.tool_calls

    for marker in trip.MARKERS:
        text = f"a {marker} b\n{marker}"
        lenient = {"s": marker, "l": [marker, {"k": text}], "o": {"k": {"k": [marker]}}}
        text += "\n"
        strict = {**lenient, "r": text, "l": [marker, {"k": text}]}
        asked = [("add", strict)]
        counts["ours"] += trip.read_back(one.name, asked, thinking) == (asked, thinking, ())
        good = [call for call in read(strict) if call.status == renderers.ToolCallParseStatus.OK]
        counts["renderers"] += [_plain(call.arguments) for call in good] == [strict]
        counts["renderers_values"] += [_plain(c.arguments) for c in read(lenient)] == [lenient]
    return counts


def _plain(arguments: Any) -> Any:
    return tried(lambda: json.loads(arguments)) if isinstance(arguments, str) else arguments


def our_calls(one: Family, ids: list[int]) -> tuple[list[Any], str, bool]:
    """Calls, content, and whether something was malformed."""
    parser = parser_for(one.template)
    parsed = parser.parse(
        one.template.decode(ids, keep=parser.special_tokens), TOOLS
    ).without_marks()
    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    return calls, parsed.content, bool(parsed.malformed)


def their_calls(one: Family, ids: list[int]) -> tuple[list[Any], str, bool]:
    prompt = one.template.prompt_ids([user("q")], TOOLS)
    if one.name == "gptoss":  # its own prompts end later than the template's
        ids = [*one.template.encode("<|start|>assistant"), *ids]
    parsed = one.renderer.parse_response(ids, tools=TOOLS, prompt_ids=prompt)
    ok = renderers.ToolCallParseStatus.OK
    good = [(call.name, call.arguments) for call in parsed.tool_calls if call.status == ok]
    return good, parsed.content, any(call.status != ok for call in parsed.tool_calls)


# --- templates and names -------------------------------------------------------------------------


def compare_templates() -> dict[str, Any]:
    """A user's own template, and which renderer a name gets."""
    tokenizer = family("qwen3").tokenizer
    tokenizer.chat_template = tokenizer.chat_template.replace("# Tools", "# My tools")
    messages = [user("q")]
    wanted = tokenizer.apply_chat_template(
        messages, tools=TOOLS, add_generation_prompt=True, return_dict=False
    )
    typed = renderers.create_renderer(tokenizer, renderers.Qwen3RendererConfig())
    default = renderers.create_renderer(tokenizer, renderers.DefaultRendererConfig())
    chosen = {}
    for name in ("Qwen/Qwen3-8B", "models/Qwen3-8B", "somebody/Qwen3-8B-tuned"):
        tokenizer.name_or_path = name
        chosen[name] = type(renderers.create_renderer(tokenizer)).__name__
    return {
        "own_template_equal": {
            "ours": ChatTemplate(tokenizer).prompt_ids(messages, TOOLS) == wanted,
            "renderers, typed": typed.render_ids(messages, tools=TOOLS, add_generation_prompt=True)
            == wanted,
            "renderers, default": default.render_ids(
                messages, tools=TOOLS, add_generation_prompt=True
            )
            == wanted,
        },
        "default_continues": default.bridge_to_next_turn([1], [2], messages) is not None,
        "renderer_of_a_name": chosen,
    }


# --- together ------------------------------------------------------------------------------------


def measure(name: str) -> dict[str, Any]:
    one = family(name)
    shown: dict[str, Any] = {
        "renderer": type(one.renderer).__name__,
        "template_is_our_own": name in OWN,
        "calls": compare_calls(one),
    }
    if one.name in FAMILY_CALL:
        shown["round_trip"] = compare_round_trip(one)
    if one.is_compared_by_ids:
        shown["first"] = compare_first(one)
        shown["next"] = compare_next(one)
    return shown


def totals(families: dict[str, Any]) -> dict[str, Any]:
    """Sums over the families, apart for those with a renderer of their own."""
    groups = {"typed": [], "default": []}
    for found in families.values():
        groups["default" if found["renderer"] == "DefaultRenderer" else "typed"].append(found)
    return {group: {**_sums(rows), "families": len(rows)} for group, rows in groups.items()}


def _sums(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for what in ("first", "next", "calls"):
        for side in ("ours", "renderers"):
            counted: Counter[str] = Counter()
            for row in rows:
                counted.update(row.get(what, {}).get(side, {}))
            sums.setdefault(what, {})[side] = dict(counted)
    trips = [row["round_trip"] for row in rows if "round_trip" in row]
    sums["round_trip"] = {
        name: sum(counts[name] for counts in trips)
        for name in ("markers", "ours", "renderers", "renderers_values")
    }
    sums["injected"] = {
        side: sum(row["first"]["injected"][side] > 0 for row in rows if "first" in row)
        for side in ("ours", "renderers")
    }
    return sums


def lines(root: Path, patterns: Sequence[str]) -> int:
    paths = [path for pattern in patterns for path in root.glob(pattern)]
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def health() -> dict[str, Any]:
    about = importlib.metadata.metadata("renderers")
    return {
        "version": about["Version"],
        "licence": about["License-Expression"],
        "requires": importlib.metadata.requires("renderers"),
        "lines": {
            "renderers": lines(Path(renderers.__file__).parent, ("*.py",)),
            "ours": lines(ROOT / "ajet", OURS),
        },
    }


def main() -> None:
    args = options(__doc__, "renderers_compared").parse_args()
    families = {}
    for name in FAMILY_EOS:
        families[name] = measure(name)
        print(json.dumps({name: families[name]}, ensure_ascii=False), flush=True)
    document = {"health": health(), "totals": totals(families), "templates": compare_templates()}
    write(args.out, document)


if __name__ == "__main__":
    main()
