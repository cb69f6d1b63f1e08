"""What stands behind a stand-in for a server with several adapters: a tiny model, and beside it
models with an adapter each, read by peft from the folders that ajet writes."""

import asyncio

from ajet.core.update.many_adapters import sharing_weights
from ajet.engines.in_process_replica import InProcessReplica


class LoraModels:
    def __init__(self, model, max_model_len=1024):
        self._base, self._max_model_len = model, max_model_len
        self._models = {"": model}
        self._replicas = {"": self._replica(model)}
        self._number = 0
        self.is_held = False

    @property
    def names(self):
        return set(self._replicas)

    def load(self, name, path):
        """Returns what is wrong with the folder; "" if nothing is."""
        from peft import PeftModel

        try:
            wrapped = PeftModel.from_pretrained(sharing_weights(self._base), path)
        except (ValueError, RuntimeError, OSError) as error:
            return str(error).splitlines()[0]
        self._models[name] = wrapped.get_base_model().eval()
        self._replicas[name] = self._replica(self._models[name])
        return ""

    def unload(self, name):
        del self._replicas[name], self._models[name]

    def model(self, name):
        return self._models[name]

    async def generate(self, name, prompt_ids, sampling):
        """The reply comes when nothing holds it."""
        self._number += 1
        reply = await self._replicas[name].generate(prompt_ids, sampling, f"e/{self._number:06d}")
        while self.is_held:
            await asyncio.sleep(0.002)
        return reply

    def _replica(self, model):
        return InProcessReplica(
            "inside", model, stop_token_ids=(), max_model_len=self._max_model_len
        )
