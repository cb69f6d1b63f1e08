"""Copies the trainer's weights into the models of other processes.

Transport: `folder.py` (safetensors on disk or in shared memory), `broadcast.py` (torch.distributed,
or a buffer on one device) and `live.py` (the same process). `load.py` checks and loads them.
"""
