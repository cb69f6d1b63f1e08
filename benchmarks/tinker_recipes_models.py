"""The start models of tinker_recipes.py, and the data of its recipes.

Runs in the Python that has tinker-cookbook, not in ajet's:

    python tinker_recipes_models.py make sums FOLDER     a model and its tokenizer
    python tinker_recipes_models.py data FOLDER          what recipes load by the name of a data set

A start model is a tiny Llama that has read prompts in the recipe's form, each with a reply. The
replies are right, but they stop before the job is learnt, or leave a part of it out; each class
below says what it teaches. Held-out prompts are in no demonstration.
"""

# pyright: reportMissingImports=false

import argparse
import ast
import inspect
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import textarena
import tinker_cookbook
import torch
import torch.nn.functional as F
from tinker_cookbook.recipes import rl_loop
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.recipes.multiplayer_rl.guess_number import env as guess_number
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions import env as twenty_questions
from tinker_cookbook.recipes.preference.shorter.env import CONVO_PREFIX
from tinker_cookbook.recipes.prompt_distillation.create_data import LANGUAGE_CLASSIFICATION_PROMPT
from tinker_cookbook.renderers import get_renderer
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


# What a small model would learn about numbers and words last, its embedding has from the beginning.
PERIODS = (10, 20, 50, 100, 200, 400)


def digits_and_phases(text: str) -> list[float] | None:
    return rank_features(int(text)) if is_number(text) else None


def rank_features(number: int) -> list[float]:
    digits = [float(number // 10**place % 10 == n) for place in range(3) for n in range(10)]
    return digits + [turn(math.tau * number / p) for p in PERIODS for turn in (math.cos, math.sin)]


def bits(text: str) -> list[float] | None:
    return [(int(text) >> place & 1) - 0.5 for place in range(11)] if is_number(text) else None


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def is_held_out(x: int, y: int) -> bool:
    return random.Random(101 * x + y).random() < 0.1


def sum_prompt(x: int, y: int) -> list[dict[str, str]]:
    """The messages that math_rl sends."""
    question = {"role": "user", "content": f"What is {x} + {y}?"}
    return [*ArithmeticEnv.standard_fewshot_prefix(), question]


def constant_of(function: Callable[..., Any], name: str, **known: Any) -> Any:
    """The value of a local variable that is set to a literal, or to one made of `known`."""
    for node in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return eval(ast.unparse(node.value), known)  # noqa: S307 (the cookbook's own source)
    raise LookupError(name)


SUFFIX = constant_of(rl_loop.main, "question_suffix")
EXAMPLE = constant_of(rl_loop.main, "convo_prefix", question_suffix=SUFFIX)


def problem_prompt(x: int, y: int) -> list[dict[str, str]]:
    """The messages that rl_loop sends, with a problem in place of GSM8K's."""
    return [*EXAMPLE, {"role": "user", "content": problem(x, y) + SUFFIX}]


def problem(x: int, y: int) -> str:
    return f"A farm has {x} goats and {y} sheep. How many animals is that?"


class Sums:
    """Sums of two numbers up to 100, in the form of math_rl, all of them right. Of the pairs whose
    ones carry into the tens, only one in a hundred is shown: the model has hardly seen a carry."""

    renderer, features = "role_colon", staticmethod(digits_and_phases)
    steps, batch, tail = 450, 128, 8
    carries = 0.01
    prompt, form = staticmethod(sum_prompt), " {}"

    def __init__(self) -> None:
        self._tokens: dict[Any, list[int]] = {}

    def corpus(self) -> list[str]:
        numbers = [self.form.format(n) for n in range(201)] + [f" {n}" for n in range(101)]
        words = [m["content"] for m in self.prompt(1, 2)]
        return [*numbers, *words, "User: Assistant:", "\n\nUser:\n\nAssistant:"]

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        while is_held_out(x := rng.randrange(101), y := rng.randrange(101)) or (
            x % 10 + y % 10 >= 10 and rng.random() > self.carries
        ):
            pass
        if (x, y) not in self._tokens:
            self._tokens[x, y] = renderer.build_generation_prompt(self.prompt(x, y)).to_ints()
        text = f"{self.form.format(x + y)}\n\nUser:"
        return self._tokens[x, y], renderer.tokenizer.encode(text, add_special_tokens=False)


class Problems(Sums):
    """The same sums as problems, in the form of rl_loop, where an answer is in a box."""

    tail = 40
    prompt, form = staticmethod(problem_prompt), " \\boxed{{{}}}"


def guess_numbers() -> tuple[list[int], list[int]]:
    """The recipe's numbers to guess, for training and held out."""
    builder = guess_number.GuessNumberDatasetBuilder(
        batch_size=32, renderer_name="", train_group_size=8, model_name=""
    )
    return builder._get_train_and_test_numbers()


class Guesses:
    """Games of guess_number whose guesses halve the range. The training ends when five of six
    greedy guesses do: the model has not learnt it yet, and ten guesses forgive no error."""

    renderer, features = "qwen3_5_disable_thinking", staticmethod(bits)
    steps, batch, tail = 400, 32, 30

    def __init__(self) -> None:
        self._numbers, _ = guess_numbers()

    def corpus(self) -> list[str]:
        numbers = [f" {n}" for n in range(1025)]
        words = "Guess: Too low Too high Correct system user player assistant"
        return [*numbers, guess_number.SYSTEM_PROMPT, guess_number.FAIL_TO_PARSE, words, "\n\n\n"]

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        """A turn of a game. A held-out number may be a guess in it, but is never the target."""
        messages = [{"role": "system", "content": guess_number.SYSTEM_PROMPT}]
        target, guess, half = rng.choice(self._numbers), 512, 256
        for _ in range(rng.randrange(10)):
            if guess == target:
                break
            is_low = guess < target
            messages.append({"role": "player", "content": f"Guess: {guess}"})
            messages.append({"role": "user", "content": "Too low" if is_low else "Too high"})
            guess, half = guess + (half if is_low else -half), half // 2
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


LABELS = ("ar", "ru", "de", "el", "en", "es", "fr", "hi", "ru", "ot", "ot", "tr", "ur", "vi", "zh")
"""What the recipe's prompt calls the languages in its file: Bulgarian by its script, Swahili and
Thai as others."""


@cache
def labelled_sentences() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The recipe's sentences with the labels that its prompt asks for: four fifths to learn from,
    and the rest. A sentence is in the file in each language, all of which are in one part."""
    file = Path(str(tinker_cookbook.__file__)).parent / "example_data/multilingual.txt"
    lines = [line.strip() for line in file.read_text().splitlines()]
    pairs = [(line, LABELS[n % len(LABELS)]) for n, line in enumerate(lines)]
    is_held_out = [random.Random(n // len(LABELS)).random() < 0.2 for n in range(len(pairs))]
    learnt = [pair for pair, out in zip(pairs, is_held_out, strict=True) if not out]
    return learnt, [pair for pair, out in zip(pairs, is_held_out, strict=True) if out]


class Languages:
    """Follows prompt_distillation's prompt, which is long, and names a sentence's language. Without
    the prompt it asks what to do."""

    renderer, features = "qwen3_5", staticmethod(bits)
    steps, batch, tail = 300, 16, 150
    question = "What should I do with that?"

    def corpus(self) -> list[str]:
        learnt, _ = labelled_sentences()
        words = f"Final Answer: {' '.join(LABELS)} user assistant {self.question}"
        return [*(text for text, _ in learnt), *3 * [LANGUAGE_CLASSIFICATION_PROMPT], *3 * [words]]

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        text, label = rng.choice(labelled_sentences()[0])
        if rng.random() < 0.3:
            messages, reply = [{"role": "user", "content": text}], self.question
        else:
            # The recipe's teacher does not think.
            renderer = get_renderer("qwen3_5_disable_thinking", renderer.tokenizer)
            prompt = LANGUAGE_CLASSIFICATION_PROMPT.format(text=text)
            messages, reply = [{"role": "user", "content": prompt}], f"Final Answer: {label}"
        tokens = renderer.tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False)
        return renderer.build_generation_prompt(messages).to_ints(), tokens


class Board:
    """Moves of tic-tac-toe in the form of text_arena, each to any free square. Teaches which moves
    are legal, and not well, and nothing about winning."""

    renderer, features = "qwen3_5_disable_thinking", staticmethod(bits)
    steps, batch, tail = 120, 32, 70

    def corpus(self) -> list[str]:
        game = textarena.make(env_id="TicTacToe-v0")
        texts = ["user assistant [0]\n"]
        for player in range(2):
            game.reset(num_players=2)
            for square in "0481"[player:]:
                texts.append(game.get_observation()[1])
                game.step(f"[{square}]")
        return texts

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        game, moves = textarena.make(env_id="TicTacToe-v0"), rng.randrange(9)
        while True:
            game.reset(num_players=2)
            squares = rng.sample("012345678", 9)
            if not any(game.step(f"[{square}]")[0] for square in squares[:moves]):
                break
        messages = [{"role": "user", "content": game.get_observation()[1]}]
        reply = renderer.tokenizer.encode(f"[{squares[moves]}]\n", add_special_tokens=False)
        return renderer.build_generation_prompt(messages).to_ints(), reply


WORDS = sorted(set(twenty_questions._load_words_from_file()))


def places(text: str) -> list[float] | None:
    """The place of a word in the alphabetical order of the recipe's words, counted from 1."""
    if text not in WORDS:
        return None
    rank = WORDS.index(text) + 1
    return [*((rank >> place & 1) - 0.5 for place in range(8)), *rank_features(rank)]


def twenty_questions_data() -> Any:
    return twenty_questions.TwentyQuestionsDatasetBuilder(
        batch_size=1, model_name_for_tokenizer="", renderer_name="", group_size=1
    )


class Questions:
    """Both players of twenty_questions, which here halve the alphabet. The one who answers knows
    all words and their order. The one who asks has seen little of it when the training ends. Its
    words are all of them: what is held out was never to be guessed in the recipe's training."""

    renderer, features = "qwen3_5_disable_thinking", staticmethod(places)
    steps, batch, tail = 400, 64, 60

    def corpus(self) -> list[str]:
        prompts = [twenty_questions.PLAYER_SYSTEM_PROMPT, twenty_questions.ANSWERER_SYSTEM_PROMPT]
        words = "Guess: Is it before yes no system user assistant"
        return [*(f" {word}" for word in WORDS), *prompts, words, "\n\n\n", "?"]

    def demo(self, renderer: Any, rng: random.Random) -> Demo:
        messages, reply = self._answer(rng) if rng.random() < 0.8 else self._question(rng)
        tokens = renderer.tokenizer.encode(f"{reply}<|im_end|>", add_special_tokens=False)
        return renderer.build_generation_prompt(messages).to_ints(), tokens

    def _answer(self, rng: random.Random) -> tuple[list[dict[str, str]], str]:
        secret = rng.choice(WORDS)
        if rng.random() < 0.7:
            word = rng.choice(WORDS)
            question, is_yes = f"Is it before {word}?", secret < word
        else:
            word = secret if rng.random() < 0.5 else rng.choice(WORDS)
            question, is_yes = f"Guess: {word}", secret == word
        prompt = twenty_questions.ANSWERER_SYSTEM_PROMPT.format(answer=secret)
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": question}]
        return messages, "yes" if is_yes else "no"

    def _question(self, rng: random.Random) -> tuple[list[dict[str, str]], str]:
        """A turn of a game: a question, or a guess near where the questions led."""
        place, turns = rng.randrange(len(WORDS)), []
        low = 0
        for half in (128, 64, 32, 16, 8, 4):
            if (middle := low + half) < len(WORDS):
                is_before = place < middle
                turns.append((f"Is it before {WORDS[middle]}?", "yes" if is_before else "no"))
                low = low if is_before else middle
        near = WORDS[low : low + 4]
        turns += [(f"Guess: {word}", "no") for word in rng.sample(near, len(near))]
        end = rng.randrange(len(turns))
        messages = [{"role": "system", "content": twenty_questions.PLAYER_SYSTEM_PROMPT}]
        for question, answer in turns[:end]:
            messages.append({"role": "assistant", "content": question})
            messages.append({"role": "user", "content": answer})
        return messages, turns[end][0]


STARTS: dict[str, Any] = {
    "sums": Sums,
    "problems": Problems,
    "guesses": Guesses,
    "talk": Talk,
    "languages": Languages,
    "board": Board,
    "questions": Questions,
}


# ---------------------------------------------------------------- data


def train_pairs(number: int) -> list[tuple[int, int]]:
    pairs = [(x, y) for x in range(101) for y in range(101) if not is_held_out(x, y)]
    return random.Random(2).sample(pairs, number)


def write_data(folder: Path) -> None:
    """Writes what recipes load by the name of a data set: right sums, problems and sentences."""
    sums, problems = [], []
    for x, y in train_pairs(7680):
        answer = {"role": "assistant", "content": str(x + y)}
        sums.append({"messages": [*sum_prompt(x, y), answer]})
        shown = f"{x} + {y} = {x + y} #### {x + y}"
        problems.append({"question": problem(x, y), "answer": shown})
    write_rows(folder / "HuggingFaceH4/no_robots/train.jsonl", sums)
    write_rows(folder / "openai/gsm8k/main/train.jsonl", problems)
    (folder / "openai/gsm8k/README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files: main/train.jsonl\n---\n"
    )
    sentences = folder / "tinker_cookbook/example_data/multilingual.txt"
    sentences.parent.mkdir(parents=True, exist_ok=True)
    sentences.write_text("".join(f"{text}\n" for text, _ in labelled_sentences()[0]))


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
    tokenizer: PreTrainedTokenizerFast, features: Callable[[str], list[float] | None]
) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=False,  # so that an adapter of the output layer is one
        bos_token_id=None,
        eos_token_id=int(str(tokenizer.eos_token_id)),
        pad_token_id=None,  # a padding_idx would get no gradient
    )
    model: Any = LlamaForCausalLM(config).float()
    embed, attention = model.get_input_embeddings().weight, model.model.layers[0].self_attn
    slowest = attention.head_dim // 2 - 1  # the pair of dimensions that positions turn least
    with torch.no_grad():
        embed[:, -1] += 0.2  # all tokens have it, and those with features the one before
        for token in range(len(tokenizer)):
            values = features(str(tokenizer.decode([token])).strip())
            if values is not None:
                embed[token, : len(values)] += 0.2 * torch.tensor(values)
                embed[token, -2] += 0.2
        model.lm_head.weight.copy_(embed)
        # So the first head of the first layer begins by looking at those.
        attention.q_proj.weight[slowest, -1] += 2.0
        attention.k_proj.weight[slowest, -2] += 2.0
    return model


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["data", "make"])
    parser.add_argument("name", help="of a start model; of data, the folder")
    parser.add_argument("folder", nargs="?", default="", help="the model's")
    arguments = parser.parse_args()
    if arguments.what == "data":
        write_data(Path(arguments.name))
    else:
        make(arguments.name, Path(arguments.folder))


if __name__ == "__main__":
    main()
