"""What every test starts from."""

import sys

import pytest


@pytest.fixture(autouse=True)
def same_number_of_threads():
    """A test may set torch's threads; the next one gets the number that was there before."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)
