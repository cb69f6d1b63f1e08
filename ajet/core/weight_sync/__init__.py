"""Brings the trainer's weights to another process.

In: the trainer's weights, tensor by tensor. Out: the same weights in another process's model.
`folder.py` (safetensors on disk or in shared memory), `broadcast.py` (torch.distributed, or a
buffer on one device) and `live.py` (the same process) transport them; `load.py` copies them into a
model, or adds adapters to it (`adapters.py`); `manifest.py` describes what was sent, and
`unused_memory.py` gives back what a load has used. Ignored: who trains and who samples.
"""
