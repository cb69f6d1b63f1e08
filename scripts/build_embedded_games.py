"""Build `embedded:frozen_lake`, `embedded:guess_number` and `embedded:countdown`, from scratch.

    python scripts/build_embedded_games.py                    # all three, half an hour of a core
    python scripts/build_embedded_games.py --only countdown

Each is a tiny Qwen2 model with a tokenizer of its own. It reads transcripts of games that are
played at random, in the exact form in which the tutorial's agent plays them:

    user        P___ … Left wall Down ice Right hole Up wall
    assistant   Down                                        any valid action, whatever is seen
    user        …                                           what the environment answers

Every token of a transcript is predicted, those of the environment too, so that the model knows what
a game looks like and what an action does. What it writes itself was drawn at random, and so it acts
at random: it speaks the format and nothing more. Only training instances are played.

Reproducible for one version of torch. Not covered: playing well, which is left to reinforcement
learning (benchmarks/learning_games.py).
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from ajet.core.environment.environment import Environment
from ajet.core.seeding import derive
from ajet.environments.countdown import Countdown
from ajet.environments.frozen_lake import ACTIONS, FrozenLake
from ajet.environments.guess_number import GuessNumber

ROOT = Path(__file__).parents[1]
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Game:
    """What is played and by what size of model. `words` become single tokens, all else bytes:
    a tile of a grid is one token at one place."""

    environment: Callable[[], Environment]
    words: str
    max_steps: int
    steps: int
    batch: int
    action: Callable[[Environment, random.Random], str]
    hidden: int = 64
    layers: int = 3
    num_transcripts: int = 16_384


def random_guess(environment: Environment, rng: random.Random) -> str:
    """Of the whole range, whatever is still possible."""
    assert isinstance(environment, GuessNumber)
    return str(rng.randint(environment.low, environment.high))


def valid_action(environment: Environment, rng: random.Random) -> str:
    return environment.sample_action(rng)


GAMES = {
    "frozen_lake": Game(
        environment=lambda: FrozenLake(show_position=True),
        words="user assistant You Goal "
        + " ".join(f"{a} {n}" for a in ACTIONS for n in ("wall", "ice", "hole", "goal")),
        max_steps=12,
        steps=4000,
        batch=32,
        action=valid_action,
    ),
    "guess_number": Game(
        environment=lambda: GuessNumber(high=20, max_guesses=5),
        words="user assistant Between and guesses guess left is right No It was",
        max_steps=5,
        steps=3000,
        batch=32,
        action=random_guess,
    ),
    "countdown": Game(
        environment=lambda: Countdown(max_number=99),
        words="user assistant Numbers Target That is right divides with a rest No tries left",
        max_steps=1,
        steps=8000,
        batch=64,
        action=valid_action,
        num_transcripts=65_536,
    ),
}


# ---------------------------------------------------------------- transcripts


def transcript(game: Game, rng: random.Random) -> Messages:
    """One game played at random, to its end."""
    environment = game.environment()
    seen, _ = environment.reset(seed=rng.getrandbits(40), options={"split": "train"})
    messages: Messages = []
    for _ in range(game.max_steps):
        action = game.action(environment, rng)
        messages.append({"role": "user", "content": str(seen)})
        messages.append({"role": "assistant", "content": action})
        seen, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            break
    return [*messages, {"role": "user", "content": str(seen)}]


# ---------------------------------------------------------------- tokenizer


def build_tokenizer(words: str) -> Qwen2Tokenizer:
    """Qwen2's own tokenizer class (byte-level BPE, single digits) whose merges are the words.

    transformers' AutoTokenizer gives every model of type qwen2 this class and its pre-tokenizer,
    whatever tokenizer.json says, so another one would be lost on loading.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=10_000,  # more than there are merges: every word becomes one token
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    each = words.split()
    bpe.train_from_iterator([*each, *(f" {word}" for word in each)], trainer)
    return qwen_tokenizer(bpe, CHAT_TEMPLATE, longest=1024)


def qwen_tokenizer(bpe: Tokenizer, chat_template: str, longest: int) -> Qwen2Tokenizer:
    """Qwen2's tokenizer with the vocabulary that was trained."""
    trained = json.loads(bpe.to_str())["model"]
    learnt: dict[str, Any] = {  # of which transformers takes more than its types say
        "vocab": trained["vocab"],
        "merges": [tuple(pair) for pair in trained["merges"]],
        "unk_token": None,
    }
    tokenizer = Qwen2Tokenizer(
        **learnt,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        model_max_length=longest,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


# ---------------------------------------------------------------- training


def build_model(game: Game, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    config = Qwen2Config(
        vocab_size=(len(tokenizer) + 15) // 16 * 16,
        hidden_size=game.hidden,
        intermediate_size=3 * game.hidden,
        num_hidden_layers=game.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=None,  # a padding_idx would silently get no gradient
    )
    return Qwen2ForCausalLM(config).float()


@dataclass(frozen=True)
class Corpus:
    """Token ids of transcripts: of whole ones, as `traj_env_agent` has them, and of each step with
    what came of it, whose beginning is what `step_env_agent` has."""

    whole: list[list[int]]
    steps: list[list[int]]


def corpus(game: Game, tokenizer: Qwen2Tokenizer, rng: random.Random) -> Corpus:
    played = [transcript(game, rng) for _ in range(game.num_transcripts)]
    whole = [encoded(tokenizer, messages) for messages in played]
    steps = [
        encoded(tokenizer, messages[turn : turn + 3])
        for messages in played
        for turn in range(0, len(messages) - 1, 2)
    ]
    return Corpus(whole, steps)


def batches(game: Game, texts: Corpus, rng: random.Random) -> Iterator[list[list[int]]]:
    """Every fourth is of whole transcripts, fewer of them as they are longer."""
    for number in itertools.count():
        if number % 4 == 0:
            yield rng.choices(texts.whole, k=max(4, game.batch // game.max_steps))
        else:
            yield rng.choices(texts.steps, k=game.batch)


def encoded(tokenizer: Qwen2Tokenizer, messages: Messages) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert isinstance(text, str)
    return tokenizer.encode(text, add_special_tokens=False)


Batch = tuple[Tensor, Tensor, dict[str, Tensor]]
"""Token ids ``[B, T]``, the weight of each in the loss, and what else the model reads."""


def padded(batch: list[list[int]]) -> Batch:
    """Right-padded token ids, and where they are no padding."""
    length = max(map(len, batch))
    tokens_BT = torch.zeros(len(batch), length, dtype=torch.long)
    real_BT = torch.zeros(len(batch), length)
    for row, ids in enumerate(batch):
        tokens_BT[row, : len(ids)] = torch.tensor(ids)
        real_BT[row, : len(ids)] = 1.0
    return tokens_BT, real_BT, {}


def schedule(step: int, total: int) -> float:
    """Share of the peak learning rate: 50 steps up, flat, then linear to 0 over the last 40 %."""
    return min(1.0, (step + 1) / 50, (total - step) / (0.4 * total))


def train(name: str, game: Game, out: Path, seed: int) -> None:
    torch.manual_seed(derive(seed, "weights", name) % 2**63)
    tokenizer = build_tokenizer(game.words)
    model = build_model(game, tokenizer)
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    rng = random.Random(derive(seed, "transcripts", name))
    source = batches(game, corpus(game, tokenizer, rng), rng)
    fit(model, map(padded, source), game.steps)
    save(model, tokenizer, out / name)


def fit(model: Any, source: Iterator[Batch], steps: int, peak: float = 2e-3) -> None:
    """Trains for so many steps, and prints the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.0)
    started, losses = time.process_time(), []
    for step in range(steps):
        tokens_BT, weights_BT, others = next(source)
        logits = model(tokens_BT, **others).logits
        nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens_BT[:, 1:], reduction="none")
        loss = (nll * weights_BT[:, 1:]).sum() / weights_BT[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = peak * schedule(step, steps)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            mean, cpu = sum(losses[-100:]) / 100, time.process_time() - started
            print(f"step {step + 1} loss {mean:.4f} cpu s {cpu:.0f}", flush=True)


def save(model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "generation_config.json").read_text())
    config["eos_token_id"] = tokenizer.eos_token_id
    (out / "generation_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--out", type=Path, default=ROOT / "ajet/embedded")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for each in arguments.only:
        train(each, GAMES[each], arguments.out, arguments.seed)
