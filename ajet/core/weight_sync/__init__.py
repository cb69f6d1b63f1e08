"""Copies the trainer's weights into the models of other processes.

Transport: `folder.py` (safetensors on disk or in shared memory), `broadcast.py` (torch.distributed,
or a buffer on one device); `load.py` checks and loads them, also from the same process.
"""
