"""The buffer's codec beside msgspec: processor time and bytes of one group, and what comes back.

    pip install msgspec
    python benchmarks/codec_compared.py [--rounds 31] [--out benchmarks/results/codec_compared.json]

    ours      ajet/core/buffer/codec.py: a header of JSON, then arrays of 8 bytes an entry
    narrow    the same with 4 bytes for a token id, without any library
    arrays    the same with msgspec's msgpack in place of the arrays; users' values stay JSON
    whole     msgspec's msgpack of the dataclasses themselves, read back by their types

All store of a prompt and of its messages what the turn before does not have, and compress
with zlib at level 1. A group has 8 members of 1 or 10 turns, each of 60 to 250 sampled tokens with
random float64 log-probabilities; a tool's answer of 40 to 300 tokens follows. First prompts have
300 or 4,000 tokens. Ids are drawn by rank as words are (Zipf, 1.15), up to 151,000.

Times are medians of rounds in which the codecs take turns. `zlib_share` is the part of ours that is
compression. `not_as_ours` names the values in a turn's notes, or fields of an episode, that come
back from `whole` otherwise than from ours, or not at all. `damaged` counts what came of 2,000
decodings of bytes damaged below the compression, whose checksum finds most damage alone.
"""

from __future__ import annotations

import argparse
import enum
import json
import random
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec  # pyright: ignore[reportMissingImports]
import numpy as np

from ajet.core.buffer import codec
from ajet.core.errors import DataError
from ajet.core.inference.endpoint import Completion
from ajet.core.model.common_prefix import common_length
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.core.workflow.workflow import WorkflowOutput, WorkflowTask

MEMBERS = 8
WORDS = ("the", "of", "apples", "count", "python", "return", "42", "and", "therefore", "tool", "we")
DAMAGED = 2000
FAST = 1
NARROW = {"<i8": "<i4", "<f8": "<f8"}
Decoder = Callable[[bytes], list[Group]]


class NarrowWriter(codec._Writer):
    def add(self, values: Sequence[int] | Sequence[float], dtype: str) -> int:
        return super().add(values, NARROW[dtype])


class NarrowReader(codec._Reader):
    def take(self, number: int, dtype: str) -> tuple[Any, ...]:
        return super().take(number, NARROW[dtype])


def encode_narrow(groups: Sequence[Group]) -> bytes:
    arrays = NarrowWriter()
    header = codec._to_json([codec._group_json(g, arrays) for g in groups]).encode()
    length = codec._LENGTH.pack(len(header))
    return length + zlib.compress(header + arrays.content, FAST)


def decode_narrow(content: bytes) -> list[Group]:
    (length,) = codec._LENGTH.unpack_from(content)
    body = zlib.decompress(content[codec._LENGTH.size :])
    arrays = NarrowReader(body, length)
    return [codec._group(each, arrays) for each in json.loads(body[:length])]


@dataclass
class Arrays:
    """Takes the place of the codec's writer and of its reader."""

    parts: list[Sequence[float]] = field(default_factory=list)

    def add(self, values: Sequence[float], dtype: str) -> int:
        self.parts.append(values)
        return len(values)

    def take(self, number: int, dtype: str) -> tuple[Any, ...]:
        return self.parts.pop()  # pyright: ignore[reportReturnType] - tuples, as the decoder says


def encode_arrays(groups: Sequence[Group]) -> bytes:
    arrays = Arrays()
    header = codec._to_json([codec._group_json(g, arrays) for g in groups])  # pyright: ignore
    return zlib.compress(msgspec.msgpack.encode((header, arrays.parts)), FAST)


_ARRAYS = msgspec.msgpack.Decoder(tuple[str, list[tuple[int | float, ...]]])


def decode_arrays(content: bytes) -> list[Group]:
    header, parts = _ARRAYS.decode(zlib.decompress(content))
    arrays = Arrays(parts[::-1])
    return [codec._group(each, arrays) for each in json.loads(header)]  # pyright: ignore


Kept = tuple[
    int, int, bool
]  # of the turn before: ids, messages, and whether the tools are the same


def encode_whole(groups: Sequence[Group]) -> bytes:
    kept: list[Kept] = []
    short = [with_turns(group, lambda turns: shortened(turns, kept)) for group in groups]
    return zlib.compress(_WHOLE_ENCODER.encode((kept, short)), FAST)


def decode_whole(content: bytes) -> list[Group]:
    try:
        kept, short = _WHOLE.decode(zlib.decompress(content))
        rest = iter(kept)
        return [with_turns(group, lambda turns: lengthened(turns, rest)) for group in short]
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, StopIteration) as error:
        raise DataError(f"a group in the buffer is damaged: {error}") from error


_WHOLE_ENCODER = msgspec.msgpack.Encoder(enc_hook=str)
_WHOLE = msgspec.msgpack.Decoder(tuple[list[Kept], list[Group]])


def with_turns(group: Group, change: Callable[[Sequence[Turn]], tuple[Turn, ...]]) -> Group:
    def changed(t: Trajectory) -> Trajectory:
        earlier = tuple(changed(each) for each in t.earlier_attempts)
        return replace(t, turns=change(t.turns), earlier_attempts=earlier)

    return replace(group, trajectories=tuple(changed(t) for t in group.trajectories))


def shortened(turns: Sequence[Turn], kept: list[Kept]) -> tuple[Turn, ...]:
    short = []
    for before, turn in zip([None, *turns], turns, strict=False):
        ids = common_length(codec._ids(before), turn.completion.prompt_ids)
        messages = common_length(codec._messages(before), turn.messages)
        same = before is not None and before.tools == turn.tools
        kept.append((ids, messages, same))
        completion = replace(turn.completion, prompt_ids=turn.completion.prompt_ids[ids:])
        tools = None if same else turn.tools
        rest = turn.messages[messages:]
        short.append(replace(turn, completion=completion, messages=rest, tools=tools))
    return tuple(short)


def lengthened(turns: Sequence[Turn], kept: Iterator[Kept]) -> tuple[Turn, ...]:
    full: list[Turn] = []
    for turn in turns:
        before = full[-1] if full else None
        ids, messages, same = next(kept)
        prompt = codec._ids(before)[:ids] + turn.completion.prompt_ids
        completion = replace(turn.completion, prompt_ids=prompt)
        tools = before.tools if same and before is not None else turn.tools
        all_messages = [*codec._messages(before)[:messages], *turn.messages]
        full.append(replace(turn, completion=completion, messages=all_messages, tools=tools))
    return tuple(full)


CODECS: dict[str, tuple[Callable[[Sequence[Group]], bytes], Decoder]] = {
    "ours": (codec.encode, codec.decode),
    "narrow": (encode_narrow, decode_narrow),
    "arrays": (encode_arrays, decode_arrays),
    "whole": (encode_whole, decode_whole),
}


def group(num_prompt_tokens: int, num_turns: int) -> Group:
    rng, group_id = np.random.default_rng(1), "000001-train-0001"
    row = {"question": text(rng, 80), "answer": "42"}
    task = Task("t1", row["question"], metadata=row)
    prompt, system = ids(rng, num_prompt_tokens), text(rng, num_prompt_tokens)
    members = []
    for number in range(MEMBERS):
        plan = WorkflowTask(task, f"{group_id}-{number:02d}", group_id, number, 1, "train", 3)
        reward = float(number % 2)
        output = WorkflowOutput(reward, reward > 0, {"answer": "42"}, {"length": 3.0})
        turns = conversation(rng, prompt, system, num_turns)
        members.append(
            Trajectory(plan, turns, EpisodeStatus.OK, output, reward, reward > 0, {"math": reward})
        )
    return Group(group_id, tuple(members), task)


def conversation(
    rng: np.random.Generator, prompt: tuple[int, ...], system: str, num_turns: int
) -> tuple[Turn, ...]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    function = {"name": "run_python", "description": "Run a program. " * 20, "parameters": {}}
    tools = [{"type": "function", "function": function}]
    turns = []
    for number in range(num_turns):
        sampled = ids(rng, int(rng.integers(60, 250)))
        logprobs = tuple((-rng.exponential(0.4, len(sampled))).tolist())
        call = {"name": "run_python", "arguments": text(rng, len(sampled) // 2)}
        calls = [{"id": f"call_{number}", "type": "function", "function": call}]
        reply = {"role": "assistant", "content": text(rng, len(sampled) // 2), "tool_calls": calls}
        completion = Completion(prompt, sampled, logprobs, "stop", 3)
        start = float(rng.random())
        turns.append(Turn(completion, messages, tools, reply, started_s=start, ended_s=start + 0.1))
        answer = ids(rng, int(rng.integers(40, 300)))
        prompt = prompt + sampled + answer
        messages = [*messages, reply, {"role": "tool", "content": text(rng, len(answer))}]
    return tuple(turns)


def ids(rng: np.random.Generator, number: int) -> tuple[int, ...]:
    return tuple(np.minimum(rng.zipf(1.15, number), 151_000).tolist())


def text(rng: np.random.Generator, num_words: int) -> str:
    return " ".join(rng.choice(WORDS, num_words))


def compared(one: Group, rounds: int) -> dict[str, Any]:
    spent: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in CODECS}
    sizes, packing = {}, []
    for _ in range(rounds):
        for name, (encode, decode) in CODECS.items():
            started = time.process_time()
            content = encode([one])
            encoded = time.process_time()
            back = decode(content)
            ended = time.process_time()
            assert back == [one], name
            spent[name][0].append(encoded - started)
            spent[name][1].append(ended - encoded)
            sizes[name] = len(content)
        packing.append(seconds_in_zlib(one))
    found: dict[str, Any] = {
        name: {
            "encode_ms": round(statistics.median(encoding) * 1000, 2),
            "decode_ms": round(statistics.median(decoding) * 1000, 2),
            "bytes": sizes[name],
        }
        for name, (encoding, decoding) in spent.items()
    }
    share = statistics.median(packing) / statistics.median(spent["ours"][0])
    return found | {"zlib_share": round(share, 2)}


def seconds_in_zlib(one: Group) -> float:
    at = len(codec.MAGIC) + codec._LENGTH.size
    body = zlib.decompress(codec.encode([one])[at:])
    started = time.process_time()
    zlib.compress(body, FAST)
    return time.process_time() - started


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int = 1


def odd_values() -> dict[str, Any]:
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    return {
        "NaN": float("nan"), "infinity": float("inf"), "10**30": 10**30, "tuple": (1, 2),
        "lone surrogate": "\ud800", "bytes": b"ab", "set": {1}, "Enum": Colour.RED,
        "dataclass": Point(), "datetime": datetime(2020, 1, 1), "class": object,
        "numpy scalar": np.float32(0.5), "numpy array": np.arange(2), "key of int": {1: 2},
        "key of tuple": {(1, 2): 3}, "key of None": {None: 1}, "cycle": cycle,
    }  # fmt: skip


def not_as_ours() -> list[str]:
    one = group(20, 1)
    (turn,) = one.trajectories[0].turns
    changed = {
        name: replace(
            one.trajectories[0], turns=(replace(turn, notes=TurnNotes(sampling={"value": value})),)
        )
        for name, value in odd_values().items()
    }
    changed["error with a lone surrogate"] = replace(one.trajectories[0], failure="\udc80")
    changed["reward of True"] = replace(one.trajectories[0], reward=True)
    metrics = WorkflowOutput(log_metrics={"length": None})  # pyright: ignore
    changed["log_metrics of None"] = replace(one.trajectories[0], output=metrics)
    differ = []
    for name, episode in changed.items():
        theirs, ours = (what_comes_back(each, episode) for each in ("whole", "ours"))
        differ += [name] if theirs != ours else []
    return differ


def what_comes_back(name: str, episode: Trajectory) -> str:
    encode, decode = CODECS[name]
    try:
        return repr(decode(encode([Group("g-0", (episode,))])))
    except (DataError, OverflowError, RecursionError, UnicodeEncodeError) as error:
        return type(error).__name__


def damaged(name: str) -> dict[str, int]:
    encode, decode = CODECS[name]
    at = len(codec.MAGIC) + codec._LENGTH.size if name == "ours" else 0
    content = encode([group(20, 2)])
    body, luck, found = zlib.decompress(content[at:]), random.Random(0), Counter[str]()
    for _ in range(DAMAGED):
        broken = bytearray(body)
        for _ in range(luck.randint(1, 3)):
            broken[luck.randrange(len(broken))] = luck.randrange(256)
        if luck.random() < 0.2:
            del broken[luck.randrange(len(broken)) :]
        try:
            decode(content[:at] + zlib.compress(broken, FAST))
            found["read"] += 1
        except DataError as error:
            found["DataError of several lines" if "\n" in str(error) else "DataError"] += 1
        except Exception as error:  # noqa: BLE001 - which ones there are is the question
            found[type(error).__name__] += 1
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/codec_compared.json"))
    arguments = parser.parse_args()
    result: dict[str, Any] = {"msgspec": msgspec.__version__, "rounds": arguments.rounds}
    for num_turns in (10, 1):
        for num_prompt_tokens in (300, 4000):
            name = f"{num_turns} turns, first prompt {num_prompt_tokens}"
            result[name] = compared(group(num_prompt_tokens, num_turns), arguments.rounds)
    result["not_as_ours"] = not_as_ours()
    result["damaged"] = {name: damaged(name) for name in ("ours", "whole")}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
