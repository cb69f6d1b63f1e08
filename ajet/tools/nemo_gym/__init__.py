"""Resources servers of NeMo Gym: the tools and the reward of an episode, over HTTP.

In: a row with `responses_create_params` and the address of a server. Out: messages and tools for
the model, the tools' answers, and the server's reward. Starting a server is not covered.
"""
