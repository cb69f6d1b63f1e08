"""GSPO (arXiv 2507.18071): the ratio of the whole episode is clipped.

    s = exp( mean over the episode's tokens of log(pi / old) )
    -min( s A, clip(s, 1 - clip_low, 1 + clip_high) A )

In this form for token advantages (GSPO-token) the value of each token is s, and its gradient is
that of the token's log-probability, so equal advantages give the paper's gradient. The paper
aggregates with `seq-mean-token-mean` and has bounds of 3e-4 and 4e-4, because a mean ratio is near
1. With `seq-mean-token-sum` it is LUSPO (arXiv 2602.05261).
"""

from collections.abc import Iterator

from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.losses.ppo import ClipBounds, clipped_surrogate_loss
from ajet.core.losses.token_loss import MAX_LOG_RATIO, LossInputs, PolicyLoss, TokenLoss


def episode_log_ratio(tokens: MiniBatchTokens, settings: ClipBounds) -> TokenNumbers:
    return {"log_ratio": tokens.episode_means(tokens.log_ratio_M)}


def gspo(tokens: LossInputs, settings: ClipBounds) -> TokenLoss:
    gradient_M = tokens.logprobs_M - tokens.logprobs_M.detach()  # 0 in value
    log_ratio_M = tokens.mini_batch["log_ratio"] + gradient_M
    ratio_M = log_ratio_M.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss_M, cuts = clipped_surrogate_loss(ratio_M, tokens.advantages_M, settings)
    return TokenLoss(loss_M, ratio_M, cuts)


def unusual_settings(settings: ClipBounds) -> Iterator[str]:
    low, high = settings.clip_low, settings.clip_high
    if max(low, high) > 0.01:
        yield (
            f"{settings.bounds_text}: up to {max(low / 3e-4, high / 4e-4):,.0f} times wider than "
            "its paper's 3e-4 and 4e-4 (arXiv 2507.18071), so that hardly anything is clipped; set "
            "clip_low=3e-4 clip_high=4e-4"
        )


GSPO = PolicyLoss(
    gspo, episode_log_ratio, "episode", settings=ClipBounds, warnings=unusual_settings
)
