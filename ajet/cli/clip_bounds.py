"""Finds clip bounds that do not fit the policy loss, by the numbers of its paper.

    policy_loss=gspo with clip_low=0.2, clip_high=0.28      700 times wider than the paper's
    policy_loss=gpg with clip_low=0.2                       it clips nothing

Not covered: bounds that are tuned within the range of the papers'.
"""

from collections.abc import Callable, Iterator

from ajet.core.config.algorithm import AlgorithmConfig

GSPO_BOUNDS = 3e-4, 4e-4
WIDE, NARROW = 0.01, 0.01
"""Bounds of a sequence's ratio above WIDE clip nothing; those of a token's below NARROW nearly
all."""
PPO_WIDE = 0.5, 1.0
"""Bounds of a token's ratio above which hardly a token is clipped, below 1 and above it."""


def bounds_that_do_not_fit(algorithm: AlgorithmConfig) -> Iterator[str]:
    """Yields a text for each problem, which goes on after the name of the loss."""
    check = CHECKS.get(algorithm.policy_loss)  # none of a loss of the user's own
    return iter(()) if check is None else check(algorithm)


def _bounds(algorithm: AlgorithmConfig) -> str:
    return f"with clip_low={algorithm.clip_low:g}, clip_high={algorithm.clip_high:g}"


def _ppo_bounds(algorithm: AlgorithmConfig) -> Iterator[str]:
    low, high, dual = algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip
    papers = "0.2 and 0.2 (PPO, arXiv 1707.06347) or 0.2 and 0.28 (DAPO, arXiv 2503.14476)"
    if max(low, high) < NARROW:
        yield (
            f"{_bounds(algorithm)}: a token's ratio leaves such bounds at once; papers have "
            f"{papers}"
        )
    if low > PPO_WIDE[0] or high > PPO_WIDE[1]:
        yield f"{_bounds(algorithm)}: hardly a token is clipped; papers have {papers}"
    if dual is not None and dual <= 1 + high:
        yield (
            f"with dual_clip={dual:g}, clip_high={high:g}: the dual clip is not above 1 + "
            "clip_high; its paper has 3 (arXiv 1912.09729)"
        )


def _gspo_bounds(algorithm: AlgorithmConfig) -> Iterator[str]:
    low, high = algorithm.clip_low, algorithm.clip_high
    if max(low, high) > WIDE:
        times = max(low / GSPO_BOUNDS[0], high / GSPO_BOUNDS[1])
        yield (
            f"{_bounds(algorithm)}: up to {times:,.0f} times wider than its paper's 3e-4 "
            "and 4e-4 (arXiv 2507.18071), so that hardly anything is clipped; set clip_low=3e-4 "
            "clip_high=4e-4"
        )


def _cispo_bounds(algorithm: AlgorithmConfig) -> Iterator[str]:
    if algorithm.clip_low < 0.9:
        yield (
            f"with clip_low={algorithm.clip_low:g}: its paper (arXiv 2506.13585) bounds the ratio "
            "from above alone; set clip_low=1"
        )
    if algorithm.clip_high < NARROW:
        yield (
            f"with clip_high={algorithm.clip_high:g}: no token that became likelier weighs more; "
            "verl has 0.2"
        )


def _sapo_gate(algorithm: AlgorithmConfig) -> Iterator[str]:
    yield from _no_bounds(algorithm)
    pos, neg = algorithm.sapo_tau_pos, algorithm.sapo_tau_neg
    if neg < pos:
        yield (
            f"with sapo_tau_pos={pos:g}, sapo_tau_neg={neg:g}: the gate closes later for negative "
            "advantages, its paper's earlier: 1 and 1.05 (arXiv 2511.20347)"
        )


def _gmpo_bounds(algorithm: AlgorithmConfig) -> Iterator[str]:
    if max(algorithm.clip_low, algorithm.clip_high) < NARROW:
        yield (
            f"{_bounds(algorithm)}: they bound the logarithm of each token's ratio, which leaves "
            "them at once; its paper has 0.4 and 0.4 (arXiv 2507.20673)"
        )


def _dppo_bounds(algorithm: AlgorithmConfig) -> Iterator[str]:
    """Finds bounds of a divergence that hardly a token reaches. A difference of probabilities is at
    most 1; the divergence of two choices grows with its square."""
    widest = 0.5 if algorithm.policy_loss == "dppo_tv" else 0.2
    if max(algorithm.clip_low, algorithm.clip_high) > widest:
        yield (
            f"{_bounds(algorithm)}: they bound a divergence of probabilities and not a ratio "
            f"(arXiv 2602.04879): above {widest:g} hardly a token is left out"
        )


def _no_bounds(algorithm: AlgorithmConfig) -> Iterator[str]:
    """Finds bounds that are written for a loss that clips nothing."""
    written = [
        f"{key}={getattr(algorithm, key):g}"
        for key in ("clip_low", "clip_high", "dual_clip")
        if key in algorithm.model_fields_set and getattr(algorithm, key) is not None
    ]
    if written:
        yield f"with {', '.join(written)}: it clips nothing, so they have no effect"


CHECKS: dict[str, Callable[[AlgorithmConfig], Iterator[str]]] = {
    "ppo": _ppo_bounds,
    "gspo": _gspo_bounds,
    "cispo": _cispo_bounds,
    "sapo": _sapo_gate,
    "gpg": _no_bounds,
    "topr": _no_bounds,
    "gmpo": _gmpo_bounds,
    "vespo": _no_bounds,
    "dppo_tv": _dppo_bounds,
    "dppo_kl": _dppo_bounds,
    "clip_cov": _ppo_bounds,
    "kl_cov": _no_bounds,
}
