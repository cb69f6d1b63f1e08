"""Hand-written stand-ins at the project's seams, shared by all tests."""

from ajet.core.inference.endpoint import ModelEndpoint

# --- a tokenizer with the real chat templates ----------------------------------------------------

SPECIAL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
MISTRAL_TOKENS = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
MISTRAL_TOKENS += ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>")
HARMONY_TOKENS += ("<|call|>", "<|return|>")
GLM_TOKENS = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
GLM_TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
KIMI_TOKENS = ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>")
KIMI_TAGS = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)
MINIMAX_TOKENS = ("]~!b[", "]~b]", "[e~[")
MINIMAX_TAGS = ("<minimax:tool_call>", "</minimax:tool_call>")
GEMMA_TOKENS = ("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>")
GEMMA_TOKENS += ("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", '<|"|>')
GEMMA_TOKENS += ("<|tool_response>", "<tool_response|>")
NOT_CALLED_SPECIAL = {*DEEPSEEK_TOKENS[2:], *GLM_TAGS, *KIMI_TAGS, *MINIMAX_TAGS}
FAMILY_TOKENS = {
    "llama3_1": ("<|python_tag|>", "<|eom_id|>"),
    "llama3_2": ("<|python_tag|>", "<|eom_id|>"),
    "mistral": MISTRAL_TOKENS,
    "mistral_args": MISTRAL_TOKENS,
    "deepseekv3": DEEPSEEK_TOKENS,
    "deepseek_v3_1": DEEPSEEK_TOKENS,
    "gptoss": HARMONY_TOKENS,
    "glm4moe": GLM_TOKENS + GLM_TAGS,
    "kimi_k2": KIMI_TOKENS + KIMI_TAGS,
    "minimax_m2": MINIMAX_TOKENS + MINIMAX_TAGS,
    "gemma4_v5": GEMMA_TOKENS,
}
LLAMAS = ("llama3", "llama3_1", "llama3_2", "nemotron_json")
BOS = dict.fromkeys(LLAMAS, "<|begin_of_text|>") | {"gemma4_v5": "<bos>"}
FAMILY_EOS = {
    "qwen2_5": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "qwen3_instruct_2507": "<|im_end|>",
    "qwen3_5_think": "<|im_end|>",
    "qwen3_5_nothink": "<|im_end|>",
    "qwen3_6": "<|im_end|>",
    "qwen3_8": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "mistral": "</s>",
    "mistral_args": "</s>",
    "deepseekv3": "<｜end▁of▁sentence｜>",
    "deepseek_v3_1": "<｜end▁of▁sentence｜>",
    "gptoss": "<|return|>",
    "glm4moe": "<|endoftext|>",
    "kimi_k2": "<|im_end|>",
    "minimax_m2": "[e~[",
    "nemotron_json": "<|eot_id|>",
    "nemotron_3_nano": "<|im_end|>",
    "gemma4_v5": "<eos>",
    "lfm2_v2": "<|im_end|>",  # the one whose calls are not read
}
QWEN_CODER_CALL = (
    "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
)
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
HERMES_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
FAMILY_CALL = {  # add(a=1), as the family's models write it
    "qwen2_5": HERMES_CALL,
    "qwen3": HERMES_CALL,
    "qwen3_instruct_2507": HERMES_CALL,
    "qwen3_5_think": f"So I add.\n</think>\n\n{QWEN_CODER_CALL}",
    "qwen3_5_nothink": QWEN_CODER_CALL,
    "qwen3_6": f"So I add.\n</think>\n\n{QWEN_CODER_CALL}",
    "qwen3_8": f"So I add.\n</think>\n\n{QWEN_CODER_CALL}",
    "llama3_1": '{"name": "add", "parameters": {"a": 1}}',
    "llama3_2": '<|python_tag|>{"name": "add", "parameters": {"a": 1}}',
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]',
    "mistral_args": '[TOOL_CALLS]add[ARGS]{"a": 1}',
    "deepseekv3": DEEPSEEK_CALL.format('function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```'),
    "deepseek_v3_1": DEEPSEEK_CALL.format('add<｜tool▁sep｜>{"a": 1}'),
    "gptoss": "<|channel|>analysis<|message|>So I add.<|end|><|start|>assistant<|channel|>"
    'commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>',
    "glm4moe": "<think>So I add.</think>\n<tool_call>add\n<arg_key>a</arg_key>\n"
    "<arg_value>1</arg_value>\n</tool_call><|observation|>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0"
    '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
    "minimax_m2": 'So I add.\n</think>\n\n<minimax:tool_call>\n<invoke name="add">\n'
    '<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>',
    "nemotron_json": '<TOOLCALL>[{"name": "add", "arguments": {"a": 1}}]</TOOLCALL>',
    "nemotron_3_nano": f"So I add.\n</think>\n\n{QWEN_CODER_CALL}",
    "gemma4_v5": "<|tool_call>call:add{a:1}<tool_call|><|tool_response>",
}

ONE_CALL = ("llama3_1", "llama3_2", "gptoss")  # a reply: more are refused or lost by the template


def chat_tokenizer(family, merges=True):
    """A byte-level tokenizer with the chat template of a model family, from trl or from
    tests/chat_templates.

    Byte b is id b; SPECIAL_TOKENS are ids 256 to 262, TAG_TOKENS 263 to 266. With `merges` a few
    longer tokens follow (one of them half an emoji), so that one text has several encodings; the
    family's own tokens are last.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    char_of = bytes_to_unicode()
    vocab = {char_of[byte]: byte for byte in range(256)}
    vocab |= {token: 256 + index for index, token in enumerate(SPECIAL_TOKENS + TAG_TOKENS)}
    pairs = [(b"t", b"h"), (b"th", b"e"), (b" ", b"a"), (b"\n", b"\n"), (b"<", b"|")]
    pairs += [(b"1", b"2"), (b" ", b"the"), (b"\xf0", b"\x9f"), (b'"', b":")]
    rules = [tuple("".join(char_of[b] for b in half) for half in pair) for pair in pairs]
    if merges:
        vocab |= {"".join(rule): len(vocab) + index for index, rule in enumerate(rules)}
    own = FAMILY_TOKENS.get(family, ())
    vocab |= {token: len(vocab) + index for index, token in enumerate(own)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=rules if merges else []))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False) for token in TAG_TOKENS])
    special = [token for token in own if token not in NOT_CALLED_SPECIAL]
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.add_tokens([AddedToken(t, special=False) for t in own if t in NOT_CALLED_SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=FAMILY_EOS[family],
        pad_token="<|endoftext|>",
        bos_token=own[0] if own in (DEEPSEEK_TOKENS, MISTRAL_TOKENS) else BOS.get(family),
        chat_template=chat_template(family),
    )


def chat_template(family):
    from importlib.resources import files
    from pathlib import Path

    own = Path(__file__).parent / "chat_templates" / f"{family}.jinja"
    path = own if own.exists() else files("trl").joinpath(f"chat_templates/{family}.jinja")
    return path.read_text("utf-8")


def reply_ids(template, messages, tools, reply, *new):
    """The ids that a template writes of a reply, before `new`, up to a token that ends it."""
    history = template.render_marked([*messages, reply, *new], tools, add_generation_prompt=False)
    prompt, bare = (template.render_marked(messages, tools, ready) for ready in (True, False))
    # Bare where the prompt begins the reply otherwise than the history does.
    start = len(prompt if history.startswith(prompt) else bare)
    stops = template.stop_token_ids
    end = template.find_control(history, start)
    while end and end[1] not in stops:
        end = template.find_control(history, end[0] + 1)
    text, stop = (history[start : end[0]], end[1]) if end else (history[start:], stops[0])
    return [*template.encode(text), stop]


# --- a model that says what a test tells it ------------------------------------------------------


class ScriptedEndpoint(ModelEndpoint):
    """Answers with `reply(prompt_text, request_id)`, encoded, at log-probability -0.5 a token.

    `prompts` keeps what was asked by request id; `events` the order of enter, leave and generate.
    """

    def __init__(self, tokenizer, reply):
        self.tokenizer = tokenizer
        self.reply = reply
        self.prompts = {}
        self.sampling = {}
        self.events = []

    def enter(self, episode_id):
        self.events.append(("enter", episode_id))

    def leave(self, episode_id):
        self.events.append(("leave", episode_id))

    async def generate(self, prompt_ids, sampling, request_id):
        import asyncio

        from ajet.core.inference.endpoint import Completion

        self.prompts[request_id] = list(prompt_ids)
        self.sampling[request_id] = sampling
        self.events.append(("generate", request_id))
        await asyncio.sleep(0)
        text = self.reply(self.tokenizer.decode(prompt_ids), request_id)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        whole = [*ids, self.tokenizer.eos_token_id]
        cut = tuple(whole[: sampling.max_tokens])
        reason = "stop" if len(cut) == len(whole) else "length"
        return Completion(tuple(prompt_ids), cut, (-0.5,) * len(cut), reason, 0)


def recorder_parts(endpoint, template, **options):
    """What an `EpisodeRecorder` is made of; `options` are added or replace the defaults."""
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.trajectory.limits import EpisodeLimits
    from ajet.tool_parsers import parser_for

    return {
        "endpoint": endpoint,
        "template": template,
        "parser": parser_for(template),
        "limits": EpisodeLimits(),
        "sampling": SamplingParams(),
        "episode_id": "e",
        "seed_path": (0,),
    } | options


def scripted_recorder(template, reply, tokenizer=None):
    """An episode's recorder whose model says `reply` at each call. `tokenizer` reads prompts, if
    not the template's."""
    from ajet.core.trajectory.recorder import EpisodeRecorder

    endpoint = ScriptedEndpoint(tokenizer or template.tokenizer, lambda *_: reply)
    return EpisodeRecorder(**recorder_parts(endpoint, template))


def episode_runner(
    workflow,
    endpoint,
    tokenizer,
    judge=None,
    debug=False,
    gateway=None,
    environments=None,
    config=None,
    **limits,
):
    """A GroupRunner over fakes; `workflow` is a Workflow class."""
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.endpoint import SamplingParams
    from ajet.core.rollout.episode import EpisodeParts, EpisodeRunner
    from ajet.core.rollout.group import GroupRunner
    from ajet.core.rollout.limits import RolloutLimits
    from ajet.tool_parsers import parser_for

    template = ChatTemplate(tokenizer)
    episodes = EpisodeRunner(
        endpoint=endpoint,
        template=template,
        parser=parser_for(template),
        parts_for=lambda mode: EpisodeParts(
            lambda task: workflow(),
            judge,
            SamplingParams(temperature={"baseline": 0.0, "eval": 0.5, "train": 1.0}[mode]),
        ),
        limits=RolloutLimits(**limits),
        run_seed=7,
        gateway=gateway,
        config=config,
        debug=debug,
        environments=environments,
    )
    return GroupRunner.from_episode_runner(episodes, judge)


# --- an inference server that is installed -------------------------------------------------------


def installed(folder, package, version):
    """Makes the environment beside `folder`/.venv that has this package; returns its Python."""
    environment = folder / f".venv-{package.removesuffix('-cpu')}"
    name = package.replace("-", "_")
    info = environment / f"lib/python3.11/site-packages/{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    python = environment / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    python.touch()
    return str(python)
