"""What every replica over HTTP must do with several adapters, whoever serves: the stand-ins run all
of it, and so does a real vLLM.

Each claim takes an `AdapterBench`: the replica, and the trainer's models, whose weights it sends.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ajet.core.update.many_adapters import AdapterModels
from ajet.core.update.settings import LoraSettings
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.load import LiveSource
from ajet.core.weight_sync.manifest import WeightsError
from tests.replica_contract import PROMPT, SHORT

LORA = LoraSettings(rank=4, alpha=8.0, adapters=("pro", "con"))
GREEDY = replace(SHORT, temperature=0.0, max_tokens=24)
SIDES = ("pro", "con", "")


def trainer_models(base, lora=LORA) -> AdapterModels:
    """Adapters of which both factors are drawn: they move the base's tokens from the beginning."""
    made = AdapterModels.over(base, lora)
    for number, weights in enumerate(made.trained.values()):
        learn(weights, seed=number)
    return made


def learn(weights, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in weights.values():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))


@dataclass
class AdapterBench:
    replica: Any
    base: Any
    made: AdapterModels
    folder: WeightFolder
    version: int = 0
    tolerance: float = 2e-4
    requests: int = 0
    hold: Callable[[bool], None] = lambda is_held: None
    """Has a stand-in keep its replies back, so that what runs still runs when an update comes."""

    async def publish(self):
        self.version += 1
        source = LiveSource(self.version, lambda: self.made.weights().items())
        report = await self.replica.load_weights(source, self.version)
        assert (report.version, self.replica.version) == (self.version, self.version)
        assert report.num_bytes == sum(t.nbytes for t in self.made.weights().values())

    def ask(self, adapter, sampling=SHORT, prompt=PROMPT):
        self.requests += 1
        own = replace(sampling, adapter=adapter)
        return self.replica.generate(prompt, own, f"adapter{self.requests}/0000")

    def error(self, reply, adapter, temperature=1.0):
        """The largest distance from the trainer's log-probabilities of these tokens."""
        model = self.made.models[adapter] if adapter else self.base
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1].float()
        found = (logits / temperature).log_softmax(-1)
        found = found.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        return (found - torch.tensor(reply.logprobs)).abs().max().item()


async def each_adapter_samples_with_its_weights_and_the_base_with_its_own(bench):
    await bench.publish()
    replies = await asyncio.gather(*(bench.ask(side) for side in SIDES * 3))  # in one batch
    for side, reply in zip(SIDES * 3, replies, strict=True):
        assert len(reply.token_ids) == 12 and reply.policy_version == bench.version
        assert bench.error(reply, side) < bench.tolerance
        assert all(bench.error(reply, other) > 0.05 for other in SIDES if other != side)


async def an_update_of_one_moves_no_token_of_another(bench):
    await bench.publish()
    before = {side: await bench.ask(side, GREEDY) for side in SIDES}
    learn(bench.made.trained["pro"], seed=7)
    await bench.publish()
    after = {side: await bench.ask(side, GREEDY) for side in SIDES}
    for side in ("con", ""):
        assert after[side].token_ids == before[side].token_ids
        assert after[side].policy_version == before[side].policy_version + 1 == bench.version
    assert after["pro"].token_ids != before["pro"].token_ids
    assert bench.error(after["pro"], "pro") < bench.tolerance


async def what_runs_ends_with_the_weights_that_it_began_with(bench):
    await bench.publish()
    long = replace(GREEDY, max_tokens=100)
    alone = {side: await bench.ask(side, long) for side in ("pro", "con")}
    bench.hold(True)
    running = {side: asyncio.create_task(bench.ask(side, long)) for side in ("pro", "con")}
    await asyncio.sleep(0.2)
    began = bench.version
    learn(bench.made.trained["pro"], seed=8)
    await bench.publish()
    bench.hold(False)
    newer = await bench.ask("pro")
    assert newer.policy_version == bench.version and bench.error(newer, "pro") < bench.tolerance
    for side, task in running.items():
        reply = await task
        assert reply.token_ids == alone[side].token_ids and reply.policy_version == began


async def adapters_of_another_run_leave_the_old_ones(bench):
    await bench.publish()
    weights = bench.made.weights()
    sent = {
        "got adapters con": {n: w for n, w in weights.items() if n.startswith("con")},
        "damaged": weights,
    }
    for number, (said, tensors) in enumerate(sent.items()):
        source = bench.folder.write(1000 + number, tensors.items())
        if said == "damaged":
            shard = next(source.path.glob("model-*.safetensors"))
            data = bytearray(shard.read_bytes())
            data[-3] ^= 4
            shard.write_bytes(data)
        try:
            await bench.replica.load_weights(source, 1000 + number)
        except WeightsError as error:
            assert said in str(error) and "\n" not in str(error)
        else:
            raise AssertionError("they were taken")
    reply = await bench.ask("pro")
    assert reply.policy_version == bench.version and bench.error(reply, "pro") < bench.tolerance


async def what_a_server_refuses_is_one_line_and_leaves_the_old_ones(bench):
    """Its factors are wider than the model."""
    await bench.publish()
    before = await bench.ask("con", GREEDY)
    learn(bench.made.trained["con"], seed=9)
    wide = dict(bench.made.weights())
    for name, weight in wide.items():
        if name.startswith("pro.") and "lora_A" in name:
            wide[name] = torch.cat([weight, weight], -1)
    try:
        await bench.replica.load_weights(bench.folder.write(2000, wide.items()), 2000)
    except WeightsError as error:
        assert "\n" not in str(error) and bench.replica.name in str(error)
    else:
        raise AssertionError("they were taken")
    assert (await bench.ask("con", GREEDY)).token_ids == before.token_ids
    await bench.publish()
    assert bench.error(await bench.ask("con"), "con") < bench.tolerance


async def an_adapter_that_is_not_there_is_one_line(bench):
    await bench.publish()
    try:
        await bench.ask("judge")
    except ValueError as error:
        assert str(error) == "no adapter is named 'judge'; the server has pro, con"
    else:
        raise AssertionError("it was taken")


async def a_sleeper_wakes_with_the_base_that_it_had(bench):
    await bench.publish()
    await bench.replica.sleep()
    learn(bench.made.trained["pro"], seed=10)
    await bench.replica.wake()
    await bench.publish()
    await bench.replica.resume()
    for side in SIDES:
        assert bench.error(await bench.ask(side), side) < bench.tolerance


ADAPTER_CONTRACT = [
    each_adapter_samples_with_its_weights_and_the_base_with_its_own,
    an_update_of_one_moves_no_token_of_another,
    what_runs_ends_with_the_weights_that_it_began_with,
    adapters_of_another_run_leave_the_old_ones,
    what_a_server_refuses_is_one_line_and_leaves_the_old_ones,
    an_adapter_that_is_not_there_is_one_line,
    a_sleeper_wakes_with_the_base_that_it_had,
]
