"""Build `embedded:frozen_lake_pixels` and `embedded:sokoban_pixels`, which see and act at random.

    python scripts/build_embedded_pixels.py            # both, three quarters of an hour of a core
    python scripts/build_embedded_pixels.py --only sokoban_pixels

Each is a LLaVA of 0.37 million parameters: a SigLIP tower with a patch for each tile, a projector,
and the decoder of build_embedded_games.py. It reads steps of games that are played at random:

    user [picture]       assistant _P_O_O_____OO__G You 0 1 Left ice Down hole … Up wall Right
    user                 Right ice
    user [picture] ice   assistant _P_O_O_____OO__G You 0 1 Left ice … Left Right   second stage

    user [picture]       assistant _##__XP_… Box north0 west1 … Up wall … Left push Down
    user                 Down walk

A reply says what the picture shows and what is around, and then an action, any; what came of it
follows. So it knows what a picture shows and what an action does, and acts at random, whatever it
sees. In Sokoban it also says where the box is from the player, the target from the box, and the
tile from which the box is pushed toward the target. Playing well is left to reinforcement learning
(benchmarks/learning_pixels.py). Only training instances are shown. Reproducible for one version of
torch.
"""

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from build_embedded_games import ROOT, Batch, build_tokenizer, fit, padded
from transformers import LlavaConfig, LlavaForConditionalGeneration, Qwen2Tokenizer

from ajet.core.seeding import derive
from ajet.environments.frozen_lake import ACTIONS, MOVES, NAMES, SYMBOLS, TILES, FrozenLake
from ajet.environments.frozen_lake import _with_player as with_player
from ajet.environments.sokoban import TILES as ROOM_TILES
from ajet.environments.sokoban import Sokoban
from ajet.environments.tiles import TILE_PIXELS, draw_grid

IMAGE = "<image>"
ROOM_DEPTH, ROOM_STEPS = 4, 10
ROOM_MOVES = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
PUSHES = {"#": "stuck", "_": "push", "O": "goal"}


@dataclass(frozen=True)
class Scene:
    """A picture, what it shows in words, what is in the direction of each action, and the actions
    that lead somewhere."""

    picture: np.ndarray
    words: str
    near: list[str]
    ways: list[str]


@dataclass(frozen=True)
class Game:
    """A game that is seen. `size` is the number of tiles on a side of its picture, `free` asks for
    the ways, and `words` become single tokens."""

    scene: Callable[[random.Random], Scene]
    size: int
    free: str
    words: str


def lake_scene(rng: random.Random) -> Scene:
    lake = FrozenLake(view="image", show_neighbours=False)
    lake.reset(seed=rng.getrandbits(40), options={"split": "train"})
    tiles, size = "".join(lake.map), len(lake.map)
    place = rng.choice([n for n, tile in enumerate(tiles) if tile in "SF"])
    shown = with_player(lake.map, place, SYMBOLS)
    beside = []
    for down, right in MOVES:
        y, x = place // size + down, place % size + right
        inside = 0 <= y < size and 0 <= x < size
        beside.append(NAMES[tiles[y * size + x]] if inside else "wall")
    near = [f"{action} {name}" for action, name in zip(ACTIONS, beside, strict=True)]
    ways = [each.split()[0] for each in near if each.split()[1] in ("ice", "goal")]
    words = f"{''.join(shown)} You {place // size} {place % size}"
    return Scene(draw_grid(shown, TILES), words, near, ways)


def room_scene(rng: random.Random) -> Scene:
    """A room after some moves, without its outer walls, where nothing else ever is."""
    room = Sokoban(search_depth=ROOM_DEPTH, max_steps=ROOM_STEPS)
    _, info = room.reset(seed=rng.getrandbits(40), options={"split": "train"})
    states = [info["state_key"]]
    for _ in range(rng.randrange(ROOM_STEPS)):
        _, _, is_solved, _, info = room.step(room.sample_action(rng))
        if is_solved:
            break
        states.append(info["state_key"])
    rows = states[-1].splitlines()
    places = {tile: (y, x) for y, row in enumerate(rows) for x, tile in enumerate(row)}
    you = places["P"] if "P" in places else places["S"]
    box, target = places["X"], places.get("O", you)
    inside = "".join(row[1:-1] for row in rows[1:-1])
    words = [inside, f"Box {toward(you, box)}", f"Target {toward(box, target)}"]
    words.append(f"Stand {toward(you, standing(rows, box, target))}")
    near, ways = [], []
    for action, (down, right) in ROOM_MOVES.items():
        y, x = you[0] + down, you[1] + right
        ahead = rows[y][x]
        outcome = {"#": "wall", "_": "walk", "O": "walk"}.get(ahead) or PUSHES[
            rows[y + down][x + right]
        ]
        near.append(f"{action} {outcome}")
        if outcome not in ("wall", "stuck"):
            ways.append(action)
    return Scene(draw_grid(rows, ROOM_TILES), " ".join(words), near, ways)


def standing(rows: list[str], box: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """The tile from which the box is pushed toward its target: along the longer way, unless a wall
    is there or in the box's way."""
    ways = []
    for axis in (0, 1):
        way = target[axis] - box[axis]
        if not way:
            continue
        sign = 1 if way > 0 else -1
        step = (sign, 0) if axis == 0 else (0, sign)
        stand = (box[0] - step[0], box[1] - step[1])
        after = (box[0] + step[0], box[1] + step[1])
        is_blocked = "#" in (rows[stand[0]][stand[1]], rows[after[0]][after[1]])
        ways.append((is_blocked, -abs(way), stand))
    return min(ways)[2]


def toward(a: tuple[int, int], b: tuple[int, int]) -> str:
    """The way from a to b: north2 west1. An action's own words, learnt to be said more often, would
    be said here, too."""
    down, right = b[0] - a[0], b[1] - a[1]
    vertical, horizontal = "north" if down < 0 else "south", "west" if right < 0 else "east"
    return f"{vertical}{abs(down)} {horizontal}{abs(right)}"


GAMES = {
    "frozen_lake_pixels": Game(
        lake_scene,
        4,
        "ice",
        "user assistant You wall ice hole goal Left Down Right Up",
    ),
    "sokoban_pixels": Game(
        room_scene,
        6,
        "free",
        "user assistant Box Target Stand wall walk stuck push goal free north south east west "
        "Up Down Left Right",
    ),
}


TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {{- '<image>' if part.type == 'image' else part.text }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def pixels_config(game: Game) -> dict[str, Any]:
    side = game.size * TILE_PIXELS
    return {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": side, "width": side},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def tokenizer_with_images(game: Game) -> Qwen2Tokenizer:
    tokenizer = build_tokenizer(game.words)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", IMAGE]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(
    game: Game, tokenizer: Qwen2Tokenizer, hidden: int, layers: int
) -> LlavaForConditionalGeneration:
    heads = {"num_attention_heads": 4, "intermediate_size": 3 * hidden, "hidden_size": hidden}
    config = LlavaConfig(
        text_config={
            "model_type": "qwen2",
            "vocab_size": (len(tokenizer) + 15) // 16 * 16,
            "num_hidden_layers": layers,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": None,
            **heads,
        },
        vision_config={
            "model_type": "siglip_vision_model",
            "num_hidden_layers": 2,
            "image_size": game.size * TILE_PIXELS,
            "patch_size": TILE_PIXELS,
            "vision_use_head": False,
            **heads,
        },
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=game.size**2,
        tie_word_embeddings=True,
    )
    config.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
    return LlavaForConditionalGeneration(config).float()


def row(
    game: Game, tokenizer: Qwen2Tokenizer, rng: random.Random, share_of_ways: float
) -> tuple[np.ndarray, list[int]]:
    """A picture, and the ids of a step or, so often, of the ways."""
    scene = game.scene(rng)
    words = " ".join([scene.words, *scene.near])
    image = {"type": "image"}
    if share_of_ways and rng.random() < share_of_ways:
        content = [image, {"type": "text", "text": f" {game.free}"}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        messages.append({"role": "assistant", "content": " ".join([words, *scene.ways])})
    else:
        seen = rng.choice(scene.near)
        messages = [{"role": "user", "content": [image]}]
        messages.append({"role": "assistant", "content": f"{words} {seen.split()[0]}"})
        messages.append({"role": "user", "content": seen})
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert isinstance(text, str)
    return scene.picture, tokenizer.encode(text.replace(IMAGE, IMAGE * game.size**2))


def batch(rows: list[tuple[np.ndarray, list[int]]], holder: int) -> Batch:
    """Ids of which text is trained, and pixels as the processor makes them; `holder` is the id that
    stands for a patch."""
    pixels = torch.from_numpy(np.stack([picture for picture, _ in rows])).permute(0, 3, 1, 2)
    tokens_BT, real_BT, _ = padded([ids for _, ids in rows])
    weights_BT = real_BT * (tokens_BT != holder)
    return tokens_BT, weights_BT, {"pixel_values": pixels.float() / 127.5 - 1.0}


@dataclass(frozen=True)
class Stage:
    """A pass over rows of its own, with a schedule of its own."""

    name: str
    steps: int
    lr: float
    share_of_ways: float


STAGES = (
    Stage("rows", 6000, 2e-3, 0.0),
    Stage("ice", 3000, 1e-3, 0.35),
)


def train(name: str, args: argparse.Namespace) -> None:
    game = GAMES[name]
    torch.manual_seed(derive(args.seed, "weights", name) % 2**63)
    tokenizer = tokenizer_with_images(game)
    model = build_model(game, tokenizer, args.hidden, args.layers)
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters", flush=True)
    for stage in STAGES:
        rng = random.Random(derive(args.seed, stage.name, name))
        rows = [row(game, tokenizer, rng, stage.share_of_ways) for _ in range(args.rows)]
        drawn = (rng.choices(rows, k=args.batch) for _ in range(stage.steps))
        batches = (batch(each, model.config.image_token_id) for each in drawn)
        print(stage.name, flush=True)
        fit(model, batches, stage.steps, stage.lr)
    save(game, model, tokenizer, args.out / name)


def save(
    game: Game, model: LlavaForConditionalGeneration, tokenizer: Qwen2Tokenizer, out: Path
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(pixels_config(game), indent=2) + "\n")
    settings = {"patch_size": TILE_PIXELS, "vision_feature_select_strategy": "full"}
    (out / "processor_config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "ajet/embedded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=16_384)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--only", choices=list(GAMES))
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    for name in [given.only] if given.only else GAMES:
        train(name, given)
