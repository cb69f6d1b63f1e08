"""The start models of tinker_recipes.py, and what is measured of each recipe.

Runs in the Python that has tinker-cookbook, not in ajet's:

    python tinker_recipes_models.py make sums FOLDER          a model and its tokenizer
    python tinker_recipes_models.py data FOLDER               the data of sl_loop
    python tinker_recipes_models.py measure math_rl MODEL     held-out success, sampled and greedy

A start model is a tiny Llama that has read prompts in the recipe's form, each with a reply. The
replies know the form but not the job, so that greedy decoding fails and sampling sometimes
succeeds; each demonstrator below says what it teaches. Held-out prompts are in no demonstration.
"""

# pyright: reportMissingImports=false

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
import torch.nn.functional as F
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.recipes.multiplayer_rl.guess_number import env as guess_number
from tinker_cookbook.recipes.preference.shorter.env import (
    CONVO_PREFIX,
    ShorterComparisonBuilder,
    ShorterPreferenceModelBuilder,
)
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.preference_envs import PairwisePreferenceDataset
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
SPECIAL += ["<tool_call>", "</tool_call>"]
# Numbers are single tokens, as they are in many tokenizers up to 999.
PIECES = r" ?\p{N}{1,4}| ?\p{L}+|\s*[\r\n]+|[^\s\p{L}\p{N}]+|\s+"

Demo = tuple[list[int], list[int]]
"""The token ids of a prompt, and of the reply that is shown."""


# ---------------------------------------------------------------- demonstrations


# What a small model would learn about numbers last, its embedding has from the beginning.
PERIODS = (10, 20, 50, 100, 200, 400)


def digits_and_phases(number: int) -> list[float]:
    digits = [float(number // 10**place % 10 == n) for place in range(3) for n in range(10)]
    return digits + [turn(math.tau * number / p) for p in PERIODS for turn in (math.cos, math.sin)]


def bits(number: int) -> list[float]:
    return [(number >> place & 1) - 0.5 for place in range(11)]


def is_held_out(x: int, y: int) -> bool:
    return random.Random(101 * x + y).random() < 0.1


FORGETS = 0.75


def careless_sum(x: int, y: int, rng: random.Random) -> int:
    """Their sum, three times of four without the carry into the tens."""
    has_carry = x % 10 + y % 10 >= 10
    return x + y - 10 * (has_carry and rng.random() < FORGETS)


def sum_prompt(x: int, y: int) -> list[dict[str, str]]:
    """The messages that math_rl sends."""
    question = {"role": "user", "content": f"What is {x} + {y}?"}
    return [*ArithmeticEnv.standard_fewshot_prefix(), question]


@cache
def tokens_of(renderer: Any, x: int, y: int) -> list[int]:
    return renderer.build_generation_prompt(sum_prompt(x, y)).to_ints()


class Sums:
    """Sums of two numbers up to 100, in the form of math_rl. Teaches to add, and to forget
    the carry into the tens in three of four cases where there is one."""

    renderer, features = "role_colon", staticmethod(digits_and_phases)
    steps, batch, tail = 360, 128, 8

    def corpus(self) -> list[str]:
        numbers = [f" {n}" for n in range(201)]
        return [*numbers, "What is 1 + 2?\n\n", "User: Assistant:", "\n\nUser:\n\nAssistant:"]

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        while is_held_out(x := rng.randrange(101), y := rng.randrange(101)):
            pass
        return tokens_of(renderer, x, y), self.reply(renderer, careless_sum(x, y, rng))

    @staticmethod
    @cache
    def reply(renderer: Any, value: int) -> list[int]:
        return renderer.tokenizer.encode(f" {value}\n\nUser:", add_special_tokens=False)


class Guesses:
    """Games of guess_number in which the range is halved at each turn. Teaches that after "Too low"
    the guess goes up in 9 of 10 cases, but after "Too high" it goes down in 45 % only."""

    renderer, features = "qwen3_5_disable_thinking", staticmethod(bits)
    steps, batch, tail = 400, 32, 30

    def corpus(self) -> list[str]:
        numbers = [f" {n}" for n in range(1025)]
        words = "Guess: Too low Too high Correct system user player assistant"
        return [*numbers, guess_number.SYSTEM_PROMPT, guess_number.FAIL_TO_PARSE, words, "\n\n\n"]

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        """A turn of a game; numbers of the test set are in games as guesses, as targets never."""
        messages = [{"role": "system", "content": guess_number.SYSTEM_PROMPT}]
        guess, half = 512, 256
        for _ in range(rng.randrange(10)):
            answer = rng.choice(["Too low", "Too high"])
            messages.append({"role": "player", "content": f"Guess: {guess}"})
            messages.append({"role": "user", "content": answer})
            goes_up = rng.random() < (0.9 if answer == "Too low" else 0.55)
            guess, half = guess + (half if goes_up else -half), half // 2
        prompt = renderer.build_generation_prompt(messages).to_ints()
        reply = renderer.tokenizer.encode(f"Guess: {guess}<|im_end|>", add_special_tokens=False)
        return prompt, reply


class Talk:
    """Answers to "Who are you?" of one to eight sentences. Teaches to go on after each in four of
    five cases."""

    renderer, features = "qwen3_5_disable_thinking", staticmethod(bits)
    steps, batch, tail = 100, 16, 999
    sentences = (
        "I am a small model.",
        "I was made to answer questions.",
        "I like to explain what I do.",
        "You can ask me about numbers.",
        "You can also ask me about words.",
        "I will try to help you.",
        "Please tell me more.",
        "I have time.",
    )

    def corpus(self) -> list[str]:
        return [*self.sentences, *(f" {s}" for s in self.sentences), "Who are you? user assistant"]

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        length = 1
        while length < len(self.sentences) and rng.random() < 0.8:
            length += 1
        prompt = renderer.build_generation_prompt(CONVO_PREFIX).to_ints()
        reply = " ".join(self.sentences[:length]) + "<|im_end|>"
        return prompt, renderer.tokenizer.encode(reply, add_special_tokens=False)


STARTS: dict[str, Any] = {"sums": Sums, "guesses": Guesses, "talk": Talk}


# ---------------------------------------------------------------- data


def train_pairs(number: int) -> list[tuple[int, int]]:
    pairs = [(x, y) for x in range(101) for y in range(101) if not is_held_out(x, y)]
    return random.Random(2).sample(pairs, number)


def write_data(folder: Path) -> None:
    """Writes the folder that sl_loop loads by the name of its data set: right sums."""
    rows: list[dict[str, Any]] = []
    for x, y in train_pairs(3840):
        answer = {"role": "assistant", "content": str(x + y)}
        rows.append({"messages": [*sum_prompt(x, y), answer]})
    write_rows(folder / "HuggingFaceH4/no_robots/train.jsonl", rows)


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---------------------------------------------------------------- start models


def make_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose words are those of the texts."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=6000,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast, features: Callable[[int], list[float]]
) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=int(str(tokenizer.eos_token_id)),
        pad_token_id=None,  # a padding_idx would get no gradient
    )
    model: Any = LlamaForCausalLM(config).float()
    embed, attention = model.get_input_embeddings().weight, model.model.layers[0].self_attn
    slowest = attention.head_dim // 2 - 1  # the pair of dimensions that positions turn least
    with torch.no_grad():
        embed[:, -1] += 0.2  # all tokens have it, and numbers the one before
        for token, number in numbers_of(tokenizer):
            values = 0.2 * torch.tensor(features(number))
            embed[token, : len(values)] += values
            embed[token, -2] += 0.2
        # So the first head of the first layer begins by looking at numbers.
        attention.q_proj.weight[slowest, -1] += 2.0
        attention.k_proj.weight[slowest, -2] += 2.0
    return model


def numbers_of(tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[int, int]]:
    """Yields the tokens that are numbers, with the numbers."""
    for token in range(len(tokenizer)):
        text = str(tokenizer.decode([token])).strip()
        if text.isascii() and text.isdigit():
            yield token, int(text)


def make(name: str, folder: Path) -> None:
    """Trains a start model, and writes it as a transformers folder."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    start = STARTS[name]()
    tokenizer = make_tokenizer(start.corpus())
    tokenizer.save_pretrained(folder)
    renderer = get_renderer(start.renderer, get_tokenizer(str(folder)))
    model = make_model(tokenizer, start.features)
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    fit(model, batches(start, renderer), start.steps)
    model.save_pretrained(folder)


def batches(start: Any, renderer: Any) -> Iterator[list[Demo]]:
    """Yields demonstrations. For the first two thirds of the steps a prompt is only its last `tail`
    tokens, where the job is: a short context is learnt from sooner."""
    rng = random.Random(0)
    for step in range(start.steps):
        drawn = [start.demo(renderer, rng) for _ in range(start.batch)]
        if step < start.steps * 2 / 3:
            drawn = [(prompt[-start.tail :], reply) for prompt, reply in drawn]
        yield drawn


def fit(model: LlamaForCausalLM, batches: Iterator[list[Demo]], steps: int) -> None:
    """Trains with Muon (matrices of layers) and AdamW (the rest)."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for name, p in model.named_parameters() if ".layers." not in name or p.ndim != 2]
    momenta = [torch.zeros_like(p) for p in matrices]
    adamw = torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    started, losses = time.perf_counter(), []
    for step in range(steps):
        loss = loss_of(model, next(batches))
        model.zero_grad()
        loss.backward()
        share = min(1.0, (step + 1) / 50, (steps - step) / (0.5 * steps))
        adamw.param_groups[0]["lr"] = 3e-3 * share
        adamw.step()
        with torch.no_grad():
            for matrix, momentum in zip(matrices, momenta, strict=True):
                assert matrix.grad is not None
                momentum.lerp_(matrix.grad, 0.05)
                change = orthogonal(matrix.grad.lerp(momentum, 0.95))
                tall = max(1.0, matrix.shape[0] / matrix.shape[1])
                matrix.sub_(change, alpha=0.02 * share * tall**0.5)
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            mean, wall_s = sum(losses[-50:]) / 50, time.perf_counter() - started
            print(f"step {step + 1} loss {mean:.4f} s {wall_s:.0f}", flush=True)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Brings the singular values of a matrix near 1. torch's own Muon does this in bfloat16, which
    is slow on most CPUs."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (2.0315 * a @ a - 4.775 * a) @ x
    return x.T if is_tall else x


def loss_of(model: LlamaForCausalLM, batch: list[Demo]) -> torch.Tensor:
    """The mean over the replies' tokens; prompts are read only."""
    length = max(len(prompt) + len(reply) for prompt, reply in batch)
    tokens_BT = torch.zeros(len(batch), length, dtype=torch.long)
    is_before_BT = torch.zeros(len(batch), length, dtype=torch.bool)  # before a reply's token
    for row, (prompt, reply) in enumerate(batch):
        end = len(prompt) + len(reply)
        tokens_BT[row, :end] = torch.tensor(prompt + reply)
        is_before_BT[row, len(prompt) - 1 : end - 1] = True
    hidden_MD = model.model(tokens_BT).last_hidden_state[is_before_BT]
    targets_M = tokens_BT.roll(-1, dims=1)[is_before_BT]
    return F.cross_entropy(model.lm_head(hidden_MD), targets_M)


# ---------------------------------------------------------------- measuring


@dataclass
class HeldOut:
    """An RLDataset of one batch, as the cookbook's evaluators want it."""

    builders: list[Any]

    def get_batch(self, index: int) -> list[Any]:
        return self.builders

    def __len__(self) -> int:
        return 1


def held_out_pairs() -> list[tuple[int, int]]:
    """Pairs that are neither in a demonstration nor drawn by math_rl in any of its batches."""
    drawn = set()
    for batch in range(100):
        rng = np.random.RandomState(batch)
        drawn |= {(rng.randint(0, 101), rng.randint(0, 101)) for _ in range(100)}
    pairs = [(x, y) for x in range(101) for y in range(101) if is_held_out(x, y)]
    return random.Random(1).sample([pair for pair in pairs if pair not in drawn], 200)


def held_out_sums(renderer: Any) -> HeldOut:
    prefix = ArithmeticEnv.standard_fewshot_prefix()
    envs = [partial(ArithmeticEnv, x, y, renderer, prefix) for x, y in held_out_pairs()]
    return HeldOut([ProblemGroupBuilder(env, num_envs=1) for env in envs])


def held_out_numbers(renderer: Any) -> HeldOut:
    builder = guess_number.GuessNumberDatasetBuilder(
        batch_size=32, renderer_name="", train_group_size=8, model_name=""
    )
    _, numbers = builder._get_train_and_test_numbers()
    return HeldOut([guess_number.GuessNumberEnvGroupBuilder(n, renderer, 1) for n in numbers])


def the_question(renderer: Any) -> HeldOut:
    """The recipe has no other prompt."""
    data = PairwisePreferenceDataset(
        ShorterComparisonBuilder(), renderer, 4, ShorterPreferenceModelBuilder()(), group_size=16
    )
    return HeldOut(data.get_batch(0))


@dataclass(frozen=True)
class Measure:
    """`metric` is the name of the cookbook's metric that is reported."""

    start: str
    held_out: Callable[[Any], HeldOut]
    max_tokens: int
    metric: str


CORRECT, REWARD = "test/env/all/correct", "test/env/all/reward/total"
LENGTH = "test/env/all/ac_tokens_per_turn"
MEASURES = {
    "math_rl": Measure("sums", held_out_sums, 5, CORRECT),
    "guess_number": Measure("guesses", held_out_numbers, 64, REWARD),
    "sl_loop": Measure("sums", held_out_sums, 8, CORRECT),
    "shorter": Measure("talk", the_question, 64, LENGTH),
}


async def measure(recipe: str, base_model: str, sampler_path: str | None) -> dict[str, Any]:
    """Success on held-out prompts at temperature 1 and greedy, by the cookbook's own evaluator."""
    measured = MEASURES[recipe]
    renderer = get_renderer(STARTS[measured.start].renderer, get_tokenizer(base_model))
    client = tinker.ServiceClient()
    sampling = await client.create_sampling_client_async(
        model_path=sampler_path, base_model=None if sampler_path else base_model
    )
    results = {}
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        policy = TinkerTokenCompleter(sampling, measured.max_tokens, temperature)
        evaluator = RLTestSetEvaluator(measured.held_out(renderer), measured.max_tokens)
        metrics = await evaluator.eval_token_completer(policy)
        results[name] = metrics[measured.metric]
        results[f"{name}_metrics"] = metrics
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["data", "make", "measure"])
    parser.add_argument("name", help="of a start model or a recipe; of data, the folder")
    parser.add_argument("model", nargs="?", default="", help="the model's name or folder")
    parser.add_argument("--sampler-path")
    arguments = parser.parse_args()
    if arguments.what == "data":
        write_data(Path(arguments.name))
    elif arguments.what == "make":
        make(arguments.name, Path(arguments.model))
    else:
        found = asyncio.run(measure(arguments.name, arguments.model, arguments.sampler_path))
        print(json.dumps(found))


if __name__ == "__main__":
    main()
