"""The replica over HTTP against a small server that, paused, treats requests as vLLM does."""

import asyncio

import pytest
import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.replica import ReplicaDown
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.manifest import WeightsError
from ajet.servers.process import free_port
from ajet.servers.replica import ServedModel
from ajet.servers.vllm_replica import VllmReplica
from tests.sglang_server import Serving

TEN = SamplingParams(max_tokens=10)


class PausedAsVllm:
    """A request that arrives after `/pause` is refused, as in vLLM 0.33; where `holds`, as in 0.32,
    it waits for `/resume`, or for the next `/pause` that aborts. `way_s` is how long one takes to
    arrive."""

    def __init__(self):
        self.holds = False
        self.way_s = self.sleep_s = 0.0
        self.is_paused = self.is_stuck = False
        self.num_aborts = 0
        self.can_reset = True
        self.calls = []

    async def completions(self, _: Request):
        await asyncio.sleep(self.way_s)
        aborts = self.num_aborts
        if self.is_paused and not self.holds:
            message = "Generation is paused. Please retry after it resumes."
            error = {"message": message, "type": "ServiceUnavailableError", "code": 503}
            return JSONResponse({"error": error}, 503)
        while self.is_paused and aborts == self.num_aborts:
            await asyncio.sleep(0.002)
        ids, reason = ([], "abort") if aborts != self.num_aborts else ([5] * 10, "length")
        logprobs = {"token_logprobs": [-0.5] * len(ids)}
        choice = {"finish_reason": reason, "token_ids": ids, "logprobs": logprobs}
        return {"choices": [choice]}

    async def pause(self, mode: str, clear_cache: bool):
        self.calls.append(("pause", mode))
        while self.is_stuck:
            await asyncio.sleep(0.01)
        self.is_paused = True
        self.num_aborts += mode == "abort"

    async def resume(self):
        self.is_paused = False

    async def reset(self):
        assert self.is_paused
        self.calls.append(("reset", ""))
        return {"success": self.can_reset}

    async def sleep(self, level: int):
        self.calls.append(("sleep", level))
        await asyncio.sleep(self.sleep_s)

    async def wake_up(self, request: Request):
        self.calls.append(("wake_up", *request.query_params.getlist("tags")))

    async def rpc(self):
        return {"results": [{"version": 1, "seconds": 0.1, "num_bytes": 12}]}

    def app(self):
        app = FastAPI()
        app.add_api_route("/wake_up", self.wake_up, methods=["POST"])
        app.add_api_route("/collective_rpc", self.rpc, methods=["POST"])
        app.add_api_route(
            "/v1/completions", self.completions, methods=["POST"], response_model=None
        )
        app.add_api_route("/pause", self.pause, methods=["POST"])
        app.add_api_route("/resume", self.resume, methods=["POST"])
        app.add_api_route("/reset_prefix_cache", self.reset, methods=["POST"])
        app.add_api_route("/sleep", self.sleep, methods=["POST"])
        app.add_api_route("/health", lambda: None, methods=["GET"])
        return app


@pytest.fixture
async def served():
    stand_in = PausedAsVllm()
    with Serving(stand_in, free_port()) as serving:
        replica = VllmReplica("r0", serving.url, ServedModel("m", 320, 256), sleep_mode=True)
        yield stand_in, replica
        stand_in.is_stuck = False
        await replica.close()


async def test_a_grammar_needs_a_server_that_was_started_for_it():
    replica = VllmReplica("r0", "http://127.0.0.1:9", ServedModel("m", 9, 99))
    asked = SamplingParams(max_tokens=1, grammar='start: "a"')
    with pytest.raises(ModelError, match=r"^r0: .*set ajet\.rollout\.server\.grammars=true"):
        await replica.generate([1], asked, "e/0000")
    await replica.close()


@pytest.mark.parametrize("holds", [True, False], ids=["0.32", "0.33"])
@pytest.mark.parametrize("abort", [True, False], ids=["abort", "wait"])
async def test_a_pause_that_overtakes_a_request_does_not_wait_for_ever(served, abort, holds):
    stand_in, replica = served
    stand_in.holds = holds
    stand_in.way_s = 0.2
    late = asyncio.create_task(replica.generate([1], TEN, "e/0000"))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(replica.pause(abort), 5)
    reply = await late
    assert reply.finish_reason == ("abort" if abort else "length")
    assert stand_in.is_paused and stand_in.calls[-1] == ("pause", "wait")
    await replica.resume()
    assert len((await replica.generate([1], TEN, "e/0001")).token_ids) == 10


async def test_a_server_that_does_not_answer_what_it_is_told_is_down(served, monkeypatch):
    stand_in, replica = served
    monkeypatch.setattr("ajet.servers.replica.CONTROL_S", 0.1)
    stand_in.is_stuck = True
    with pytest.raises(ReplicaDown, match=r"^r0: POST /pause: no answer within 0\.1 s$"):
        await asyncio.wait_for(replica.pause(), 5)


async def test_a_server_forgets_its_prefixes_while_it_is_paused_or_says_that_it_does_not(served):
    stand_in, replica = served
    await replica.empty_cache()
    assert stand_in.calls == [("pause", "wait"), ("reset", "")] and not stand_in.is_paused
    await replica.pause()
    await replica.empty_cache()
    assert stand_in.is_paused  # as it was before
    stand_in.can_reset = False
    with pytest.raises(WeightsError, match=r"^r0: the prefix cache is in use"):
        await replica.empty_cache()


async def test_a_server_is_sent_to_sleep_once(served):
    stand_in, replica = served
    await replica.sleep()
    await replica.sleep()
    assert stand_in.calls.count(("sleep", 2)) == 1


async def test_a_server_whose_sleep_gave_up_its_weights_goes_on_only_with_new_ones(
    served, tmp_path
):
    stand_in, replica = served
    await replica.sleep()
    await replica.wake()
    assert stand_in.calls[-1] == ("wake_up", "weights")
    with pytest.raises(WeightsError, match=r"^r0: it dropped its weights in its sleep"):
        await replica.resume()
    source = WeightFolder(tmp_path).write(1, [("w", torch.ones(3))])
    await replica.load_weights(source, 1)
    assert stand_in.calls[-1] == ("reset", "")
    await replica.resume()
    assert stand_in.calls[-1] == ("wake_up", "kv_cache")  # whose memory the load could use
    assert len((await replica.generate([1], TEN, "e/0000")).token_ids) == 10


async def test_a_server_that_may_have_given_its_memory_back_or_not_is_never_well_again(
    served, monkeypatch
):
    stand_in, replica = served
    await replica.health()
    monkeypatch.setattr("ajet.servers.replica.CONTROL_S", 0.1)
    stand_in.sleep_s = 0.3
    with pytest.raises(ReplicaDown, match=r"^r0: POST /sleep: no answer within 0\.1 s$"):
        await asyncio.wait_for(replica.sleep(), 5)
    with pytest.raises(ReplicaDown, match="POST /sleep: no answer"):
        await replica.health()
    await replica.resume()
    with pytest.raises(ReplicaDown, match="POST /sleep: no answer"):
        await replica.health()
