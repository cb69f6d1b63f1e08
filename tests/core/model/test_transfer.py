"""Numbers on their way to a device, and back."""

import numpy as np
import pytest
import torch

from ajet.core.model.transfer import DownloadBuffer, UploadBuffer


def test_a_buffer_is_written_in_place():
    buffer = UploadBuffer(np.array([1, 2]), torch.device("cpu"))
    given = np.array([3, 4])
    first = buffer.write(given)
    given[:] = 0
    assert first.tolist() == [3, 4] and first.dtype == torch.int64
    assert buffer.write(np.array([5, 6])) is first and first.tolist() == [5, 6]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_numbers_that_are_on_their_way_are_not_overwritten():
    buffer = UploadBuffer(np.zeros(1000, np.int64), torch.device("cuda"))
    torch.cuda._sleep(100_000_000)  # the copies wait behind it
    found = [buffer.write(np.full(1000, number)).clone() for number in (1, 2, 3)]
    assert [each.unique().tolist() for each in found] == [[1], [2], [3]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_is_read_is_what_stood_there_when_the_copy_was_started():
    buffers = [DownloadBuffer(), DownloadBuffer()]
    tensor = torch.zeros(1000, device="cuda")
    for number, buffer in enumerate(buffers):
        torch.cuda._sleep(100_000_000)  # the copies wait behind it
        buffer.start(tensor.fill_(number))
    tensor.fill_(9)
    assert [np.unique(buffer.read()).tolist() for buffer in buffers] == [[0], [1]]
