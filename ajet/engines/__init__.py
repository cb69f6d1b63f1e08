"""The model in this process: prompt token ids and sampling parameters in, sampled ids with
log-probabilities out. `in_process.py` is the engine; batch, caches, forward passes and sampling
have a file each. Inference servers are in `ajet/servers`.
"""
