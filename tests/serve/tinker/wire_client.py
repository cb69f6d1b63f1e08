"""A client of Tinker's API over HTTP, without the SDK's: only its message classes."""

import copy

import httpx
import numpy as np

from ajet.serve.tinker.wire import PROTOBUF, schema


class WireClient:
    def __init__(self, address):
        self._http = httpx.Client(base_url=f"{address}/api/v1", timeout=60)
        self.session_id = self.post("create_session", tags=[], sdk_version="0")["session_id"]
        self._num_models = 0

    def at(self, address):
        """Returns the same client, of a server with another address."""
        other = copy.copy(self)
        other._http = httpx.Client(base_url=f"{address}/api/v1", timeout=60)
        return other

    def send(self, method, path, **arguments):
        return self._http.request(method, f"/{path}", **arguments)

    def post(self, path, **fields):
        response = self.send("POST", path, json=fields)
        assert response.status_code == 200, response.text
        return response.json()

    def answer(self, future):
        """Waits for an answer: bytes of a message, or an object."""
        while True:
            response = self.send(
                "POST", "retrieve_future", json={"request_id": future["request_id"]}
            )
            if response.status_code != 408:
                is_message = response.headers["content-type"] == PROTOBUF
                return response.content if is_message else response.json()

    def create_model(self, base, seed=1, rank=4):
        number, self._num_models = self._num_models, self._num_models + 1
        future = self.post(
            "create_model",
            session_id=self.session_id,
            model_seq_id=number,
            base_model=base,
            lora_config={"rank": rank, "seed": seed} if rank else None,
        )
        return self.answer(future)["model_id"]

    def forward_backward(self, model_id, seq_id, ids, loss="cross_entropy", forward_only=False):
        """Sends one sequence whose tokens predict the next one, with weight 1."""
        types = schema()
        message = types.ForwardBackwardRequest(
            model_id=model_id, seq_id=seq_id, loss_fn=loss, forward_only=forward_only
        )
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.array(ids[:-1], np.int32).tobytes()
        datum.loss_fn_inputs["target_tokens"].CopyFrom(
            types.Tensor(
                dense=np.array(ids[1:], np.int64).tobytes(),
                dtype=types.DTYPE_INT64,
                shape=[len(ids) - 1],
            )
        )
        return self.send_message(message.SerializeToString()).json()

    def send_message(self, body, **headers):
        headers = {"content-type": PROTOBUF} | headers
        return self.send("POST", "forward_backward", content=body, headers=headers)

    def loss(self, future):
        message = schema().ForwardBackwardOutput.FromString(self.answer(future))
        return message.metrics["loss:sum"]

    def optim_step(self, model_id, seq_id, **adam):
        adam = {"learning_rate": 0.01} | adam
        return self.post("optim_step", model_id=model_id, seq_id=seq_id, adam_params=adam)

    def sample(self, sampler_id, seq_id, prompt, num_samples=1, **params):
        future = self.post(
            "asample",
            sampling_session_id=sampler_id,
            seq_id=seq_id,
            prompt={"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
            num_samples=num_samples,
            sampling_params=params,
        )
        return schema().SampleResponse.FromString(self.answer(future))
