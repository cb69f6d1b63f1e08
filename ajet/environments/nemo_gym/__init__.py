"""Resources servers of NeMo Gym: the tools and the reward of an episode, over HTTP."""
