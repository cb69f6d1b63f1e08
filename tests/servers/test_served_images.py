"""Images as vLLM and SGLang take them, by small servers that expand a prompt as theirs do."""

import io
import json
import sys

import numpy as np
import pytest
from fastapi import FastAPI, Request
from PIL import Image as pillow

from ajet.core.config import load_config
from ajet.core.errors import ConfigError, ModelError
from ajet.core.images.forms import read_image
from ajet.core.images.image import NO_LIMITS, Image
from ajet.core.images.image_ids import image_ids
from ajet.core.images.processor import Expansion, ImageProcessor
from ajet.core.images.store import ImageStore
from ajet.core.inference.endpoint import SamplingParams
from ajet.servers.process import free_port
from ajet.servers.replica import ServedModel
from ajet.servers.serving import require_engine
from ajet.servers.settings import ServerSettings, SglangServerArgs, VllmServerArgs
from ajet.servers.sglang_replica import SglangReplica
from ajet.servers.vllm_replica import VllmReplica
from tests.sglang_server import Serving
from tests.vision_models import picture

REPLICAS = [VllmReplica, SglangReplica]
PAD, START, END = 300, 301, 302
REPLY = [5, 6]


class Tokenizer:
    def convert_tokens_to_ids(self, token):
        return {"<pad>": PAD, "<start>": START}[token]


class Processor:
    """`<pad>` becomes as many as the image is pixels wide."""

    image_token = "<pad>"
    tokenizer = Tokenizer()


class Widths(ImageProcessor):
    def __init__(self):
        super().__init__(Processor(), PAD, ImageStore())

    def expansion(self, key):
        width = self.store.get(key).width
        return Expansion("<pad>" * width, (PAD,) * width, width, None)


class Tiles(Widths):
    """`<start>` becomes itself, the pads, a line end: as SmolVLM and Gemma 3 do it."""

    def __init__(self):
        super().__init__()
        self.placeholder = "<start>"

    def expansion(self, key):
        width = self.store.get(key).width
        return Expansion("", (START, *(PAD,) * width, END), width, None)


class Expanding:
    """A server: one placeholder a picture, which becomes `PAD` x its width + `surplus`."""

    def __init__(self, surplus=0, returns=True):
        self.surplus, self.returns = surplus, returns
        self.paths, self.pictures, self.prompts, self.aborted = [], [], [], []
        self.reply = REPLY

    def expanded(self, ids, urls):
        self.prompts.append(ids)
        images = iter([pillow.open(io.BytesIO(read_image(url, NO_LIMITS).data)) for url in urls])
        out = []
        for each in ids:
            if each != PAD:
                out.append(each)
                continue
            image = next(images)
            self.pictures.append(np.asarray(image))
            out += [PAD] * (image.width + self.surplus)
        assert next(images, None) is None
        return {"prompt_token_ids": out} if self.returns else {}

    async def answer(self, request: Request):
        text, path = await request.body(), request.url.path
        body = json.loads(text) if text else {}
        self.paths.append(path)
        reason = "length" if self.reply else "abort"
        if path == "/inference/v1/generate":
            assert body["return_token_ids"] and body["sampling_params"]["logprobs"] == 0
            assert all(part["type"] == "image_url" for part in body["content_parts"])
            told = self.expanded(body["token_ids"], [each["url"] for each in body["content_parts"]])
            content = [
                {"token_id": token, "logprob": -float(n), "rank": 1, "top_logprobs": []}
                for n, token in enumerate(self.reply, 1)
            ]
            choice = {"token_ids": self.reply, "logprobs": {"content": content}}
            choice |= {"finish_reason": reason}
            return told | {"choices": [choice]}
        if path == "/v1/completions":
            logprobs = {"token_logprobs": [-1.0, -2.0]}
            choice = {"token_ids": REPLY, "logprobs": logprobs, "finish_reason": "length"}
            return {"choices": [choice]}
        if path == "/generate":
            told = {}
            if "image_data" in body:
                assert body["return_prompt_token_ids"]
                told = self.expanded(body["input_ids"], body["image_data"])
            sampled = [[-float(n), token, None] for n, token in enumerate(self.reply, 1)]
            info = {"finish_reason": {"type": reason}, "output_token_logprobs": sampled}
            return told | {"meta_info": info}
        self.aborted.append(body)
        return {"success": True}

    def app(self):
        app = FastAPI()
        app.add_api_route("/{path:path}", self.answer, methods=["POST"])
        return app


async def sampled(kind, server, prompt, images):
    with Serving(server, free_port()) as serving:
        replica = kind("r0", serving.url, ServedModel("m", 320, 256, images=images))
        try:
            return await replica.generate(prompt, SamplingParams(max_tokens=2), "e/0")
        finally:
            await replica.close()


def shown(images, *sizes):
    """The ids of images of these widths in the store."""
    pictures = [picture(n, 4, width) for n, width in enumerate(sizes)]
    keys = [images.store.add(Image.from_picture(each, NO_LIMITS)).key for each in pictures]
    return pictures, [
        image_ids(key, width).tolist() for key, width in zip(keys, sizes, strict=True)
    ]


@pytest.mark.parametrize("kind", REPLICAS)
async def test_a_server_gets_each_image_with_one_placeholder(kind):
    images, server = Widths(), Expanding()
    (small, large), (two, three) = shown(images, 2, 3)
    prompt = [7, *two, 8, *three, *two, 9]
    completion = await sampled(kind, server, prompt, images)
    assert completion.prompt_ids == tuple(prompt)
    assert (completion.token_ids, completion.logprobs) == ((5, 6), (-1.0, -2.0))
    assert server.prompts == [[7, PAD, 8, PAD, PAD, 9]]
    for got, expected in zip(server.pictures, (small, large, small), strict=True):
        assert np.array_equal(got, expected)
    assert server.paths == ["/inference/v1/generate" if kind is VllmReplica else "/generate"]


@pytest.mark.parametrize("kind", REPLICAS)
async def test_a_prompt_without_images_is_sent_as_before(kind):
    server = Expanding()
    completion = await sampled(kind, server, [7, 8, 9], Widths())
    assert completion.token_ids == (5, 6) and not server.prompts
    assert server.paths == ["/v1/completions" if kind is VllmReplica else "/generate"]


@pytest.mark.parametrize("kind", REPLICAS)
async def test_a_server_that_makes_other_tokens_of_an_image_is_refused(kind):
    images = Widths()
    _, (two,) = shown(images, 2)
    problem = "made 5 tokens of a prompt with images, which has 4 here, and they differ from pl.* 3"
    with pytest.raises(ModelError, match=problem):
        await sampled(kind, Expanding(surplus=1), [7, *two, 9], images)


@pytest.mark.parametrize("kind", REPLICAS)
async def test_a_server_that_does_not_say_what_it_made_of_an_image_is_refused(kind):
    images = Widths()
    _, (two,) = shown(images, 2)
    with pytest.raises(ModelError, match="does not return the ids of a prompt with images"):
        await sampled(kind, Expanding(returns=False), [7, *two, 9], images)


async def test_vllm_is_told_to_end_a_request_of_either_kind_and_to_forget_features():
    server = Expanding()
    with Serving(server, free_port()) as serving:
        replica = VllmReplica("r0", serving.url, ServedModel("m", 320, 256, images=Widths()))
        await replica.send_abort("e/0")
        await replica.send_empty_cache()
        await replica.close()
    assert server.aborted[0] == {"request_ids": ["cmpl-e/0-0", "generate-tokens-e/0"]}
    assert server.paths[1:] == ["/reset_prefix_cache", "/reset_encoder_cache"]


def test_marks_around_an_image_are_a_part_of_it():
    images = Tiles()
    _, (two,) = shown(images, 2)
    ids, keys = images.unexpanded([7, START, *two, END, 9])
    assert ids == [7, START, 9] and len(keys) == 1
    with pytest.raises(ModelError, match="the text around it has merged with its own marks"):
        images.unexpanded([7, START, *two, 9])


def test_a_placeholder_that_is_text_is_refused():
    images = Widths()
    _, (two,) = shown(images, 2)
    with pytest.raises(ModelError, match="a prompt has <pad> as text"):
        images.unexpanded([7, *two, PAD])


def test_the_servers_flags():
    common = {"model_path": "m", "port": 1, "python": "p"}
    vllm = VllmServerArgs(**common, max_images=3).arguments()
    assert "--enable-scale-out" in vllm and "--skip-tokenizer-init" not in vllm
    assert vllm[vllm.index("--limit-mm-per-prompt") + 1] == '{"image": 3, "video": 0}'
    sglang = SglangServerArgs(**common, max_images=3).arguments()
    assert "--enable-multimodal" in sglang and "--skip-tokenizer-init" not in sglang
    for kind in (VllmServerArgs, SglangServerArgs):
        plain = kind(**common).arguments()
        assert "--skip-tokenizer-init" in plain
        assert not {"--enable-scale-out", "--enable-multimodal"} & set(plain)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "ajet:\n  model: {path: m, images: {enabled: true, max_images: 5}}\n"
        "  rollout: {user_workflow: w.py->W, name: vllm}\n"
    )
    return lambda *overrides: load_config(path, list(overrides))


def test_the_config_says_how_many_images_a_server_takes(config):
    settings = {"model_path": "m", "device": "cpu", "port": 1, "python": "p"}
    assert ServerSettings.from_config(config(), **settings).max_images == 5
    off = config("ajet.model.images.enabled=false")
    assert ServerSettings.from_config(off, **settings).max_images == 0


def test_a_server_on_a_cpu_without_torchvision_is_one_line(config, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    run = config(f"ajet.rollout.server.python={python}")
    with pytest.raises(ConfigError, match=r"vllm needs torchvision: .* --no-deps torchvision=="):
        require_engine(run, "vllm", on_gpu=False)
    require_engine(run, "vllm", on_gpu=True)


def test_several_adapters_with_images_are_one_line(config):
    several = ["ajet.trainer_common.lora.rank=2", "ajet.trainer_common.lora.adapters=[a,b]"]
    run = config(*several, f"ajet.rollout.server.python={sys.executable}")
    with pytest.raises(ConfigError, match="vllm serves several adapters or images, not both yet"):
        require_engine(run, "vllm", on_gpu=True)


@pytest.mark.parametrize("kind", REPLICAS)
async def test_a_request_that_ended_before_it_ran_need_not_say_what_it_was(kind):
    images, server = Widths(), Expanding(returns=False)
    server.reply = []
    _, (two,) = shown(images, 2)
    completion = await sampled(kind, server, [7, *two, 9], images)
    assert completion.token_ids == () and completion.finish_reason == "abort"
