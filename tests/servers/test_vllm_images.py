"""A real vLLM on the CPU that sees images, over a tiny Qwen2.5-VL; see test_vllm_replica.py.

Its environment needs torchvision beside (servers/serving.py says how to install it).
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from ajet.core.images.image import Image
from ajet.core.images.store import ImageStore
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.load import load_model
from ajet.core.model.save import model_files
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from ajet.core.weight_sync.folder import WeightFolder
from ajet.servers.process import free_port
from ajet.servers.settings import VllmServerArgs, start_vllm
from tests.core.model.families import AXES
from tests.core.model.test_vision import prompt, sample
from tests.servers.test_vllm_replica import PYTHON, START_S
from tests.vision_models import picture, save_vision_model

pytestmark = pytest.mark.vllm
needs_vllm = pytest.mark.skipif(
    not [*PYTHON.parents[1].glob("lib/*/site-packages/torchvision")],
    reason="no .venv-vllm with torchvision",
)
TEXT = {"hidden_size": 128, "head_dim": 32, "num_hidden_layers": 2}  # vLLM's smallest heads
SHORT = SamplingParams(max_tokens=8, seed=3)


def difference(loaded, reply):
    """The largest distance from the trainer's log-probabilities."""
    ids = [*reply.prompt_ids, *reply.token_ids]
    made = make_layout(loaded.model, "padded")
    with torch.no_grad():
        output = made.forward(rows_of([sample(ids, len(reply.token_ids))]))
        logits = output.head(output.features_UD)[output.index_M]
    chosen = torch.tensor(reply.token_ids)[:, None]
    logprobs = logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()
    return np.abs(logprobs - np.array(reply.logprobs)).max()


@needs_vllm
async def test_log_probabilities_are_the_trainers_before_and_after_new_weights(tmp_path):
    axes = AXES | {"mrope_section": [8, 4, 4]}
    changes = {"text": TEXT | {"rope_parameters": axes}, "vision": {"out_hidden_size": 128}}
    save_vision_model("qwen2_5_vl", tmp_path / "model", **changes)
    store = ImageStore()
    loaded = load_model(
        str(tmp_path / "model"), device="cpu", dtype="float32", images=store, train_tower=True
    )
    policy = Policy(loaded.model, UpdateSettings(lr=1e-3))
    policy.sends_tower = True
    files = model_files(loaded, is_whole=True)
    folder = WeightFolder.for_model(tmp_path / "weights", files)
    first = folder.write(1, policy.weights())
    sizes = [(16, 24), (24, 24), (16, 32)]
    pictures = [picture(n, *size) for n, size in enumerate(sizes)]
    one, two, three = (store.add(Image.from_picture(each, store.limits)).key for each in pictures)
    prompts = [
        prompt(loaded, pieces)
        for pieces in (["see ", one, " and ", two, " say "], [three, " now "], ["no image"])
    ]
    args = VllmServerArgs(
        str(first.path), free_port(), str(PYTHON), max_model_len=1024, max_images=4
    )
    replica = await start_vllm(
        args,
        name="r0",
        log_path=tmp_path / "r0.log",
        stop_token_ids=(),
        deadline_s=START_S,
        version=1,
        images=loaded.vision.processor,
    )
    try:
        with first.read_lock():
            await replica.load_weights(first, 1)
        for number, ids in enumerate(prompts):
            reply = await replica.generate(ids, SHORT, f"a{number}/0")
            assert reply.prompt_ids == tuple(ids) and len(reply.token_ids) == 8
            assert difference(loaded, reply) < 1e-4
        with torch.no_grad():
            for weight in loaded.model.parameters():  # the tower's, too
                weight += 0.02 * torch.randn_like(weight)
        loaded.vision.forget()
        await replica.load_weights(folder.write(2, policy.weights()), 2)
        for number, ids in enumerate(prompts):
            reply = await replica.generate(ids, SHORT, f"b{number}/0")
            assert reply.policy_version == 2 and difference(loaded, reply) < 1e-4
        asked = replica.generate(prompts[0], replace(SHORT, max_tokens=900), "c/0")
        running = asyncio.ensure_future(asked)
        await asyncio.sleep(0.5)
        replica.abort("c/0")
        assert (await running).finish_reason == "abort"
    finally:
        await replica.close()
