"""What every replica over HTTP must do, whoever serves: the vLLM and SGLang tests run all of it,
and benchmarks/sglang_real.py runs it against a real SGLang.

Each claim takes a `Bench`: the replica, two tiny models (it starts with the first one's weights)
and a folder for weights.
"""

import asyncio
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ajet.core.inference.endpoint import ContextOverflow, SamplingParams
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.manifest import WeightsError

VOCAB, MAX_LEN = 320, 1024
PROMPT = [1, 2, 3, 50, 9, 9, 4]
SHORT = SamplingParams(max_tokens=12, seed=3)
LONG = SamplingParams(max_tokens=900, seed=1)
"""More than a second: what is to be ended must not end before."""


@dataclass
class Bench:
    replica: Any
    models: list
    folder: WeightFolder
    tolerance: float = 1e-4
    version: int = 0

    def next_version(self):
        self.version += 1
        return self.version

    async def load(self, which):
        """The weights of one of the models, as the next version."""
        version = self.next_version()
        source = self.folder.write(version, self.models[which].named_parameters())
        report = await self.replica.load_weights(source, version)
        assert (report.version, report.checksum) == (version, source.manifest().checksum)
        assert report.num_bytes == source.manifest().num_bytes and report.seconds > 0
        return report

    def error(self, reply, sampling, which=0):
        """The largest distance from transformers' log-probabilities."""
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.no_grad():
            logits = self.models[which](ids).logits[0, len(reply.prompt_ids) - 1 : -1].float()
        logits = cut(logits / (sampling.temperature or 1.0), sampling)
        found = logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        return (found - torch.tensor(reply.logprobs)).abs().max().item()

    def assert_sampled_by(self, which, reply, sampling=SHORT):
        assert len(reply.logprobs) == len(reply.token_ids) > 0
        assert self.error(reply, sampling, which) < self.tolerance


def tiny_model(seed):
    """Heads of 32: vLLM's attention on the CPU has none smaller."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=128, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
        tie_word_embeddings=True, max_position_embeddings=2048,
    )  # fmt: skip
    config.eos_token_id = config.bos_token_id = None
    return AutoModelForCausalLM.from_config(config).float().eval()


def save(model, path: Path):
    model.save_pretrained(path)
    told = json.loads((path / "config.json").read_text())
    assert told["vocab_size"] == VOCAB
    return str(path)


def cut(logits, sampling):
    """What is left of a distribution after top-k, then top-p."""
    if not sampling.temperature:
        return logits
    if sampling.top_k > 0:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k)[0][:, -1:], -torch.inf)
    if sampling.top_p < 1:
        probs, order = logits.softmax(-1).sort(descending=True)
        beyond = (probs.cumsum(-1) - probs >= sampling.top_p).gather(1, order.argsort())
        logits = logits.masked_fill(beyond, -torch.inf)
    return logits


async def log_probabilities_are_those_of_transformers(bench):
    for number, temperature in enumerate((1.0, 0.6, 1.3, 0.0)):
        sampling = replace(SHORT, temperature=temperature)
        reply = await bench.replica.generate(PROMPT, sampling, f"lp{number}/0000")
        assert reply.prompt_ids == tuple(PROMPT) and len(reply.token_ids) == 12
        assert reply.finish_reason == "length" and reply.policy_version == bench.version
        bench.assert_sampled_by(0, reply, sampling)


async def log_probabilities_after_a_cut_are_those_of_what_is_left(bench):
    for number, change in enumerate(
        ({"top_k": 5}, {"top_p": 0.5, "top_k": 200}, {"top_k": 3, "temperature": 0.7})
    ):
        sampling = replace(SHORT, **change)
        reply = await bench.replica.generate(PROMPT, sampling, f"cut{number}/0000")
        bench.assert_sampled_by(0, reply, sampling)


async def requests_in_one_batch_do_not_touch_each_other(bench):
    asked = [
        replace(SHORT, temperature=(1.0, 0.0, 0.5)[n % 3], max_tokens=5 + n, seed=n)
        for n in range(8)
    ]
    replies = await asyncio.gather(
        *(bench.replica.generate([*PROMPT, n], s, f"b{n}/0000") for n, s in enumerate(asked))
    )
    for number, (sampling, reply) in enumerate(zip(asked, replies, strict=True)):
        assert reply.prompt_ids == (*PROMPT, number) and len(reply.token_ids) == 5 + number
        bench.assert_sampled_by(0, reply, sampling)


async def a_seed_decides_the_draw(bench):
    seeds = (7, 7, 2**62 + 11, 8)
    replies = [
        await bench.replica.generate(PROMPT, replace(SHORT, seed=seed), f"s{n}/0000")
        for n, seed in enumerate(seeds)
    ]
    assert replies[0].token_ids == replies[1].token_ids
    assert len({reply.token_ids for reply in replies}) == 3


async def a_stop_token_ends_the_reply_and_is_part_of_it(bench):
    free = await bench.replica.generate(PROMPT, SHORT, "st/0000")
    stop = free.token_ids[4]
    sampling = replace(SHORT, stop_token_ids=(stop,))
    reply = await bench.replica.generate(PROMPT, sampling, "st/0001")
    end = free.token_ids.index(stop) + 1
    assert reply.token_ids == free.token_ids[:end] and reply.finish_reason == "stop"
    bench.assert_sampled_by(0, reply)


async def a_prompt_that_cannot_be_is_refused_before_it_is_sent(bench):
    for prompt, said in (([1, VOCAB], "token ids in 0 .. 319"), ([], "at least one"), ([-1], "0")):
        try:
            await bench.replica.generate(prompt, SHORT, "bad/0000")
        except ValueError as error:
            assert said in str(error)
        else:
            raise AssertionError(f"{prompt} was taken")
    try:
        await bench.replica.generate([1] * MAX_LEN, SHORT, "bad/0001")
    except ContextOverflow as error:
        assert f"max_model_len is {MAX_LEN}" in str(error)
    else:
        raise AssertionError("a prompt without room was taken")
    reply = await bench.replica.generate([1] * (MAX_LEN - 5), SHORT, "bad/0002")
    assert len(reply.token_ids) <= 5 and reply.finish_reason == "length"


async def _some_time(task):
    await asyncio.sleep(0.3)
    assert not task.done()


async def an_aborted_request_ends_with_what_it_has(bench):
    running = asyncio.create_task(bench.replica.generate(PROMPT, LONG, "ab/0000"))
    await _some_time(running)
    bench.replica.abort("ab/0000")
    bench.replica.abort("unknown/0000")
    reply = await running
    assert reply.finish_reason == "abort" and 0 < len(reply.token_ids) < 900
    bench.assert_sampled_by(0, reply, LONG)


async def a_pause_waits_or_ends_what_runs_and_holds_what_comes(bench):
    running = asyncio.create_task(
        bench.replica.generate(PROMPT, replace(LONG, max_tokens=60), "pa/0000")
    )
    await asyncio.sleep(0.1)
    await bench.replica.pause()
    assert running.done() and len(running.result().token_ids) == 60
    held = asyncio.create_task(bench.replica.generate(PROMPT, SHORT, "pa/0001"))
    await _some_time(held)
    await bench.replica.resume()
    assert len((await held).token_ids) == 12
    ended = asyncio.create_task(bench.replica.generate(PROMPT, LONG, "pa/0002"))
    await _some_time(ended)
    await bench.replica.pause(abort=True)
    assert ended.done() and ended.result().finish_reason == "abort"
    await bench.replica.resume()


async def new_weights_sample_at_once_and_old_ones_no_more(bench):
    await bench.replica.generate(PROMPT, SHORT, "w/0000")
    for turn, which in enumerate((1, 0, 1, 0)):
        await bench.load(which)
        reply = await bench.replica.generate(PROMPT, SHORT, f"w/{turn + 1:04d}")
        bench.assert_sampled_by(which, reply)  # a cached prefix of the old weights would show
        assert bench.error(reply, SHORT, 1 - which) > 0.05
        assert reply.policy_version == bench.version == bench.replica.version


async def weights_that_do_not_fit_leave_the_old_ones(bench):
    parameters = list(bench.models[1].named_parameters())
    version = bench.version
    wrong = [("model.norm.weight", torch.ones(7)), *parameters[:-1]]
    for number, sent in enumerate((parameters[:-1], wrong)):
        source = bench.folder.write(1000 + number, sent)
        try:
            await bench.replica.load_weights(source, 1000 + number)
        except WeightsError as error:
            assert "model.norm.weight" in str(error) and "\n" not in str(error)
        else:
            raise AssertionError("weights of another shape were taken")
    reply = await bench.replica.generate(PROMPT, SHORT, "fit/0000")
    bench.assert_sampled_by(0, reply)
    assert reply.policy_version == version


async def damaged_weights_leave_the_old_ones(bench):
    source = bench.folder.write(2000, bench.models[1].named_parameters())
    shard = next(source.path.glob("model-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 4
    shard.write_bytes(data)
    try:
        await bench.replica.load_weights(source, 2000)
    except WeightsError as error:
        assert "damaged" in str(error)
    else:
        raise AssertionError("damaged weights were taken")
    bench.assert_sampled_by(0, await bench.replica.generate(PROMPT, SHORT, "dam/0000"))


async def a_sleeper_wakes_with_its_new_weights(bench):
    await bench.replica.sleep()
    request = asyncio.create_task(bench.replica.generate(PROMPT, SHORT, "sl/0000"))
    await bench.load(1)
    await _some_time(request)
    await bench.replica.wake()
    await bench.replica.resume()
    bench.assert_sampled_by(1, await request)
    await bench.load(0)


CONTRACT = [
    log_probabilities_are_those_of_transformers,
    requests_in_one_batch_do_not_touch_each_other,
    log_probabilities_after_a_cut_are_those_of_what_is_left,
    a_seed_decides_the_draw,
    a_stop_token_ends_the_reply_and_is_part_of_it,
    a_prompt_that_cannot_be_is_refused_before_it_is_sent,
    an_aborted_request_ends_with_what_it_has,
    a_pause_waits_or_ends_what_runs_and_holds_what_comes,
    new_weights_sample_at_once_and_old_ones_no_more,
    weights_that_do_not_fit_leave_the_old_ones,
    damaged_weights_leave_the_old_ones,
    a_sleeper_wakes_with_its_new_weights,
]
"""They leave the replica with the first model's weights."""
