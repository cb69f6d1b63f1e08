"""In: the trainer's weights, tensor by tensor. Out: the same weights in another process's model.

`folder.py` (safetensors on disk or in shared memory) and `broadcast.py` (torch.distributed) are the
ways, `load.py` is the arrival, `manifest.py` says what was sent. Ignores who trains, who samples.
"""
