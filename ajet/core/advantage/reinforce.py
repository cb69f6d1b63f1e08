"""REINFORCE: the advantage of a token is its return-to-go, discounted once for each token.

    tokens     a0 a1 | b0        turn rewards .2 and 1, gamma .5
    rewards     0 .2 |  1
    returns   .35 .7 |  1        G_t = r_t + gamma G_(t+1)

Williams 1992; Sutton and Barto 2018, section 13.3. Prompts, tool results and other agents' turns
are skipped (token_chain.py).

REINFORCE++ (Hu et al. 2025, arXiv 2501.03262) is the same, whitened over all trained tokens of the
batch, unless `whiten_advantages` is false; use_kl_in_reward puts its KL into the rewards.
"""

from collections.abc import Sequence

from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit
from ajet.core.advantage.estimator import Estimator
from ajet.core.advantage.token_chain import discounted_sums, token_chains


def reinforce(groups: Sequence[GroupCredit], options: AdvantageOptions) -> Advantages:
    """Gives each token its return-to-go; without comparison, a lone episode keeps its return."""
    chains = token_chains(groups)
    return chains.to_turns(discounted_sums(chains.rewards_TC, options.gamma))


REINFORCE = Estimator(reinforce, reads=("gamma",))
REINFORCE_PLUS_PLUS = Estimator(reinforce, reads=("gamma",), whitens=True)
