"""Build `embedded:frozen_lake_pixels`, a model that sees a lake as a picture and walks at random.

    python scripts/build_embedded_pixels.py            # a quarter of an hour of a core

A LLaVA of 0.37 million parameters: a SigLIP tower with a patch for each tile, a projector, and the
decoder of build_embedded_games.py. It reads steps of lakes that are crossed at random:

    user [picture]       assistant _P_O_O_____OO__G You 0 1 Left ice Down hole … Up wall Right
    user                 Right ice
    user [picture] ice   assistant _P_O_O_____OO__G You 0 1 Left ice … Left Right   second stage

A reply says what the picture shows, where the player is and what is around, and then an action,
any; what came of it follows. So it knows what a picture shows and what an action does, and acts at
random, whatever it sees. Playing well is left to reinforcement learning
(benchmarks/learning_pixels.py). Only training lakes are shown. Reproducible for one version of
torch.
"""

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from build_embedded_games import ROOT, Game, build_tokenizer, schedule
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration, Qwen2Tokenizer

from ajet.core.seeding import derive
from ajet.environments.frozen_lake import ACTIONS, MOVES, NAMES, SYMBOLS, TILES, FrozenLake
from ajet.environments.frozen_lake import _with_player as with_player
from ajet.environments.tiles import TILE_PIXELS, draw_grid

IMAGE = "<image>"
SIZE = 4
GAME = Game(
    environment=FrozenLake,
    words="user assistant You wall ice hole goal " + " ".join(ACTIONS),
    max_steps=12,
    steps=0,
    batch=0,
    action=lambda environment, rng: environment.sample_action(rng),
)
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
PIXELS = {
    "image_processor_type": "SiglipImageProcessor",
    "size": {"height": SIZE * TILE_PIXELS, "width": SIZE * TILE_PIXELS},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def tokenizer_with_images() -> Qwen2Tokenizer:
    tokenizer = build_tokenizer(GAME)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", IMAGE]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(
    tokenizer: Qwen2Tokenizer, hidden: int, layers: int
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
            "image_size": SIZE * TILE_PIXELS,
            "patch_size": TILE_PIXELS,
            "vision_use_head": False,
            **heads,
        },
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=SIZE * SIZE,
        tie_word_embeddings=True,
    )
    config.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
    return LlavaForConditionalGeneration(config).float()


def row(
    tokenizer: Qwen2Tokenizer, rng: random.Random, share_of_ice: float
) -> tuple[np.ndarray, list[int]]:
    """A picture, and the ids of a step or of a description. So many tell where the ice is."""
    lake = FrozenLake(view="image", show_neighbours=False)
    lake.reset(seed=rng.getrandbits(40), options={"split": "train"})
    tiles = "".join(lake.map)
    place = rng.choice([n for n, tile in enumerate(tiles) if tile in "SF"])
    shown = with_player(lake.map, place, SYMBOLS)
    picture = draw_grid(shown, TILES)
    where = f"{''.join(shown)} You {place // SIZE} {place % SIZE}"
    near = [
        f"{action} {beside(tiles, place, move)}"
        for action, move in zip(ACTIONS, MOVES, strict=True)
    ]
    image = {"type": "image"}
    if share_of_ice and rng.random() < share_of_ice:
        content = [image, {"type": "text", "text": " ice"}]
        messages = [{"role": "user", "content": content}]
        ways = [each.split()[0] for each in near if each.split()[1] in ("ice", "goal")]
        messages.append({"role": "assistant", "content": " ".join([where, *near, *ways])})
    else:
        number = rng.randrange(4)
        messages = [{"role": "user", "content": [image]}]
        messages.append(
            {"role": "assistant", "content": f"{where} {' '.join(near)} {ACTIONS[number]}"}
        )
        messages.append({"role": "user", "content": near[number]})
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert isinstance(text, str)
    return picture, tokenizer.encode(text.replace(IMAGE, IMAGE * SIZE * SIZE))


def beside(tiles: str, place: int, move: tuple[int, int]) -> str:
    """What is next to a place in the direction of a move."""
    y, x = place // SIZE + move[0], place % SIZE + move[1]
    return NAMES[tiles[y * SIZE + x]] if 0 <= y < SIZE and 0 <= x < SIZE else "wall"


def batch(rows: list[tuple[np.ndarray, list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels as the processor makes them, right-padded ids ``[B, T]``, and where they are text."""
    pixels = torch.from_numpy(np.stack([picture for picture, _ in rows])).permute(0, 3, 1, 2)
    length = max(len(ids) for _, ids in rows)
    tokens_BT = torch.zeros(len(rows), length, dtype=torch.long)
    real_BT = torch.zeros(len(rows), length)
    for n, (_, ids) in enumerate(rows):
        tokens_BT[n, : len(ids)] = torch.tensor(ids)
        real_BT[n, : len(ids)] = 1.0
    return pixels.float() / 127.5 - 1.0, tokens_BT, real_BT


@dataclass(frozen=True)
class Stage:
    """A pass over rows of its own, with a schedule of its own."""

    name: str
    steps: int
    lr: float
    share_of_ice: float


STAGES = (
    Stage("rows", 6000, 2e-3, 0.0),
    Stage("ice", 3000, 1e-3, 0.35),
)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(derive(args.seed, "weights", "frozen_lake_pixels") % 2**63)
    tokenizer = tokenizer_with_images()
    model = build_model(tokenizer, args.hidden, args.layers)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    for stage in STAGES:
        run_stage(model, tokenizer, stage, args)
    save(model, tokenizer, args.out / "frozen_lake_pixels")


def run_stage(
    model: LlavaForConditionalGeneration,
    tokenizer: Qwen2Tokenizer,
    stage: Stage,
    args: argparse.Namespace,
) -> None:
    holder = model.config.image_token_id
    rng = random.Random(derive(args.seed, stage.name, "frozen_lake_pixels"))
    rows = [row(tokenizer, rng, stage.share_of_ice) for _ in range(args.rows)]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=stage.lr, betas=(0.9, 0.95), weight_decay=0
    )
    started, losses = time.process_time(), []
    for step in range(stage.steps):
        pixels, tokens_BT, real_BT = batch(rng.choices(rows, k=args.batch))
        real_BT = real_BT * (tokens_BT != holder)
        logits = model(input_ids=tokens_BT, pixel_values=pixels).logits
        nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), tokens_BT[:, 1:], reduction="none")
        loss = (nll * real_BT[:, 1:]).sum() / real_BT[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = stage.lr * schedule(step, stage.steps)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            mean, cpu = sum(losses[-100:]) / 100, time.process_time() - started
            print(f"{stage.name} {step + 1} loss {mean:.4f} cpu s {cpu:.0f}", flush=True)


def save(model: LlavaForConditionalGeneration, tokenizer: Qwen2Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(PIXELS, indent=2) + "\n")
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
    torch.set_num_threads(1)
    train(parser.parse_args())
