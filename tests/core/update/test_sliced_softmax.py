"""Log-probabilities computed slice by slice have the numbers and gradients of log_softmax, and the
head's gradient does not get worse by being added up over slices."""

import pytest
import torch

from ajet.core.update.layouts.layout import ForwardOutput
from ajet.core.update.loss import MAX_LOGITS, MAX_LOGITS_ON_GPU, score_tokens
from ajet.core.update.softmax import sliced_softmax


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_gradients_are_those_of_log_softmax(dtype, tolerance, temperature, rows):
    torch.manual_seed(0)
    features = torch.randn(5, 16).to(dtype).requires_grad_()
    weight = torch.randn(20, 16).to(dtype).requires_grad_()
    # Row 1 is read four times, twice for the same token; row 3 by nobody.
    index, targets = torch.tensor([4, 1, 1, 0, 1, 2, 1]), torch.tensor([3, 7, 7, 0, 2, 19, 11])
    probe = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5, -1.0, 0.25])
    wide = torch.promote_types(dtype, torch.float32)
    logprobs = torch.log_softmax((features @ weight.T).to(wide) / temperature, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)[index]
    found, found_entropy = sliced_softmax(features, weight, index, targets, temperature, rows)
    assert not found_entropy.requires_grad and found.dtype == wide
    torch.testing.assert_close(found, logprobs[index, targets], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found_entropy, entropy, rtol=tolerance, atol=tolerance)
    results = (
        torch.autograd.grad((x * probe).sum(), (features, weight))
        for x in (found, logprobs[index, targets])
    )
    for a, b in zip(*results, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def test_the_gradient_of_a_bfloat16_head_errs_in_64_slices_no_more_than_in_one():
    torch.manual_seed(0)
    features, weight = torch.randn(256, 32), 0.3 * torch.randn(120, 32)
    index, targets = torch.arange(256), torch.randint(0, 120, (256,))

    def gradient(dtype, max_logits):
        inputs = [t.to(torch.bfloat16).to(dtype).requires_grad_() for t in (features, weight)]
        head = inputs[1]
        read = ForwardOutput(inputs[0], lambda x: x @ head.T, 120, index, head)
        scores = score_tokens(read, targets, 1.0, False, max_logits)
        return torch.autograd.grad(scores.logprobs_M.sum(), head)[0].double()

    exact = gradient(torch.float64, 120 * 256)
    one, many = (
        float((gradient(torch.bfloat16, 120 * rows) - exact).norm() / exact.norm())
        for rows in (256, 4)
    )
    assert 0 < many <= 1.02 * one


def test_without_a_gradient_of_the_weight_only_the_features_have_one():
    features = torch.ones(2, 3, requires_grad=True)
    found, _ = sliced_softmax(
        features, torch.eye(4, 3), torch.tensor([0, 1]), torch.tensor([0, 3]), 1.0, 1
    )
    found.sum().backward()
    assert features.grad is not None and features.grad.abs().sum() > 0


def test_a_gpu_reads_the_head_for_more_rows_at_once():
    assert (MAX_LOGITS // 152_064, MAX_LOGITS_ON_GPU // 152_064) == (110, 882)
