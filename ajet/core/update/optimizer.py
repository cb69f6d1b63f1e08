"""AdamW with a learning-rate schedule, and a guard against non-finite gradients.

    lr   /‾‾‾‾‾‾‾‾   constant          a gradient whose norm is not finite is not applied:
        /     ‾‾\\__  linear, cosine    the step is skipped and counted

Weights of lower precision than float32 are trained through float32 masters, because bfloat16 loses
an update of 1e-6 of a weight. Their gradients are added up in the masters, one micro-batch at a
time. Only matrices have weight decay, not biases, norms and embeddings.

The state of a sharded weight is sharded in the same way; the norm is that of the whole gradient, so
every rank makes the same decision.

Not covered: other optimizers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ajet.core.model.allocator import is_large
from ajet.core.model.precision import to_wide_dtype, wide_dtype
from ajet.core.update.checkpoint import WEIGHT_PREFIX
from ajet.core.update.settings import OptimizerSettings
from ajet.core.update.shards import copy_tensor, full_tensor
from ajet.core.update.weights import check_fits, load_weights, trainable

STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")
ADDED = 1 << 18
"""The numbers of a narrow gradient that are added at a time on a CPU, where torch widens a copy of
them first. CUDA widens each as it adds."""


class ModelState(NamedTuple):
    """Holds what a checkpoint contains of a model: tensors by name, and a JSON state."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Reports one call of `ModelOptimizer.step`."""

    grad_norm: float  # before clipping
    lr: float
    stepped: bool


class ModelOptimizer:
    """Holds the optimizer state of the model's trainable weights, or of those given by name."""

    def __init__(
        self,
        model: nn.Module,
        settings: OptimizerSettings,
        weights: Mapping[str, nn.Parameter] | None = None,
        prefixes: tuple[str, str] = (WEIGHT_PREFIX, "optimizer."),
    ) -> None:
        """`prefixes` are what the names of the weights and of their state have before them in a
        checkpoint."""
        self._weight_prefix, self._state_prefix = prefixes
        self._settings = settings
        self._weights = dict(trainable(model) if weights is None else weights)
        self._masters = {n: _master(p) for n, p in self._weights.items()}
        for name, weight in self._weights.items():
            if self._masters[name] is not weight:
                weight.register_post_accumulate_grad_hook(_add_to(self._masters[name]))
        # One kernel for all operations: a fifth of the time. It rounds otherwise, so small models
        # keep the plain steps that their recorded figures were made with.
        self._is_fused = is_large(model)
        no_decay_ids = {
            id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
        }
        decayed = [n for n, p in self._weights.items() if p.ndim >= 2 and id(p) not in no_decay_ids]
        rest = [n for n in self._weights if n not in set(decayed)]
        groups = [
            {"params": [self._masters[n] for n in decayed], "weight_decay": settings.weight_decay},
            {"params": [self._masters[n] for n in rest], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [g for g in groups if g["params"]],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            fused=self._is_fused,
        )
        self.num_steps = 0
        self.num_skipped = 0

    def step(self) -> StepOutcome:
        """Makes one optimizer step with the gradients that backward() left in the weights."""
        lr = lr_at(self.num_steps, self._settings)
        grads = self._collect_grads()
        norm = full_tensor(torch.nn.utils.get_total_norm(grads))
        grad_norm = float(norm)
        stepped = math.isfinite(grad_norm)
        if stepped:
            self._clip(grads, grad_norm)
            for group in self._adamw.param_groups:
                group["lr"] = lr
            self._adamw.step()
            self._copy_masters_to_weights()
            self.num_steps += 1
        else:
            self.num_skipped += 1
        self.zero_grad()
        return StepOutcome(grad_norm, lr, stepped)

    def zero_grad(self) -> None:
        """Drops the gradients of all micro-batches since the last step."""
        for name, weight in self._weights.items():
            weight.grad = self._masters[name].grad = None

    def _collect_grads(self) -> list[Tensor]:
        """Returns the masters' gradients; a weight without one gets gradient 0."""
        for master in self._masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [master.grad for master in self._masters.values() if master.grad is not None]

    def _clip(self, grads: list[Tensor], grad_norm: float) -> None:
        limit = self._settings.grad_clip
        if limit and grad_norm > limit:
            torch._foreach_mul_(grads, limit / grad_norm)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def _copy_masters_to_weights(self) -> None:
        masters = {n: m for n, m in self._masters.items() if m is not self._weights[n]}
        if masters:
            weights: list[Tensor] = [self._weights[name] for name in masters]
            torch._foreach_copy_(weights, list(masters.values()))  # pyright: ignore[reportPrivateImportUsage]

    def checkpoint(self) -> ModelState:
        """Returns what a checkpoint holds of the model: the weights and their state, not copied;
        sharded where the model is."""
        counters = {"num_steps": self.num_steps, "num_skipped": self.num_skipped}
        return ModelState(self._named(self.tensors()), counters)

    def checkpoint_template(self) -> dict[str, Tensor]:
        """Returns tensors with the names, shapes and shards of a checkpoint's, with arbitrary
        content."""
        return self._named(self.template())

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restores the weights and their state from a checkpoint."""
        load_weights(self._weights, tensors, self._weight_prefix)
        # A checkpoint of sharded weights has no masters beside them: they are float32 themselves.
        found = {f"{n}.master": tensors[f"{self._weight_prefix}{n}"] for n in self._weights}
        found |= {
            name.removeprefix(self._state_prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(self._state_prefix)
        }
        self.load(found, int(state["num_steps"]), int(state["num_skipped"]))

    def _named(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights and this state of theirs under their names in a checkpoint."""
        weights = {f"{self._weight_prefix}{n}": p.detach() for n, p in self._weights.items()}
        return weights | {f"{self._state_prefix}{n}": t for n, t in state.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Returns AdamW's state by weight name, and float32 masters where the weights are
        narrower.
        """
        out: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            state = self._adamw.state.get(master, {})
            out |= {f"{name}.{key}": state[key] for key in STATE_KEYS if key in state}
            if master is not self._weights[name]:
                out[f"{name}.master"] = master.detach()
        return out

    def template(self) -> dict[str, Tensor]:
        """Returns tensors with the names, shapes and shards that `tensors` has after a step.

        A tensor as large as a weight is that weight itself, so no memory is allocated.
        """
        out: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            out |= {f"{name}.{key}": master.detach() for key in STATE_KEYS}
            out[f"{name}.step"] = self._zero_step(master)
            if master is not self._weights[name]:
                out[f"{name}.master"] = master.detach()
        return out

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], num_steps: int, num_skipped: int) -> None:
        """Restores the state; `tensors` has a master for each weight, also where that is the
        weight itself. Raises `CheckpointError` if a tensor is missing or another one.
        """
        for name, master in self._masters.items():
            check_fits(f"{name}.master", tensors[f"{name}.master"], master)
            copy_tensor(master, tensors[f"{name}.master"])
            self._adamw.state.pop(master, None)
            if num_steps:  # the first step makes the state of every weight
                state = self._empty_state(master)
                for key in STATE_KEYS:
                    saved = tensors.get(f"{name}.{key}")
                    check_fits(f"{name}.{key}", saved, state[key])
                    copy_tensor(state[key], tensors[f"{name}.{key}"])
                self._adamw.state[master] = state
        self.num_steps, self.num_skipped = num_steps, num_skipped

    def _empty_state(self, master: Tensor) -> dict[str, Tensor]:
        """Returns the state that AdamW makes at its first step."""
        moments = {key: torch.zeros_like(master) for key in ("exp_avg", "exp_avg_sq")}
        return moments | {"step": self._zero_step(master)}

    def _zero_step(self, master: Tensor) -> Tensor:
        """Returns the count of no steps, where AdamW keeps it: on the weight's device if it is
        fused, else on the CPU."""
        return torch.zeros((), device=master.device if self._is_fused else "cpu")


def lr_at(num_steps: int, settings: OptimizerSettings) -> float:
    """Returns the learning rate of the step that follows `num_steps` steps."""
    if num_steps < settings.warmup_steps:
        return settings.lr * (num_steps + 1) / settings.warmup_steps
    if settings.lr_schedule == "constant":
        return settings.lr
    done = (num_steps - settings.warmup_steps) / (settings.total_steps - settings.warmup_steps)
    left = 1 - min(done, 1.0)
    if settings.lr_schedule == "cosine":
        left = 0.5 * (1 - math.cos(math.pi * left))
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * left)


def _add_to(master: Tensor) -> Callable[[Tensor], None]:
    """Returns a hook that moves a weight's gradient of one micro-batch to its master.

    Micro-batches add up in float32: in bfloat16 the sum would lose what a later one adds.
    """

    def add(weight: Tensor) -> None:
        if weight.grad is None:
            return
        if master.grad is None:
            master.grad = weight.grad.to(master.dtype)
        elif master.device.type == "cuda":
            master.grad += weight.grad
        else:
            parts = (master.grad.view(-1).split(ADDED), weight.grad.reshape(-1).split(ADDED))
            for total, part in zip(*parts, strict=True):
                total += part
        weight.grad = None

    return add


def _master(weight: nn.Parameter) -> Tensor:
    is_wide = weight.dtype == wide_dtype(weight.dtype)
    return weight if is_wide else to_wide_dtype(weight.detach())
