"""In: a config. Out: a running inference server, watched, and gone when its run is.

`process.py` starts and stops one, `vllm.py` and `sglang.py` know their arguments. Ignores what is
asked of a server once it runs: that is its replica's part (`engines/vllm.py`, `engines/sglang.py`).
"""
