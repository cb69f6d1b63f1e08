"""Experts as vLLM and SGLang send them, from small servers that answer in their forms."""

import base64
import io
import json

import numpy as np
import pytest
from fastapi import FastAPI

from ajet.core.errors import ConfigError, ModelError
from ajet.core.inference.endpoint import SamplingParams
from ajet.servers.process import free_port
from ajet.servers.replica import ExpertShape, ServedModel
from ajet.servers.settings import ServerSettings, SglangServerArgs, VllmServerArgs
from ajet.servers.sglang_replica import SglangReplica
from ajet.servers.vllm_replica import VllmReplica
from tests.sglang_server import Serving

PROMPT, REPLY = [7, 8, 9], [5, 6]
SHAPE = ExpertShape(num_layers=3, num_experts=300, top_k=2)
ROUTES = np.arange(4 * 3 * 2).reshape(4, 3, 2) * 12
"""For all tokens but the last one."""


class Answering:
    """Answers with `ROUTES`, or the first `num_tokens` of them."""

    def __init__(self, num_tokens=4):
        self.routes, self.bodies = ROUTES[:num_tokens], []

    async def vllm(self, body: dict):
        self.bodies.append(body)
        np.save(file := io.BytesIO(), self.routes.astype(np.uint16))
        choice = {
            "finish_reason": "length",
            "token_ids": REPLY,
            "logprobs": {"token_logprobs": [-1.0, -2.0]},
            "routed_experts": base64.b64encode(file.getvalue()).decode(),
        }
        return {"choices": [choice]}

    async def sglang(self, body: dict):
        self.bodies.append(body)
        sent = base64.b64encode(self.routes.astype(np.int32).tobytes()).decode()
        info = {
            "finish_reason": {"type": "length"},
            "output_token_logprobs": [[-1.0, REPLY[0], None], [-2.0, REPLY[1], None]],
        }
        if body.get("return_routed_experts"):
            info["routed_experts"] = sent
        return {"meta_info": info}

    def app(self):
        app = FastAPI()
        app.add_api_route("/v1/completions", self.vllm, methods=["POST"])
        app.add_api_route("/generate", self.sglang, methods=["POST"])
        return app


async def sampled(kind, server, experts=SHAPE):
    with Serving(server, free_port()) as serving:
        replica = kind("r0", serving.url, ServedModel("m", 320, 256, experts=experts))
        try:
            return await replica.generate(PROMPT, SamplingParams(max_tokens=2), "e/0")
        finally:
            await replica.close()


@pytest.mark.parametrize("kind", [VllmReplica, SglangReplica])
async def test_a_completion_has_the_servers_experts(kind):
    completion = await sampled(kind, Answering())
    assert (completion.routes == ROUTES).all()
    assert completion.routes.dtype == np.uint16  # 300 experts


@pytest.mark.parametrize("kind", [VllmReplica, SglangReplica])
async def test_a_server_that_sends_too_few_is_named(kind):
    with pytest.raises(ModelError, match=r"returned 18 numbers of experts, not 4 x 3 x 2 \(tok"):
        await sampled(kind, Answering(num_tokens=3))


async def test_they_are_asked_for_only_where_they_are_replayed():
    server = Answering()
    assert (await sampled(SglangReplica, server, experts=None)).routes is None
    assert "return_routed_experts" not in server.bodies[0]


@pytest.mark.parametrize("kind", [VllmServerArgs, SglangServerArgs])
@pytest.mark.parametrize("replays", [True, False])
def test_a_server_is_started_to_send_them(kind, replays):
    arguments = kind("m", 1, "python", routing_replay=replays).arguments()
    assert ("--enable-return-routed-experts" in arguments) is replays


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        ({"num_experts": 128, "num_experts_per_tok": 8}, (48, 128, 8)),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, (48, 8, 2)),
        ({"n_routed_experts": 256, "num_experts_per_tok": 8}, (48, 256, 8)),
    ],
)
def test_the_shape_is_read_from_the_models_config(tmp_path, names, shape):
    config = {"vocab_size": 9, "num_hidden_layers": 48, **names}
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = ServerSettings(str(tmp_path), 1, "python", routing_replay=True)
    assert settings.served_model(()).experts == ExpertShape(*shape)


def test_a_server_of_a_model_without_experts_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "model_type": "llama"}')
    settings = ServerSettings(str(tmp_path), 1, "python", routing_replay=True)
    with pytest.raises(ConfigError, match="'llama', has no experts to replay; leave it false"):
        settings.served_model(())
