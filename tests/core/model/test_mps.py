"""The GPU of a Mac, which no test has: where it is refused, and that nothing is float64 on it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ajet.core.config import load_config
from ajet.core.config.precision import describe_precision
from ajet.core.errors import ConfigError, ModelError
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.load import load_model, resolve_device
from ajet.core.update.layouts.layout import concat_to_device
from ajet.core.update.update_metrics import SamplerGap
from ajet.engines.sampling import Sampler

MPS = torch.device("mps:0")
DEMO = "tutorial/example_math_agent/demo.yaml"


class OnMps(Tensor):
    """A tensor that says it is on MPS; `inner` has its values, on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor):
        if inner.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        self = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=MPS)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside of FakeMps")


class FakeMps(TorchDispatchMode):
    """Computes on the CPU what tensors on MPS are asked for, and refuses float64 as MPS does. It
    knows no gradients, and not which operations the real device has."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        named: dict[str, Any] = dict(kwargs or {})
        on_mps = any(issubclass(each, OnMps) for each in types)
        if named.get("device") is not None:
            on_mps, named["device"] = torch.device(named["device"]) == MPS, "cpu"
        found = func(*tree_map(_inner, args), **tree_map(_inner, named))
        return tree_map(_on_mps, found) if on_mps else found


def _inner(value):
    return value.inner if isinstance(value, OnMps) else value


def _on_mps(value):
    return OnMps(value) if isinstance(value, Tensor) else value


def test_the_fake_has_no_float64():
    with FakeMps(), pytest.raises(TypeError, match="no float64"):
        torch.ones(3).to(MPS).double()


def test_it_is_taken_where_torch_has_it(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("mps") == torch.device("mps")
    assert resolve_device("auto").type != "mps"
    with pytest.raises(ModelError, match="mps has none; use float32, or device cpu"):
        load_model("embedded:math", dtype="float64", device="mps", with_weights=False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ModelError, match="no GPU of a Mac on this machine; use auto or cpu"):
        resolve_device("mps")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("ajet.model.dtype=float64", "ajet.model.dtype.*MPS has no float64"),
        ("ajet.backbone=verl", "ajet.model.device.*trains on CPUs and CUDA GPUs"),
        ("ajet.rollout.name=vllm", "ajet.rollout.name.*servers compute on CPUs and CUDA GPUs"),
    ],
)
def test_what_it_cannot_do_is_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        load_config(DEMO, ["ajet.model.device=mps", given])


def test_a_run_computes_in_float32_and_says_where():
    said = describe_precision(load_config(DEMO, ["ajet.model.device=mps"]), gpu=False)
    assert "compute in float32" in said and said.endswith("(ajet.model.dtype is auto, on MPS)")


def test_tokens_are_drawn_from_its_logits_as_from_a_cpus():
    """Greedy, cut and scaled rows, more tokens than a block of sums."""
    params = [
        SamplingParams(seed=1),
        SamplingParams(seed=2, temperature=0.0),
        SamplingParams(seed=3, temperature=0.7, top_p=0.9, top_k=5),
    ]
    logits = torch.randn(3, 700, generator=torch.Generator().manual_seed(0))
    drawn = Sampler(params, torch.device("cpu"), np.arange(3)).draw(logits)
    with FakeMps():
        assert torch.equal(Sampler(params, MPS, np.arange(3)).draw(logits.to(MPS)), drawn)


def test_numbers_of_an_update_go_there_in_float32_and_are_compared_in_float64_elsewhere():
    numbers = [np.array([0.5, 2.0]), np.array([0.25])]
    log_ratio = torch.tensor([0.25, -0.5, 0.0])
    on_cpu, on_mps = SamplerGap(), SamplerGap()
    on_cpu.add(log_ratio)
    with FakeMps():
        values = concat_to_device(numbers, MPS)
        on_mps.add(log_ratio.to(MPS))
        assert (values.device, values.dtype) == (MPS, torch.float32)
        assert values.to("cpu").tolist() == [0.5, 2.0, 0.25]
    assert on_mps == on_cpu
    assert concat_to_device(numbers, torch.device("cpu")).dtype == torch.float64
