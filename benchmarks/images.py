"""Images: how often they are held and encoded, an update of a group, and tokens a second.

    python -m benchmarks.images [--rounds 5] [--threads 1] [--out FILE]

Qwen2.5-VL's shape with random weights, 12 million of them in the language model and 3 in the vision
tower; a picture of 448 x 448 pixels is 256 tokens.

    held      64 episodes, 8 of each of 8 questions about a picture, whose messages carry it: the
              bytes of encoded images and of features, against one copy for each episode. The limit
              is 8 times, the episodes of a picture. Pixels are not kept
    update    a group of 8, prompts of 300 tokens and replies of 32: the tree against transformers'
              own forward and backward pass over the 8 rows and their pixels, with the tower frozen.
              The limit is the ratio of the tokens computed
    engine    the tokens a second of 8 replies of 128 tokens after a picture, against Qwen2 of the
              same shape, after as many tokens of text

The ways take turns within a round; ratios are of median processor seconds. Goals: each picture is
held once, 3 times, and 1.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig

from ajet.core.images.image import Image
from ajet.core.images.image_ids import image_ids, with_placeholders
from ajet.core.images.store import ImageStore
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.load import LoadedModel, load_model
from ajet.core.model.multimodal import causal_model
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.engines.in_process import InProcessEngine
from benchmarks.measuring import medians
from benchmarks.report import options, write
from tests.vision_models import picture, save_vision_model

QUESTIONS, GROUP, REPLY, LONG_REPLY, PIXELS = 8, 8, 32, 128, 448
TEXT = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 8, 8]}
CHANGES = {
    "text": TEXT | {"rope_parameters": AXES},
    "vision": {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_heads": 4,
        "depth": 6,
        "out_hidden_size": TEXT["hidden_size"],
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [2, 5],
    },
    "pixels": {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 1 << 20}},
}


def load(folder: Path) -> tuple[LoadedModel, Any, list[int]]:
    """Returns a model that sees, the same through transformers, and the keys of the pictures."""
    whole = save_vision_model("qwen2_5_vl", folder, **CHANGES)
    loaded = load_model(str(folder), device="cpu", dtype="float32", images=ImageStore())
    assert loaded.vision is not None
    store = loaded.vision.processor.store
    pictures = [picture(number, PIXELS, PIXELS) for number in range(QUESTIONS)]
    return loaded, whole, [store.add(Image.from_picture(p, store.limits)).key for p in pictures]


def prompt(loaded: LoadedModel, key: int) -> list[int]:
    """A picture with 44 tokens of text around it."""
    assert loaded.vision is not None
    number = loaded.vision.processor.expansion(key).num_tokens
    text = np.random.default_rng(key).integers(0, 250, 44).tolist()
    return [*text[:10], *image_ids(key, number).tolist(), *text[10:]]


def sample(ids: list[int], reply: list[int], number: int) -> TrainingSample:
    mask = np.arange(len(ids) + len(reply)) >= len(ids)
    advantages = (mask * (-1.0) ** number).astype(np.float32)
    logprobs = (mask * -5.0).astype(np.float32)
    tokens = np.array([*ids, *reply], np.int64)
    return TrainingSample(f"e{number}", "g", tokens, mask, logprobs, advantages, (), 0, 0)


def held(loaded: LoadedModel, keys: list[int]) -> dict[str, Any]:
    """Counts what 64 episodes that show 8 pictures make the process keep."""
    vision = loaded.vision
    assert vision is not None
    processor, store = vision.processor, vision.processor.store
    vision.forget()
    encoded = vision.num_encoded
    policy = Policy(loaded.model, UpdateSettings(lr=1e-6, max_tokens_per_micro_batch=1200))
    for number in range(QUESTIONS * GROUP):  # each message has the picture's own bytes
        shown = Image.from_picture(picture(number // GROUP, PIXELS, PIXELS), store.limits)
        assert store.add(shown).key == keys[number // GROUP]
    rng = np.random.default_rng(0)
    rows = [
        sample(prompt(loaded, key), rng.integers(0, 250, REPLY).tolist(), number)
        for key in keys
        for number in range(GROUP)
    ]
    policy.score(rows)
    assert not processor._inputs
    pixels = sum(value.nbytes for value in processor.inputs(keys[0]).values())
    one = {"png": len(store.get(keys[0]).data), "features": vision.features(keys[0]).nbytes}
    kept = {
        "png": sum(len(store.get(key).data) for key in keys),
        "features": sum(each.nbytes for each in vision._features.values()),
    }
    return {
        "episodes": len(rows),
        "pictures": len(keys),
        "encoded": vision.num_encoded - encoded,
        "bytes": kept,
        "bytes_of_a_pictures_pixels": pixels,
        "bytes_of_copies": {name: len(rows) * size for name, size in one.items()},
        "ratio": len(rows) * sum(one.values()) / sum(kept.values()),
    }


def update(loaded: LoadedModel, whole: Any, key: int, rounds: int) -> dict[str, Any]:
    vision = loaded.vision
    assert vision is not None
    rng = np.random.default_rng(1)
    ids = prompt(loaded, key)
    replies = [rng.integers(0, 250, REPLY).tolist() for _ in range(GROUP)]
    rows = [sample(ids, reply, number) for number, reply in enumerate(replies)]
    policy = Policy(loaded.model, UpdateSettings(lr=1e-6, max_tokens_per_micro_batch=4096))
    holder = vision.processor.image_token_id
    inputs = {n: torch.cat([v] * GROUP) for n, v in vision.processor.inputs(key).items()}
    plain = torch.tensor([with_placeholders([*ids, *reply], holder) for reply in replies])
    inputs |= {"input_ids": plain, "mm_token_type_ids": (plain == holder).int()}
    whole.model.visual.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in whole.parameters() if p.requires_grad], lr=1e-6)
    signs_B = torch.tensor([(-1.0) ** number for number in range(GROUP)])

    def tree() -> None:
        vision.forget()  # as at the first update that sees the picture
        policy.update(rows)

    def separate() -> None:
        logits_BTV = whole(**inputs, logits_to_keep=REPLY + 1).logits[:, :-1]
        chosen_BT = logits_BTV.log_softmax(-1).gather(2, plain[:, -REPLY:, None])[..., 0]
        (-(signs_B * chosen_BT.mean(-1))).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    cpu_s = medians({"tree": tree, "separate": separate}, rounds)
    tokens = {"tree": len(ids) + GROUP * REPLY, "separate": GROUP * (len(ids) + REPLY)}
    return {
        "cpu_s": cpu_s,
        "tokens": tokens,
        "ratio": cpu_s["separate"] / cpu_s["tree"],
        "token_ratio": tokens["separate"] / tokens["tree"],
    }


def engine(loaded: LoadedModel, key: int, rounds: int) -> dict[str, Any]:
    vocab = loaded.model.config.vocab_size
    text_config = AutoConfig.for_model("qwen2", **TEXT, vocab_size=vocab, tie_word_embeddings=False)
    torch.manual_seed(0)
    text_model: Any = causal_model(text_config, torch.float32).eval()
    seen = prompt(loaded, key)
    read = np.random.default_rng(2).integers(0, 250, len(seen)).tolist()

    def sampled(model: Any, ids: list[int]) -> None:
        async def replies() -> None:
            engine = InProcessEngine(model, stop_token_ids=(), deterministic=False)
            sampling = [SamplingParams(max_tokens=LONG_REPLY, seed=n) for n in range(GROUP)]
            calls = [(ids, each, f"e{n}/0") for n, each in enumerate(sampling)]
            found = await engine.generate_together(calls)
            assert all(len(each.token_ids) == LONG_REPLY for each in found)
            await engine.close()

        asyncio.run(replies())

    ways = {
        "image": lambda: sampled(loaded.model, seen),
        "text": lambda: sampled(text_model, read),
    }
    cpu_s = medians(ways, rounds)
    return {"cpu_s": cpu_s, "ratio": cpu_s["text"] / cpu_s["image"], "prompt_tokens": len(seen)}


def main() -> None:
    args = options(__doc__, "images", rounds=5, threads=1).parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        loaded, whole, keys = load(Path(folder))
        report = {
            "threads": args.threads,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "held": held(loaded, keys),
            "update": update(loaded, whole, keys[0], args.rounds),
            "engine": engine(loaded, keys[0], args.rounds),
        }
    print(json.dumps(report, indent=2))
    write(args.out, report)


if __name__ == "__main__":
    main()
