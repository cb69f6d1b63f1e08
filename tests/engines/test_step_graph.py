"""Decode steps that are captured and replayed, by a stand-in that repeats operators as a GPU does:
on the memory and with the numbers that they had."""

import numpy as np
import pytest
import torch

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.precision import to_float64
from ajet.engines.batch import Batch
from ajet.engines.flat_forward import FlatForward
from ajet.engines.forward import BatchRow
from ajet.engines.grid_batch import GraphBatch, GridBatch
from ajet.engines.kv_cache import CacheLayout, KVPool
from ajet.engines.step_graph import StepGraph, cuda_graph_of
from tests.core.update.update_fixtures import tiny_model
from tests.engines.taped_graph import TapedGraph

VOCAB = 64


def model_of():
    return to_float64(tiny_model(tie_word_embeddings=False))


def row(number, prompt, tokens):
    sampling = SamplingParams(max_tokens=tokens, seed=number)
    ids = tuple(prompt)
    return BatchRow(f"e{number:02d}/0", ids, sampling, frozenset(), len(ids) + tokens)


def run(model, rows, graph=None, publish_after=None):
    """Runs rows to their end; returns the batch, the tokens and log-probabilities of each."""
    forward = FlatForward(model, max_kv_tokens=20_000, graph=graph)
    batch = Batch(forward, torch.device("cpu"), max_num_seqs=99, eager=False)
    batch.add(rows)
    with torch.inference_mode():
        while batch.busy:
            batch.step()
            if batch.decode_steps == publish_after:
                batch.publish(1)
    return batch, [each.ids for each in rows], [each.logprobs for each in rows]


def group_rows():
    """Returns 9 rows of 3 questions behind a system prompt, which end one after another."""
    system = list(range(1, 41))
    return [row(n, [*system, *([50 + n // 3] * 33), n], tokens=10 + 7 * n) for n in range(9)]


def test_replayed_steps_give_what_eager_ones_give_in_float64():
    model, graph = model_of(), TapedGraph()
    batch, ids, logprobs = run(model, group_rows(), graph)
    _, expected_ids, expected = run(model, group_rows())
    assert ids == expected_ids
    for found, known in zip(logprobs, expected, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-10)
    # The 9 rows become 7, 5, 3, 2 and 1 after 17, 31, 45, 52 and 59 of 66 steps. Each time a step
    # runs eagerly and the next one is captured.
    assert (batch.decode_steps, batch.forward.num_replayed, graph.num_captured) == (66, 60, 6)


def test_a_step_is_captured_where_columns_were_added_and_nowhere_else():
    graph = TapedGraph()
    batch, *_ = run(model_of(), [row(0, range(5), tokens=150)], graph)
    # A row alone shares its prompt, so its own columns begin at 0. Of the steps 1 .. 128 and
    # 129 .. 150 the first runs eagerly and the second is captured.
    assert (batch.decode_steps, batch.forward.num_replayed, graph.num_captured) == (150, 148, 2)


def test_other_weights_are_replayed_on_memory_of_their_own():
    graph = TapedGraph()
    batch, *_ = run(model_of(), [row(0, range(5), tokens=20)], graph, publish_after=10)
    assert (graph.num_captured, batch.forward.num_replayed) == (2, 18)
    assert graph.num_freed == 1
    batch.forward.free_weights()
    assert graph.num_freed == 2 and not graph.calls


def test_the_stand_in_computes_nonsense_on_a_tensor_that_was_replaced():
    def steps(change):
        values = [torch.zeros(1)]
        graph = StepGraph(TapedGraph(), torch.device("cpu"))
        results = []
        for number in range(3):
            change(values, float(number))
            tokens, places = torch.tensor([10 * number]), np.array([number])
            results.append(float(graph.step(tokens, places, lambda t, p: t + p + values[0])))
        return results

    def written(values, number):
        values[0].fill_(number)

    def replaced(values, number):
        values[0] = torch.full((1,), number)

    assert steps(written) == [0, 12, 24]
    assert steps(replaced) == [0, 12, 23]  # 20 + 2 + the 1 that was there when it was captured


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_stands_in_columns_that_are_not_written_changes_no_bit(dtype):
    outs = []
    for filling in (0.0, 1e3):
        generator = torch.Generator().manual_seed(0)
        pool = KVPool(1, 2, 8, 100, dtype, torch.device("cpu"))
        pool.allocate()
        for values in (pool.k, pool.v):
            values[:, :, 1:] = torch.randn(1, 2, 100, 8, generator=generator)
        slots = [np.array([1, 2, 3]), np.array([4, 5, 6, 7, 8])]
        batch = GraphBatch(pool, CacheLayout.of(slots), 40)
        for part in (*batch._k, *batch._v):
            part.tensor[:, :, 5:] = filling
        q, k, v = torch.randn(3, 10, 2, 6, 8, generator=generator).to(dtype)
        out = []
        for step in range(10):
            batch.column_1 = torch.tensor([batch.column])
            out.append(batch.attend(0, q[step], k[step, :, :2], v[step, :, :2]))
            batch.advance()
        outs.append(torch.stack(out))
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=0)


def test_rows_that_no_grid_fits_are_one_segment():
    # 5 x 600 slots would be stored for 760, and nothing is shared by all.
    free = iter(range(1, 3000))
    slots = []
    for length in (600, 40, 40, 40, 40):
        shared = [next(free) for _ in range(length)]
        slots += [np.array([*shared, next(free)]) for _ in range(2)]
    assert not any(GridBatch.fits(CacheLayout.of(slots, smallest=s)) for s in (True, False))
    layout = GraphBatch.layout_of(slots)
    [segment] = layout.segments
    assert (segment.first, segment.last, len(segment.slots)) == (0, 10, 0)
    assert layout.own_RT.shape == (10, 601)

    system = np.array([9000, 9001])
    [segment] = GraphBatch.layout_of([np.concatenate((system, each)) for each in slots]).segments
    assert segment.slots.tolist() == [9000, 9001]


def test_only_a_model_on_a_gpu_has_a_graph():
    assert cuda_graph_of(model_of()) is None
