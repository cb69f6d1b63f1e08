"""Inference servers of other projects: vLLM and SGLang.

In: a config. Out: a running server (`environment.py` says where it is installed, `process.py`
starts and stops one, `vllm.py` and `sglang.py` know their arguments) and a `Replica` that speaks to
it (`vllm_replica.py`, `sglang_replica.py`).
Ignores which request goes to which server (core/inference/router.py).
"""
