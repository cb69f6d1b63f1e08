"""Masks of episodes from which the policy has moved away (DeepSeek-V3.2, arXiv 2512.02556,
equation 9).

    0    A < 0 and mean over the episode's tokens of log(sampler / pi) > off_policy_mask
    1    otherwise; the token's policy loss is multiplied with it

pi is the present policy, so both the updates since the rollout and the difference between sampler
and trainer count. KL and entropy keep all tokens, and a masked token still counts in the mean.
"""

from ajet.core.losses.mini_batch_tokens import Floats, MiniBatchTokens

OFF_POLICY = "off_policy"


def off_policy_tokens(tokens: MiniBatchTokens, bound: float) -> Floats:
    """Returns 1 for each token that is masked, and 0 for the others."""
    gap_M = tokens.episode_means((tokens.sampler_M - tokens.logprobs_M).astype("float64"))
    return ((tokens.advantages_M < 0) & (gap_M > bound)).astype("float64")
