"""Brings the trainer's weights to another process.

In: the trainer's weights, tensor by tensor. Out: the same weights in another process's model.
`folder.py` (safetensors on disk or in shared memory), `broadcast.py` (torch.distributed) and
`live.py` (the same process or device) transport them, `load.py` copies them into a model, and
`manifest.py` describes what was sent. Ignored: who trains and who samples.
"""
