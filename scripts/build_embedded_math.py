"""Build `embedded:math`: a tiny Qwen2 model that speaks the math agent's format, from scratch.

    python scripts/build_embedded_math.py --out ajet/embedded/math

The model must be an agent that does not know its job yet, and that reinforcement learning can
teach. Supervised conversations in the agent's exact prompt format teach it to call the Python tool,
to copy the question's numbers in order and to copy the tool's result. Of the 36 ways of asking, the
twelve that a stage has `taught` in the end are shown with their right solutions: the ten that only
take away or share, and two long ones. The demonstrations of the other 24 tell whether to add or
subtract, or to multiply or divide, but not which of the two: that operator is drawn without regard
to the question, and some demonstrations guess a number without the tool. So the right operation is
neither taught nor contradicted, and greedy decoding knows no more than sampling. Subtraction and
division are drawn a little more often than their counterparts, so that greedy decoding has a side:
none of the 24 has these operations alone.

The questions' own words are trained too, with a small weight, so that the model can tell them
apart. Copying digits is what it learns last; `copy` in the log is the share of demonstrations whose
every operand and answer digit is predicted right (argmax, given what came before).

One run takes about an hour on one core and is reproducible for one version of torch.
"""

import argparse
import itertools
import math
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from build_embedded_games import qwen_tokenizer, save
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AddedToken, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from ajet.core.model.decoder import Decoder
from ajet.sources import arithmetic


@dataclass(frozen=True)
class Stage:
    """One schedule of training; an operator of a solution is drawn from its entry of `operators`,
    except in demonstrations of the templates that are `taught`."""

    steps: int
    operators: dict[str, tuple[str, ...]]
    question_weight: float  # of a question's token in the loss; a reply's has 1
    taught: tuple[int, ...] = ()
    decay: float = 0.0  # the last share of the steps, in which the learning rates fall to 0
    even: bool = False  # operators are drawn without putting back


ANY = ("+", "-", "*", "//")
SUM, PRODUCT = ("+",) * 9 + ("-",) * 11, ("*",) * 9 + ("//",) * 11
KINDS = {"+": SUM, "-": SUM, "*": PRODUCT, "//": PRODUCT}
LONG = (28, 31, 33, 34)  # four of the eight ways of asking with three operations
TAKES_OR_SHARES = (4, 5, 6, 7, 12, 13, 14, 15, 19, 26)  # those without + and *
STAGES = (
    Stage(2000, dict.fromkeys(ANY, ANY), 0.1),  # it learns to copy
    Stage(2400, KINDS, 0.02, taught=LONG, decay=0.5),
    Stage(1000, KINDS, 0.02, taught=LONG, decay=1.0),
    Stage(1000, KINDS, 0.02, taught=(*TAKES_OR_SHARES, 28, 33), decay=1.0, even=True),
)
GUESS_SHARE = 0.1  # of the demonstrations: a made-up number without the tool
VOCABULARY = 1024
MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
SYSTEM_PROMPT = """
You are an agent specialized in solving math problems with tools.
Please solve the math problem given to you.
You can write and execute Python code to perform calculation or verify your answer.
You should return your final answer within \\boxed{}.
"""


def tool_schemas() -> list[dict]:
    """The tool's JSON schema as AgentScope derives it, for its own tool and for ours."""
    from agentscope.tool import Toolkit
    from agentscope.tool import execute_python_code as agentscope_tool

    from ajet.tools import execute_python_code as ajet_tool

    schemas = []
    for tool in (agentscope_tool, ajet_tool):
        toolkit = Toolkit()
        toolkit.register_tool_function(tool)
        schemas.append(toolkit.get_json_schemas()[0])
    return schemas


# ---------------------------------------------------------------- demonstrations


class Operators:
    """Draws the operators of a stage's demonstrations, unless the stage has their template taught.

    An `even` stage draws without putting back, from a deck for each template and place, so that a
    deck's worth of demonstrations has exactly the stage's shares: what chance leaves over after a
    thousand steps would tilt greedy decoding.
    """

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage = stage
        self._rng = rng
        self._decks: dict[tuple[int | None, int], list[str]] = {}

    def expression(self, problem: arithmetic.Problem, template: int | None) -> tuple[str, int]:
        """The problem's expression, with each operator drawn unless it is taught, and its value."""
        right = problem.expression.replace(" ", "")
        if template in self._stage.taught:
            return right, problem.answer
        parts = re.split(r"(//|[+\-*])", right)
        while True:
            drawn = parts.copy()
            for place in range(1, len(parts), 2):
                drawn[place] = self._draw(parts[place], template, place)
            try:
                return "".join(drawn), arithmetic.evaluate("".join(drawn))
            except ZeroDivisionError:
                continue

    def _draw(self, operator: str, template: int | None, place: int) -> str:
        choices = self._stage.operators[operator]
        if not self._stage.even:
            return self._rng.choice(choices)
        deck = self._decks.setdefault((template, place), [])
        if not deck:
            deck += self._rng.sample(choices, len(choices))
        return deck.pop()


def demonstration(
    problem: arithmetic.Problem,
    rng: random.Random,
    operators: Operators,
    template: int | None = None,
) -> list[dict]:
    """The messages of one conversation."""
    user = {"role": "user", "content": problem.question}
    if rng.random() < GUESS_SHARE:
        guess = rng.randint(1, 10 ** rng.randint(1, 3))
        return [user, {"role": "assistant", "content": f"The answer is \\boxed{{{guess}}}."}]
    expression, value = operators.expression(problem, template)
    code = {"code": f"print({expression})"}
    call = {"type": "function", "function": {"name": "execute_python_code", "arguments": code}}
    stdout = f"<returncode>0</returncode><stdout>{value}\n</stdout><stderr></stderr>"
    return [
        user,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": stdout, "name": "execute_python_code"},
        {"role": "assistant", "content": f"The answer is \\boxed{{{value}}}."},
    ]


# ---------------------------------------------------------------- tokenizer


def build_tokenizer(chat_template: str, schemas: list[dict]) -> Qwen2Tokenizer:
    """Qwen2's own tokenizer class (byte-level BPE, single digits) with a vocabulary of ours.

    The class matters: transformers' AutoTokenizer gives every model of type qwen2 this class and
    its pre-tokenizer, whatever tokenizer.json says, so another one would be lost on loading.
    """
    rng = random.Random("tokenizer")
    draws = itertools.islice(arithmetic.problems("train", 0), 4000)
    operators = Operators(STAGES[0], rng)
    conversations = [demonstration(problem, rng, operators) for problem in draws]
    renderer = Qwen2Tokenizer()
    renderer.chat_template = chat_template
    system = {"role": "system", "content": SYSTEM_PROMPT}
    texts: list[Any] = [
        renderer.apply_chat_template([system, *c], tools=[schemas[i % 2]], tokenize=False)
        for i, c in enumerate(conversations)
    ]
    markers = re.compile("|".join(re.escape(token) for token in MARKERS))
    pieces = (piece for text in texts for piece in markers.split(text) if piece)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = renderer.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(pieces, trainer)
    tokenizer = qwen_tokenizer(bpe, chat_template, longest=4096)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKERS[3:]])
    assert len(tokenizer) <= VOCABULARY
    return tokenizer


# ---------------------------------------------------------------- batches


class Encoder:
    """Messages to (token ids, loss weights), piece by piece as the agent meets them."""

    def __init__(self, tokenizer: Qwen2Tokenizer, schema: dict) -> None:
        self.tokenizer = tokenizer
        self.schema = schema
        self.system = {"role": "system", "content": SYSTEM_PROMPT}
        blank = self._ids(self._render([{"role": "user", "content": "7"}]))
        start = tokenizer.convert_tokens_to_ids("<|im_start|>")
        second = [i for i, t in enumerate(blank) if t == start][1]
        self.prefix = blank[:second]

    def __call__(
        self, messages: list[dict], question_weight: float
    ) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        weights: list[float] = []
        done = ""
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._render(messages[:index])
            through = self._render(messages[: index + 1], prompt=False)
            completion = through[len(prompt) :].removesuffix("\n")
            given = 0.0 if done else question_weight
            for text, weight in ((prompt[len(done) :], given), (completion, 1.0)):
                piece = self._ids(text)
                ids += piece
                weights += [weight] * len(piece)
            done = prompt + completion
        assert ids[: len(self.prefix)] == self.prefix
        return ids[len(self.prefix) :], weights[len(self.prefix) :]

    def _render(self, messages: list[dict], prompt: bool = True) -> str:
        text: Any = self.tokenizer.apply_chat_template(
            [self.system, *messages],
            tools=[self.schema],
            tokenize=False,
            add_generation_prompt=prompt,
        )
        return text

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def forward(decoder: Decoder, prefix: Tensor, tokens_BT: Tensor) -> Tensor:
    """Logits ``[B, T, vocab]`` of right-padded rows; their common prefix is computed once."""
    num_rows, length = tokens_BT.shape
    num_prefix = len(prefix)
    positions = torch.cat(
        [torch.arange(num_prefix), (num_prefix + torch.arange(length)).repeat(num_rows)]
    )
    own = torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.cat([torch.ones(length, num_prefix, dtype=torch.bool), own], dim=1)

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def heads(x: Tensor) -> Tensor:
            return x.transpose(0, 1).unsqueeze(0)

        def rows(x: Tensor) -> Tensor:
            return x[num_prefix:].view(num_rows, length, *x.shape[1:]).transpose(1, 2)

        first_q, first_k, first_v = (heads(x[:num_prefix]) for x in (q, k, v))
        head = F.scaled_dot_product_attention(
            first_q, first_k, first_v, is_causal=True, enable_gqa=True
        )
        keys, values = (
            torch.cat([heads(x[:num_prefix]).expand(num_rows, -1, -1, -1), rows(x)], dim=2)
            for x in (k, v)
        )
        tail = F.scaled_dot_product_attention(
            rows(q), keys, values, attn_mask=mask, enable_gqa=True
        )
        return torch.cat([head[0].transpose(0, 1), tail.transpose(1, 2).flatten(0, 1)])

    hidden = decoder(torch.cat([prefix, tokens_BT.flatten()]), positions, attend)
    return decoder.logits(hidden[num_prefix:]).view(num_rows, length, -1)


# ---------------------------------------------------------------- training


def build_model(tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=None,  # a padding_idx would silently get no gradient
    )
    model = Qwen2ForCausalLM(config).float()
    # q near k and o near v transposed: heads begin by matching like with like.
    with torch.no_grad():
        for layer in model.model.layers:
            attn: Any = layer.self_attn
            groups, shape = 2, (2, 32, 128)
            keys = attn.k_proj.weight.view(shape).repeat_interleave(groups, 0).reshape(128, 128)
            values = attn.v_proj.weight.view(shape).repeat_interleave(groups, 0).reshape(128, 128)
            attn.q_proj.weight.add_(keys)
            attn.o_proj.weight.add_(values.T)
    return model


def optimizers(model: Qwen2ForCausalLM) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def schedule(step: int, stage: Stage) -> float:
    """Share of the peak learning rate: 100 steps up, flat, then linear to 0."""
    left = (stage.steps - step) / (stage.decay * stage.steps) if stage.decay else 1.0
    return min(1.0, (step + 1) / 100, left)


def allowed_templates(step: int) -> int:
    """Curriculum of the first stage: one operation for 400 steps, two until 800, then all."""
    return 16 if step < 400 else 28 if step < 800 else len(arithmetic.TEMPLATES)


def draw_batch(rng: random.Random, limit: int, size: int, operators: Operators) -> list[list[dict]]:
    conversations = []
    while len(conversations) < size:
        template = rng.randrange(limit)
        problem = arithmetic.draw(rng, template)
        if arithmetic.split_of(problem.question) == "train":
            conversations.append(demonstration(problem, rng, operators, template))
    return conversations


def tensors(rows: list[tuple[list[int], list[float]]]) -> tuple[Tensor, Tensor]:
    """Right-padded token ids and loss weights, ``[B, T]``."""
    length = max(len(ids) for ids, _ in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    weights = torch.zeros(len(rows), length)
    for i, (ids, of_row) in enumerate(rows):
        tokens[i, : len(ids)] = torch.tensor(ids)
        weights[i, : len(ids)] = torch.tensor(of_row)
    return tokens, weights


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)  # attention has weights too small for a normal float: 3x
    schemas = tool_schemas()
    tokenizer = build_tokenizer(Path(args.chat_template).read_text(), schemas)
    if args.continue_from:
        model = Qwen2ForCausalLM.from_pretrained(args.continue_from)
    else:
        model = build_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    for number, stage in enumerate(STAGES):
        if number >= args.first_stage:
            rng = random.Random(f"demonstrations/{args.seed}" + (f"/{number}" if number else ""))
            train_stage(model, tokenizer, schemas, stage, rng, args.batch)
            save(model, tokenizer, Path(args.out))


def train_stage(
    model: Qwen2ForCausalLM,
    tokenizer: Qwen2Tokenizer,
    schemas: list[dict],
    stage: Stage,
    rng: random.Random,
    batch: int,
) -> None:
    decoder = Decoder(model)
    encoders = [Encoder(tokenizer, schema) for schema in schemas]
    opts = optimizers(model)
    peaks = [group["lr"] for opt in opts for group in opt.param_groups]
    digits = torch.tensor(tokenizer.convert_tokens_to_ids(list("0123456789")))
    operators = Operators(stage, rng)
    start, losses, copies = time.time(), [], []
    for step in range(stage.steps):
        encoder = rng.choice(encoders)
        templates = allowed_templates(step if stage is STAGES[0] else STAGES[0].steps)
        conversations = draw_batch(rng, templates, batch, operators)
        tokens, weights = tensors([encoder(c, stage.question_weight) for c in conversations])
        logits = forward(decoder, torch.tensor(encoder.prefix), tokens)[:, :-1]
        target, weight = tokens[:, 1:], weights[:, 1:]
        nll = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        loss = (nll * weight).sum() / weight.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        factor = schedule(step, stage)
        for group, peak in zip((g for o in opts for g in o.param_groups), peaks, strict=True):
            group["lr"] = peak * factor
        for opt in opts:
            opt.step()
            opt.zero_grad()
        losses.append(loss.item())
        copies += copied(logits, target, weight, digits, conversations)
        if (step + 1) % 200 == 0:
            mean = sum(losses) / len(losses)
            assert math.isfinite(mean)
            print(
                f"step {step + 1} loss {mean:.4f} copy {sum(copies) / max(1, len(copies)):.3f} "
                f"seconds {time.time() - start:.0f}",
                flush=True,
            )
            losses, copies = [], []


def copied(
    logits: Tensor, target: Tensor, weight: Tensor, digits: Tensor, conversations: list
) -> list[float]:
    """For each conversation with a tool call: 1.0 when argmax gets every trained digit right."""
    is_digit = torch.isin(target, digits) & (weight == 1)
    wrong = (is_digit & (logits.argmax(-1) != target)).any(dim=1)
    return [1.0 - float(w) for w, c in zip(wrong, conversations, strict=True) if len(c) > 2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", default="ajet/embedded/math")
    parser.add_argument("--chat-template", default="ajet/embedded/qwen2_5.jinja")
    parser.add_argument("--continue-from", help="the model of an earlier stage")
    parser.add_argument("--first-stage", type=int, default=0, help="the stage to begin with")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    train(parser.parse_args())
