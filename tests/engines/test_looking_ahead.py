"""Steps that are launched before the tokens of the last one are read, as on a GPU: on a CPU, in
float64, beside a batch that reads them at once."""

import numpy as np
import pytest
import torch

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import SamplingParams
from ajet.engines.batch import Batch
from ajet.engines.flat_forward import FlatForward
from ajet.engines.forward import BatchRow
from ajet.engines.hf_forward import HfForward
from tests.engines.taped_graph import TapedGraph
from tests.engines.test_step_graph import VOCAB, group_rows, model_of

CPU = torch.device("cpu")


class CountingForward:
    """Samples token 0 for ever. Notes how many tokens each row had when a step was launched, and
    what was asked of it besides."""

    num_replayed = 0

    def __init__(self, logits=0.0):
        self.logits, self.rows, self.seen = logits, [], []

    def fits(self, rows):
        return True

    def rebuild(self, rows):
        self.rows = rows
        self.seen.append("rebuild")
        return 0

    def decode(self, tokens, positions):
        self.seen.append(
            (tokens.tolist(), positions.tolist(), [len(r.logprobs) for r in self.rows])
        )
        return torch.full((len(tokens), VOCAB), self.logits).index_fill(1, torch.tensor(0), 1e9)

    def keep(self, index):
        self.rows = [self.rows[n] for n in index]
        self.seen.append(f"keep {index.tolist()}")

    def store(self, rows):
        self.seen.append(f"store {[number for number, _ in rows]}")

    def release(self, episode_ids): ...
    def reset(self): ...


def row(number, max_len, stop_ids=()):
    sampling = SamplingParams(temperature=0.0)
    return BatchRow(f"e{number}/0", (5, 6), sampling, frozenset(stop_ids), max_len)


def finish(batch, after_step=lambda batch: None):
    """Runs a batch to its end; returns its rows in the order in which they finished."""
    finished = []
    with torch.inference_mode():
        while batch.busy:
            finished += batch.step()
            after_step(batch)
    return finished


def test_a_step_is_launched_before_the_tokens_of_the_last_one_are_read():
    forward = CountingForward()
    batch = Batch(forward, CPU, max_num_seqs=9, eager=False, looks_ahead=True)
    batch.add(rows := [row(0, 4), row(1, 6)])
    assert finish(batch) == rows
    assert forward.seen == [
        "store []",
        "rebuild",
        ([6, 6], [1, 1], [0, 0]),
        ([0, 0], [2, 2], [0, 0]),
        ([0, 0], [3, 3], [1, 1]),  # row 0 is full: it has 4 tokens when the next step is read
        "store [0]",
        # Half of the rows have finished: what was launched is read, and row 1 goes on alone.
        "keep [1]",
        ([0], [4], [3]),
        "store [0]",
        "keep []",
    ]
    assert [each.ids for each in rows] == [[5, 6, 0, 0], [5, 6, 0, 0, 0, 0]]
    assert (batch.decode_steps, batch.sampled_tokens) == (4, 6)


def test_no_step_is_launched_for_rows_that_are_full_whatever_is_sampled():
    forward = CountingForward()
    batch = Batch(forward, CPU, max_num_seqs=9, eager=False, looks_ahead=True)
    batch.add([row(0, 3), row(1, 3)])
    finish(batch)
    assert (batch.decode_steps, batch.sampled_tokens) == (1, 2)


def test_a_step_beyond_a_stop_token_changes_nothing():
    forward = CountingForward()
    batch = Batch(forward, CPU, max_num_seqs=9, eager=False, looks_ahead=True)
    batch.add([stopped := row(0, 99, stop_ids=[0])])
    assert finish(batch) == [stopped]
    assert (stopped.ids, stopped.finish_reason) == ([5, 6, 0], "stop")
    assert (batch.decode_steps, batch.sampled_tokens) == (2, 1)


def test_a_row_that_is_aborted_does_not_get_what_is_on_its_way():
    forward = CountingForward()
    batch = Batch(forward, CPU, max_num_seqs=9, eager=False, looks_ahead=True)
    batch.add(rows := [row(0, 99), row(1, 99)])
    for _ in range(3):
        assert batch.step() == []
    rows[0].aborted = True
    assert batch.step() == [rows[0]]
    # It was the third token that was on its way; row 1, which goes on alone, has got it.
    assert [len(each.logprobs) for each in rows] == [2, 3]
    rows[1].aborted = True
    assert finish(batch) == [rows[1]]
    assert [len(each.logprobs) for each in rows] == [2, 3]


def test_weights_that_have_diverged_end_the_batch_when_a_step_is_read():
    forward = CountingForward(logits=float("nan"))
    batch = Batch(forward, CPU, max_num_seqs=9, eager=False, looks_ahead=True)
    batch.add([row(0, 99)])
    assert batch.step() == []
    with pytest.raises(ModelError, match="diverged"):
        batch.step()
    batch.clear()
    assert not batch.busy


def forwards(model):
    yield "flat", FlatForward(model, 20_000)
    yield "graph", FlatForward(model, 20_000, graph=TapedGraph())
    yield "transformers", HfForward(model, 20_000, 0)


@pytest.mark.parametrize("kind", ["flat", "graph", "transformers"])
@pytest.mark.parametrize("eager", [False, True])
def test_rows_are_those_of_a_batch_that_reads_each_step_at_once(kind, eager):
    """Rows stop, are full, are aborted, wait for room and join; weights are published meanwhile."""
    model, results = model_of(), []
    for looks_ahead in (False, True):
        forward = dict(forwards(model))[kind]
        batch = Batch(forward, CPU, max_num_seqs=7, eager=eager, looks_ahead=looks_ahead)
        rows = group_rows()
        for each in rows[:5]:
            each.stop_ids = frozenset(range(6))
        rows[7].stop_check = lambda ids: len(ids) == 11
        batch.add(rows)

        def change(batch, rows=rows):
            if len(rows[8].logprobs) == 20:
                rows[6].aborted = True
            if len(rows[8].logprobs) == 30:
                batch.publish(1)

        finished = finish(batch, change)
        assert sorted(finished, key=rows.index) == rows
        # Which token an abort comes after depends on when it is noticed.
        results.append([each for each in rows if each.finish_reason != "abort"])
    at_once, ahead = results
    assert [each.ids for each in ahead] == [each.ids for each in at_once]
    assert {each.finish_reason for each in ahead} == {"stop", "length"}
    for found, known in zip(ahead, at_once, strict=True):
        np.testing.assert_allclose(found.logprobs, known.logprobs, rtol=1e-10)


def test_a_conversation_finds_its_last_turn_in_the_cache():
    model, cached = model_of(), []
    for looks_ahead in (False, True):
        batch = Batch(
            FlatForward(model, 20_000), CPU, max_num_seqs=7, eager=False, looks_ahead=looks_ahead
        )
        sampling = SamplingParams(seed=1)
        first = BatchRow("e/0", tuple(range(20)), sampling, frozenset(), 30)
        batch.add([first])
        finish(batch)
        second = BatchRow("e/1", (*first.ids, 7, 8), sampling, frozenset(), 40)
        batch.add([second])
        finish(batch)
        cached.append((batch.cached_prompt_tokens, second.ids))
    # 19 + 10 tokens were fed. Of 32 the last is always fed.
    assert cached[0] == cached[1] and cached[0][0] == 29
