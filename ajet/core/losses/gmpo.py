"""GMPO (arXiv 2507.20673): the geometric mean of an episode's token ratios, each clipped.

    d = log(pi / old) of a token, clipped to -clip_low .. clip_high where it has gone further than
        that in the direction of A: above where A > 0, below where A < 0
    s = exp( mean over the episode's tokens of d )
    -s A

In this form for token advantages (as in GSPO-token) the value of each token is s, and its gradient
is that of the token's d, 0 where d is clipped; equal advantages give the paper's gradient. The
paper aggregates with `seq-mean-token-mean` and has bounds of 0.4 and 0.4.
"""

from collections.abc import Iterator

import numpy as np

from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.losses.ppo import NARROW, ClipBounds
from ajet.core.losses.token_loss import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLoss


def clipped_log_ratio(tokens: MiniBatchTokens, settings: ClipBounds) -> TokenNumbers:
    ratio_M, advantages_M = tokens.log_ratio_M, tokens.advantages_M
    above_M = np.where(advantages_M > 0, settings.clip_high, np.inf)
    below_M = np.where(advantages_M < 0, -settings.clip_low, -np.inf)
    return {"log_ratio": tokens.episode_means(np.clip(ratio_M, below_M, above_M))}


def gmpo(tokens: LossInputs, settings: ClipBounds) -> TokenLoss:
    import torch

    d_M = tokens.logprobs_M.detach() - tokens.old_M
    cuts = {
        "low": (tokens.advantages_M < 0) & (d_M < -settings.clip_low),
        "high": (tokens.advantages_M > 0) & (d_M > settings.clip_high),
    }
    is_free_M = ~(cuts["low"] | cuts["high"])
    # 0 in value: it adds the token's gradient to s, which is a number of the whole episode.
    gradient_M = torch.where(is_free_M, tokens.logprobs_M - tokens.logprobs_M.detach(), 0.0)
    log_ratio_M = tokens.mini_batch["log_ratio"] + gradient_M
    ratio_M = log_ratio_M.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return TokenLoss(-ratio_M * tokens.advantages_M, ratio_M, cuts)


def unusual_settings(settings: ClipBounds) -> Iterator[str]:
    if max(settings.clip_low, settings.clip_high) < NARROW:
        yield (
            f"{settings.bounds_text}: they bound the logarithm of each token's ratio, which leaves "
            "them at once; the paper has 0.4 and 0.4 (arXiv 2507.20673)"
        )


GMPO = PolicyLoss(
    gmpo, clipped_log_ratio, "episode", settings=ClipBounds, warnings=unusual_settings
)
