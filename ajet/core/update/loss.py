"""The objective as a sum over tokens, and the weight of each token in it:

    loss = sum over components c of  coef_c * sum_t weight_ct * value_ct

The policy's update adds the components up (policy.py).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ajet.core.losses.token_loss import MAX_LOG_RATIO
from ajet.core.model.kernels.devices import cuda_kernels_for
from ajet.core.model.precision import to_wide_dtype
from ajet.core.model.wide_layer import is_wide
from ajet.core.trajectory.sample import Component, TrainingSample
from ajet.core.update.fused_softmax import fused_softmax
from ajet.core.update.layouts.layout import ForwardOutput, Layout, Row, concat_to_device
from ajet.core.update.restricted_softmax import RowMasks, restricted_scores
from ajet.core.update.settings import UpdateSettings
from ajet.core.update.softmax import kept_softmax, sliced_softmax

MAX_KL = 10.0
# The most logits of one slice: by number on a CPU and a GPU, by bytes with Triton's kernels.
MAX_LOGITS = 1 << 24  # 64 MiB in float32
MAX_LOGITS_ON_GPU = 1 << 27  # 512 MiB in float32: 882 rows of 152,064, and few reads of the head
MAX_LOGITS_OF_KERNELS = 1 << 30  # bytes: 3,530 rows of 152,064 in bfloat16, and no other copy
MAX_KEPT = 1 << 29  # bytes: 2,730 sampled tokens of 49,152 in float32, 5,461 in bfloat16


EpisodeWeights = dict[Component, dict[str, float]]
"""Maps a component, and an episode with tokens in it, to the factor of these tokens' streams."""


def component_weights(
    samples: Sequence[TrainingSample], settings: UpdateSettings
) -> EpisodeWeights:
    """Returns the factors of each component that the mini-batch carries and the settings use.

        component        carried by       value of a token                          coef
        policy_gradient  sampled tokens   w * (policy loss), less entropy_coef * H  1
        kl_reference     sampled tokens   kl_penalty(pi, reference)                 kl_loss_coef
        cross_entropy    given tokens     -log pi                                   1
        kl_teacher       sampled tokens   w * kl_penalty(pi, teacher, "k1")         kl_teacher_coef

    `w` is the importance weight between sampler and trainer (1 without a correction), H the
    entropy. `TrainingSample.stream` says which components a token carries, and how strongly."""
    by_component = {
        component: episode_weights(samples, settings, component)
        for component in get_args(Component)
        if coefficient(component, settings)
    }
    return {component: weights for component, weights in by_component.items() if weights}


def coefficient(component: Component, settings: UpdateSettings) -> float:
    coefs = {"kl_reference": settings.kl_loss_coef, "kl_teacher": settings.kl_teacher_coef}
    return coefs.get(component, 1.0)


def episode_weights(
    samples: Sequence[TrainingSample],
    settings: UpdateSettings,
    component: Component = "policy_gradient",
) -> dict[str, float]:
    """Returns, for each episode with a token in the component, the weight of a token whose stream
    is 1 (1 / denominator). Denominators are over the whole mini-batch, so the sum does not depend
    on the division into micro-batches, layouts or ranks. "seq" means an EPISODE: one that is split
    into several timelines counts once. With E episodes and N tokens, n_e of them in episode e:

        token-mean                1 / N
        seq-mean-token-sum        1 / E
        seq-mean-token-mean       1 / (E * n_e)
        seq-mean-token-sum-norm   1 / (E * scale)    scale: `loss_scale_factor`, or the largest n_e
    """
    # A token with advantage 0 is in the mean too: a batch in which few groups have a signal makes a
    # small step.
    tokens_E: Counter[str] = Counter()
    for sample in samples:
        if num_tokens := int(np.count_nonzero(sample.stream(component))):
            tokens_E[sample.episode_id] += num_tokens
    num_episodes = len(tokens_E)
    if not num_episodes:
        return {}
    match settings.loss_agg_mode:
        case "token-mean":
            return dict.fromkeys(tokens_E, 1.0 / tokens_E.total())
        case "seq-mean-token-sum":
            return dict.fromkeys(tokens_E, 1.0 / num_episodes)
        case "seq-mean-token-mean":
            return {e: 1.0 / (num_episodes * n) for e, n in tokens_E.items()}
        case "seq-mean-token-sum-norm":
            scale = settings.loss_scale_factor or max(tokens_E.values())
            return dict.fromkeys(tokens_E, 1.0 / (num_episodes * scale))


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The policy's numbers for each trained token [M]; `entropy_M` may have a gradient."""

    logprobs_M: Tensor
    entropy_M: Tensor


def score_tokens(
    output: ForwardOutput,
    targets_M: Tensor,
    temperature: float,
    with_entropy_grad: bool,
    max_logits: int | None = None,
    max_kept: int = MAX_KEPT,
    masks: RowMasks | None = None,
) -> TokenScores:
    """Returns log-probabilities of `targets_M`, in float32 or wider, and entropies.

    The logits are divided by the sampling temperature, as the sampler did. A cut by top-p or top-k
    is not repeated here: the sampler's log-probabilities are then of the renormalised cut and the
    ratio starts below 1, which `logprob_diff_max` shows.

    With a vocabulary of 50,000, logits are far larger than any other tensor. More than `max_logits`
    are computed in slices; on a CPU up to `max_kept` bytes are kept for the backward pass.

    A cut by a grammar is repeated: `masks` restrict the distribution of tokens that have one."""
    if masks is not None:
        return _score_restricted(
            output, targets_M, temperature, with_entropy_grad, masks, max_logits
        )
    # 1. CUDA with Triton: slices stay in the model's dtype.
    kernels, weight_VD = cuda_kernels_for(output.features_UD), output.head_weight
    if kernels is not None and weight_VD is not None:
        limit = max_logits or MAX_LOGITS_OF_KERNELS // weight_VD.element_size()
        rows = max(1, limit // output.vocab_size)
        inputs = (output.features_UD, weight_VD, output.index_M, targets_M, temperature, rows)
        logprobs_M, entropy_M = fused_softmax(kernels, *inputs)
        return TokenScores(logprobs_M, entropy_M if with_entropy_grad else entropy_M.detach())

    def score(features_UD: Tensor, index_M: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
        logits_UV = to_wide_dtype(output.head(features_UD))
        if temperature != 1.0:
            logits_UV = logits_UV / temperature
        logprobs_UV = torch.log_softmax(logits_UV, dim=-1)
        # If the entropy is only a metric it needs no graph, which would keep two more [U, V].
        with torch.set_grad_enabled(with_entropy_grad and torch.is_grad_enabled()):
            entropy_U = -(logprobs_UV.exp() * logprobs_UV).sum(-1)
        return logprobs_UV[index_M, targets_M], entropy_U[index_M]

    on_gpu = output.features_UD.device.type == "cuda"
    if max_logits is None:
        max_logits = MAX_LOGITS_ON_GPU if on_gpu else MAX_LOGITS
    step = max(1, max_logits // output.vocab_size)
    num_rows = len(output.features_UD)
    if num_rows <= step:  # 2. Few tokens: plain autograd, all logits at once.
        return TokenScores(*score(output.features_UD, output.index_M, targets_M))
    if weight_VD is not None and not with_entropy_grad:
        # 3. The head is a plain product: softmaxes with a hand-written backward pass.
        inputs = (output.features_UD, weight_VD, output.index_M, targets_M, temperature)
        num_bytes = num_rows * output.vocab_size * weight_VD.element_size()
        if is_wide(output.features_UD) and num_bytes <= max_kept:
            return TokenScores(*kept_softmax(*inputs))
        if on_gpu or weight_VD.dtype in (torch.bfloat16, torch.float16):
            return TokenScores(*sliced_softmax(*inputs, step))
    # 4. Slices under torch's checkpoint, which computes each slice's logits again in the backward.
    # Tokens are taken slice by slice (index_M is a row of features), then put back in their order.
    order_M = torch.argsort(output.index_M, stable=True)
    slices = []
    for start in range(0, num_rows, step):
        tokens = order_M[(output.index_M[order_M] // step) == start // step]
        features = output.features_UD[start : start + step]
        inputs = (features, output.index_M[tokens] - start, targets_M[tokens])
        slices.append(checkpoint(score, *inputs, use_reentrant=False, preserve_rng_state=False))
    logprobs, entropy = (torch.cat(part)[order_M.argsort()] for part in zip(*slices, strict=True))
    return TokenScores(logprobs, entropy)


def _score_restricted(
    output: ForwardOutput,
    targets_M: Tensor,
    temperature: float,
    with_entropy_grad: bool,
    masks: RowMasks,
    max_logits: int | None,
) -> TokenScores:
    """Returns the scores of tokens of which some have a mask, and some none or are forced."""
    # Free tokens take the usual path, over the rows that they read: whatever kernels compute it
    # know nothing of masks.
    index_F = torch.nonzero(masks.free_M).squeeze(1)
    used_rows, index_M = torch.unique(output.index_M[index_F], return_inverse=True)
    free = replace(output, features_UD=output.features_UD[used_rows], index_M=index_M)
    scores = score_tokens(free, targets_M[index_F], temperature, with_entropy_grad, max_logits)
    on_gpu = output.features_UD.device.type == "cuda"
    most = max_logits or (MAX_LOGITS_ON_GPU if on_gpu else MAX_LOGITS)
    at_K, logprobs_K, entropy_K = restricted_scores(
        output, targets_M, masks, temperature, with_entropy_grad, most
    )
    # Forced tokens have log-probability 0, whatever the weights are. It gets a graph, because a
    # micro-batch may have no other tokens, and `backward` needs one.
    forced = torch.nonzero(masks.forced_M).squeeze(1)
    zeros = to_wide_dtype(output.features_UD[output.index_M[forced]]).sum(-1) * 0
    order = torch.cat((index_F, at_K, forced)).argsort()
    return TokenScores(
        torch.cat((scores.logprobs_M, logprobs_K, zeros))[order],
        torch.cat((scores.entropy_M, entropy_K, zeros.detach()))[order],
    )


@torch.no_grad()
def token_logprobs(layout: Layout, rows: Sequence[Row], temperature: float) -> Tensor:
    """Returns the log-probability of each trained token of the rows, without gradient."""
    output = layout.forward(rows)
    targets_M = concat_to_device((row.targets for row in rows), output.index_M.device)
    masks = RowMasks.of(rows, output.index_M.device)
    return score_tokens(output, targets_M, temperature, False, masks=masks).logprobs_M


def kl_penalty(logprobs_M: Tensor, reference_M: Tensor, estimator: str) -> Tensor:
    """Estimates the KL from the policy to the reference from the sampled tokens (Schulman 2020,
    "Approximating KL divergence"), with d = log pi - log reference:

        k1             d
        k2             d^2 / 2
        low_var_kl     k3: exp(-d) - 1 + d, with d cut to +-20 and the estimate to 10

    k1 and `low_var_kl+` have the gradient of k2, d * grad log pi, whose expectation is the gradient
    of the KL; that of k1 itself would be 0 on average. The gradient of `low_var_kl` is (1 -
    exp(-d)) * grad log pi, and 0 where the estimate is cut: at d < -2.61, where the policy has less
    than 7.3 % of the reference's probability, and at d > 11."""
    difference_M = logprobs_M - reference_M
    k2_M = 0.5 * difference_M.square()
    if estimator == "k2":
        return k2_M
    if estimator == "k1":
        return difference_M.detach() + (k2_M - k2_M.detach())  # value of k1, gradient of k2
    log_ratio_M = (reference_M - logprobs_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k3_M = (log_ratio_M.exp() - log_ratio_M - 1).clamp(-MAX_KL, MAX_KL)
    return k3_M.detach() + (k2_M - k2_M.detach()) if estimator == "low_var_kl+" else k3_M
