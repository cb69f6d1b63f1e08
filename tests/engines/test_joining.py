"""When requests join a running batch, and how long an idle engine waits for more of them."""

import pytest
import torch

from ajet.core.inference.endpoint import SamplingParams
from ajet.engines.batch import Batch
from ajet.engines.forward import BatchRow
from ajet.engines.in_process import wait_for_pause

VOCAB = 8
LENGTH = 100


class CountingForward:
    """Samples token 0 for ever, and notes how many rows each forming of the batch had."""

    def __init__(self):
        self.formed = []

    def fits(self, rows):
        return True

    def rebuild(self, rows):
        self.formed.append(len(rows))
        return 0

    def decode(self, tokens, positions):
        return torch.zeros(len(tokens), VOCAB)

    def keep(self, index): ...
    def store(self, rows): ...
    def release(self, episode_ids): ...
    def reset(self): ...


def batch_of(forward, *, eager):
    return Batch(forward, torch.device("cpu"), max_num_seqs=99, eager=eager)


def rows(first, count):
    sampling = SamplingParams(max_tokens=LENGTH - 1)
    return [BatchRow(f"e{first + n}/0", (1,), sampling, frozenset(), LENGTH) for n in range(count)]


def steps(batch, number):
    for _ in range(number):
        batch.step()


def test_requests_join_when_they_are_twice_the_running_ones():
    batch = batch_of(forward := CountingForward(), eager=True)
    batch.add(rows(0, 2))
    steps(batch, 1)
    batch.add(rows(2, 3))
    steps(batch, 1)
    assert forward.formed == [2]
    batch.add(rows(5, 1))
    steps(batch, 1)
    assert forward.formed == [2, 6]


@pytest.mark.parametrize(("num_running", "num_steps"), [(1, 1), (8, 8), (32, 32), (40, 32)])
def test_a_single_request_joins_after_a_step_for_each_running_one_32_at_most(
    num_running, num_steps
):
    batch = batch_of(forward := CountingForward(), eager=True)
    batch.add(rows(0, num_running))
    steps(batch, 1)
    batch.add(rows(num_running, 1))
    steps(batch, num_steps - 1)
    assert forward.formed == [num_running]
    steps(batch, 1)
    assert forward.formed == [num_running, num_running + 1]


def test_what_comes_in_a_wave_waits_for_its_end():
    batch = batch_of(forward := CountingForward(), eager=False)
    batch.add(rows(0, 1))
    steps(batch, 1)
    batch.add(rows(1, 9))
    steps(batch, 97)
    assert forward.formed == [1]
    steps(batch, 2)  # the 99th token was the row's last
    assert forward.formed == [1, 9]


class Arrivals:
    """A condition that is notified every 10 ms, so many times, and then no more."""

    def __init__(self, number):
        self.left, self.now_ms = number, 0

    def wait(self, timeout=None):
        self.left -= 1
        self.now_ms += 10 if self.left >= 0 else round(timeout * 1000)
        return self.left >= 0

    def clock(self):
        return self.now_ms / 1000


def test_an_idle_engine_waits_until_requests_have_stopped_coming():
    arrivals = Arrivals(5)
    wait_for_pause(arrivals.wait, arrivals.clock)
    assert arrivals.now_ms == 5 * 10 + 20


def test_a_wave_waits_a_bounded_time_for_a_pause():
    arrivals = Arrivals(1000)
    wait_for_pause(arrivals.wait, arrivals.clock)
    assert arrivals.now_ms == 160
