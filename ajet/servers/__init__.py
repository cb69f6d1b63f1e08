"""Inference servers of other projects: vLLM and SGLang.

In: a config. Out: a running server (installed by environment.py, started by process.py with the
arguments of settings.py) and a `Replica` over it (vllm_replica.py, sglang_replica.py).
"""
