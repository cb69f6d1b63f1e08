"""A stand-in for a CUDA graph on the CPU."""

from torch import Tensor, nan
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Notes each operator with the very tensors and numbers that it was given, and what it gave."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class TapedGraph:
    """Repeats the captured operators on the memory that they had, with the numbers that they had:
    a step that another tensor has been put in for, or another column, computes nonsense."""

    def __init__(self):
        self.calls = []
        self.num_captured = self.num_freed = 0

    def warm_up(self, compute):
        return compute()

    def capture(self, compute):
        with Tape() as tape:
            out = compute()
        self.calls = tape.calls
        self.num_captured += 1
        return out.fill_(nan)  # capturing computes nothing

    def replay(self):
        assert self.calls, "nothing was captured"
        for func, args, kwargs, outs in self.calls:
            given = {storage_of(t) for t in tensors_of((args, kwargs))}
            again = func(*args, **kwargs)
            for old, new in zip(tensors_of(outs), tensors_of(again), strict=True):
                if storage_of(old) not in given:  # else a view, or written in place
                    old.copy_(new)

    def free(self):
        self.calls = []
        self.num_freed += 1


def tensors_of(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr()
