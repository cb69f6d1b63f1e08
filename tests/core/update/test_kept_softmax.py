"""Log-probabilities whose probabilities are kept have the numbers and gradients of log_softmax."""

import pytest
import torch

from ajet.core.update import softmax as module
from ajet.core.update.softmax import kept_softmax


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_are_those_of_log_softmax(dtype, tolerance, temperature, monkeypatch):
    monkeypatch.setattr(module, "SLICE", 40)  # two rows of 20 at once
    torch.manual_seed(0)
    features = torch.randn(5, 16).to(dtype).requires_grad_()
    weight = torch.randn(20, 16).to(dtype).requires_grad_()
    # Row 1 is read four times, twice for the same token; row 3 by nobody.
    index, targets = torch.tensor([4, 1, 1, 0, 1, 2, 1]), torch.tensor([3, 7, 7, 0, 2, 19, 11])
    probe = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5, -1.0, 0.25])
    logits = (features @ weight.T).float() / temperature
    logprobs = torch.log_softmax(logits, -1)
    expected = logprobs[index, targets]
    entropy = -(logprobs.exp() * logprobs).sum(-1)[index]
    found, found_entropy = kept_softmax(features, weight, index, targets, temperature)
    assert not found_entropy.requires_grad and found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found_entropy, entropy, rtol=tolerance, atol=tolerance)
    results = (
        torch.autograd.grad((x * probe).sum(), (features, weight)) for x in (found, expected)
    )
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def test_two_tokens_by_hand():
    """Logits 0 and ln 3: probabilities 1/4 and 3/4, so ln 1/4 has the gradient (3/4, -3/4)."""
    features = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [float(torch.tensor(3.0).log())]], requires_grad=True)
    found, entropy = kept_softmax(features, weight, torch.tensor([0]), torch.tensor([0]), 1.0)
    assert found.item() == pytest.approx(-1.3862944)
    assert entropy.item() == pytest.approx(0.5623351)
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.flatten().tolist() == pytest.approx([0.75, -0.75])


def test_without_gradient_nothing_is_kept():
    with torch.no_grad():
        found, _ = kept_softmax(
            torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 1]), torch.tensor([0, 3]), 1.0
        )
    assert found.tolist() == pytest.approx([-1.3862944] * 2)
