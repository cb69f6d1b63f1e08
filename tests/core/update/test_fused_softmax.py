"""Log-probabilities by kernels that keep no logits in float32 have the numbers and gradients of
log_softmax, and so have their entropies."""

import pytest
import torch
from torch import Tensor

from ajet.core.model.kernels.devices import CudaKernels
from ajet.core.update import loss
from ajet.core.update.fused_softmax import fused_softmax
from ajet.core.update.layouts.layout import ForwardOutput
from tests.core.model.triton_interpreter import interpreted_kernels


class TorchSoftmax:
    """Computes with torch what the kernels of the softmax do, in the dtype of the logits."""

    def softmax_sums(self, logits: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(wide(logits) * scale, -1)
        log_sum = torch.logsumexp(wide(logits) * scale, -1)
        return log_sum, -(logprobs.exp() * logprobs).sum(-1)

    def softmax_backward(
        self,
        logits: Tensor,
        scale: float,
        sums: tuple[Tensor, Tensor],
        d_sum: Tensor,
        d_entropy: Tensor | None,
    ) -> None:
        log_sum, entropy = (each.unsqueeze(1) for each in sums)
        logprobs = wide(logits) * scale - log_sum
        factor = d_sum.unsqueeze(1)
        if d_entropy is not None:
            factor = factor + d_entropy.unsqueeze(1) * (logprobs + entropy)
        logits.copy_(-logprobs.exp() * factor)


def wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


@pytest.fixture(params=["torch", "triton"])
def kernels(request) -> CudaKernels:
    return TorchSoftmax() if request.param == "torch" else interpreted_kernels()


INDEX, TARGETS = [4, 1, 1, 0, 1, 2, 1], [3, 7, 7, 0, 2, 19, 11]
"""Row 1 is read four times, twice for the same token; row 3 by nobody."""
PROBE = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5, -1.0, 0.25])
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_gradients_are_those_of_log_softmax(kernels, dtype, temperature, rows):
    if dtype == torch.float64 and not isinstance(kernels, TorchSoftmax):
        pytest.skip("the kernels compute in float32")
    torch.manual_seed(0)
    features = torch.randn(5, 16).to(dtype).requires_grad_()
    weight = torch.randn(20, 16).to(dtype).requires_grad_()
    index, targets, tolerance = torch.tensor(INDEX), torch.tensor(TARGETS), TOLERANCES[dtype]
    logprobs = torch.log_softmax(wide(features @ weight.T) / temperature, -1)
    expected = logprobs[index, targets], -(logprobs.exp() * logprobs).sum(-1)[index]
    found = fused_softmax(kernels, features, weight, index, targets, temperature, rows)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for of in (
        lambda logprobs, entropy: (logprobs * PROBE).sum(),
        lambda logprobs, entropy: (entropy * PROBE.flip(0)).sum(),
        lambda logprobs, entropy: (logprobs * PROBE).sum() + (entropy * PROBE.flip(0)).sum(),
    ):
        results = (
            torch.autograd.grad(of(*x), (features, weight), retain_graph=True)
            for x in (found, expected)
        )
        for a, b in zip(*results, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def test_a_token_that_is_nearly_certain_keeps_its_small_gradient(kernels):
    """Of logits 7 and 0 the first has p = 0.99909, so its gradient is 1 - p = 9.1e-4: in bfloat16
    p is 1, and a sum of what is rounded would be 0."""
    features = torch.eye(1, dtype=torch.bfloat16).requires_grad_()
    weight = torch.tensor([[7.0], [0.0]], dtype=torch.bfloat16)
    zero = torch.zeros(1, dtype=torch.long)
    logprobs, _ = fused_softmax(kernels, features, weight, zero, zero, 1.0, 1)
    logprobs.sum().backward()
    assert features.grad is not None
    assert float(features.grad) == pytest.approx(7 * 9.11e-4, rel=1e-2)


def test_without_a_gradient_of_the_weight_only_the_features_have_one(kernels):
    features = torch.ones(2, 3, requires_grad=True)
    index, targets = torch.tensor([0, 1]), torch.tensor([0, 3])
    found, _ = fused_softmax(kernels, features, torch.eye(4, 3), index, targets, 1.0, 1)
    found.sum().backward()
    assert features.grad is not None and features.grad.abs().sum() > 0


def test_a_rank_without_a_token_has_gradients_of_0(kernels):
    features = torch.ones(0, 3, requires_grad=True)
    weight, none = torch.eye(4, 3, requires_grad=True), torch.zeros(0, dtype=torch.long)
    found, entropy = fused_softmax(kernels, features, weight, none, none, 1.0, 1)
    assert found.shape == entropy.shape == (0,)
    (found.sum() + entropy.sum()).backward()
    assert features.grad is not None and features.grad.shape == (0, 3)
    assert weight.grad is not None and torch.equal(weight.grad, torch.zeros(4, 3))


@pytest.mark.parametrize("with_entropy_grad", [False, True])
def test_scores_are_computed_by_the_kernels_where_there_are_some(with_entropy_grad, monkeypatch):
    torch.manual_seed(0)
    features, weight = torch.randn(5, 16, requires_grad=True), torch.randn(20, 16)
    output = ForwardOutput(features, lambda x: x @ weight.T, 20, torch.tensor(INDEX), weight)
    inputs = (output, torch.tensor(TARGETS), 0.7, with_entropy_grad)
    expected, calls = loss.score_tokens(*inputs), []
    monkeypatch.setattr(loss, "cuda_kernels_for", lambda x: calls.append(x) or TorchSoftmax())
    found = loss.score_tokens(*inputs)
    assert len(calls) == 1 and found.entropy_M.requires_grad == with_entropy_grad
    torch.testing.assert_close(found.logprobs_M, expected.logprobs_M)
    torch.testing.assert_close(found.entropy_M, expected.entropy_M)
