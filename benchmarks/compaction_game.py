"""A game longer than its player's context, and the tiny model that plays it.

    Room wall wall … code⏎red     agent: go       the code is said once, early
    Room wall wall … sign⏎blue    agent: go       other rooms have other words, or none
    Lock                          agent: red      reward 1 if it is the code

The rooms have more tokens than the context, so the code is known at the lock only if something
carried it there. `build_model` trains a model of the form alone: it goes on through rooms, writes
the word of a summary and the word at the lock at random among the words that it sees, the code and
an earlier summary's word a little more often (3 to 2). What it does not know, and reinforcement
learning has to find, is to write the code alone. Used by compaction.py.
"""

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from report import ROOT

from ajet.core.environment.environment import Environment, Info
from ajet.core.seeding import derive
from ajet.environments.randomness import belongs_to

sys.path.insert(0, str(ROOT / "scripts"))
import build_embedded_games as games  # pyright: ignore[reportMissingImports]

WORDS = "red blue green black white gold silver brown pink grey lamp chair horse tree cloud stone"
WORDS_LIST = WORDS.split()
WALLS = " wall" * 10
ROOMS = 8
SECTIONS = (4, 3, 2)
"""How many observations the model sees between summaries, with the context of compaction.py."""


def rooms_of(rng: random.Random) -> tuple[list[str], str]:
    """Returns the observations of all rooms and the code."""
    code, at = rng.choice(WORDS_LIST), rng.choice((1, 2))
    shown: list[str] = []
    for room in range(ROOMS):
        sign = f" sign\n{rng.choice(WORDS_LIST)}" if room and rng.random() < 0.5 else " wall wall"
        shown.append(f"Room{WALLS}" + (f" code\n{code}" if room == at else sign))
    return shown, code


class Vault(Environment):
    """The game above. Any action goes on to the next room."""

    instruction = "Remember the code. Say go in every room, and the code at the lock."
    is_quick: ClassVar[bool] = True

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._code, self._room = "", 0

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        split = (options or {}).get("split")
        rng = random.Random(seed)
        while True:
            self._shown, self._code = rooms_of(rng)
            if belongs_to(split, *self._shown):
                break
        self._room = 0
        return self._shown[0], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._room == ROOMS:
            is_code = action.strip() == self._code
            return "Lock", float(is_code), True, False, {"metrics": {"success": is_code}}
        self._room += 1
        return (self._shown[self._room] if self._room < ROOMS else "Lock"), 0.0, False, False, {}

    def sample_action(self, rng: random.Random) -> str:
        return rng.choice(WORDS_LIST)

    def oracle_action(self) -> str:
        return "go" if self._room < ROOMS else self._code


# ---------------------------------------------------------------- the model


def drawn(rng: random.Random, observations: list[str], note: str | None) -> str:
    """Returns a word among those that are seen."""
    pairs = [text.split()[-2:] for text in observations]
    words = [(word, 3 if kind == "code" else 2) for kind, word in pairs if kind in ("code", "sign")]
    words += [(note, 3)] if note else []
    words = words or [(rng.choice(WORDS_LIST), 1)]
    return rng.choices([word for word, _ in words], [weight for _, weight in words])[0]


def conversations(rng: random.Random) -> list[list[dict[str, str]]]:
    """Returns what the model sees of one game: a conversation for each part between summaries."""
    shown, _ = rooms_of(rng)
    shown.append("Lock")
    result: list[list[dict[str, str]]] = []
    note: str | None = None
    start = 0
    for number, length in enumerate(SECTIONS):
        messages: list[dict[str, str]] = []
        if note is not None:
            messages += [_user(shown[0]), _reply(note) | {"is_given": "yes"}]
        for index in range(start, start + length):
            reply = "go" if index < ROOMS else drawn(rng, shown[start:index], note)
            messages += [_user(shown[index]), _reply(reply)]
        if number < len(SECTIONS) - 1:
            note = drawn(rng, shown[start : start + length], note)
            messages += [_user("note"), _reply(note)]
        result.append(messages)
        start += length
    at = rng.randrange(ROOMS + 1)
    alone = "go" if at < ROOMS else rng.choice(WORDS_LIST)
    return [*result, [_user(shown[at]), _reply(alone)]]


def copies(rng: random.Random) -> list[dict[str, str]]:
    """Returns a conversation of one room, whose word is asked for: what the model learns first."""
    word, asked = rng.choice(WORDS_LIST), rng.choice(("note", "Lock"))
    room = f"Room{WALLS} {rng.choice(('code', 'sign'))}\n{word}"
    return [_user(room), _reply("go"), _user(asked), _reply(word)]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def tokens_of(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """Returns a conversation's token ids, and 1 for each token that the model writes."""
    ids: list[int] = []
    is_reply: list[int] = []
    for message in messages:
        parts = (f"<|im_start|>{message['role']}\n", f"{message['content']}<|im_end|>", "\n")
        for number, part in enumerate(parts):
            new = tokenizer.encode(part, add_special_tokens=False)
            ids += new
            is_sampled = message["role"] == "assistant" and "is_given" not in message
            is_reply += [int(number == 1 and is_sampled)] * len(new)
    return ids, is_reply


def weighted(
    tokenizer: Any, batch: list[list[dict[str, str]]]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Returns the tokens of conversations, and 1 for each that the loss is about, a reply's."""
    written = [tokens_of(tokenizer, messages) for messages in batch]
    tokens_BT, *_ = games.padded([ids for ids, _ in written])
    replies_BT, *_ = games.padded([is_reply for _, is_reply in written])
    return tokens_BT, replies_BT.float(), {}


def build_model(out: Path, seed: int = 0, steps: int = 1500) -> None:
    """Trains the model on conversations of games, and writes it into the folder `out`."""
    torch.set_num_threads(1)
    torch.manual_seed(derive(seed, "weights", "vault") % 2**63)
    words = f"user assistant note go Room Lock wall sign code {WORDS}"
    game = games.Game(Vault, words, ROOMS + 1, steps, 32, games.valid_action, hidden=64, layers=3)
    tokenizer = games.build_tokenizer(game.words)
    model = games.build_model(game, tokenizer)
    rng = random.Random(derive(seed, "conversations", "vault"))
    written = (
        [copies(rng) for _ in range(32)]
        if step < steps // 3
        else [each for _ in range(8) for each in conversations(rng)]
        for step in range(steps)
    )
    games.fit(model, (weighted(tokenizer, batch) for batch in written), steps)
    games.save(model, tokenizer, out)


if __name__ == "__main__":
    build_model(Path(sys.argv[1]))
