"""AdamW with a learning-rate schedule, and a guard against non-finite gradients. Weights narrower
than float32 are trained through float32 masters: bfloat16 would lose an update of 1e-6 of a weight.
Only matrices have weight decay, not biases, norms and embeddings. The state of a sharded weight is
sharded in the same way.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ajet.core.checkpoint.checkpoint import WEIGHT_PREFIX
from ajet.core.model.allocator import is_large
from ajet.core.model.precision import to_wide_dtype, wide_dtype
from ajet.core.model.vision import visions_in
from ajet.core.ranks.shards import copy_tensor, full_tensor, is_sharded, reshard, sum_replicas
from ajet.core.update.settings import OptimizerSettings
from ajet.core.update.weights import check_fits, load_weights, trainable

STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")
ADDED = 1 << 18
"""The values of a narrow gradient that are added to its master at a time on a CPU, where torch
first makes a widened copy of them; CUDA widens each value as it adds."""


class ModelState(NamedTuple):
    """A model's part of a checkpoint: tensors by name, and a JSON state."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of one `ModelOptimizer.step`."""

    grad_norm: float  # before clipping
    lr: float
    stepped: bool


class ModelOptimizer:
    """Trains the model's trainable weights, or only `weights`."""

    def __init__(
        self,
        model: nn.Module,
        settings: OptimizerSettings,
        weights: Mapping[str, nn.Parameter] | None = None,
        prefixes: tuple[str, str] = (WEIGHT_PREFIX, "optimizer."),
    ) -> None:
        """`prefixes` precede the names of the weights and of their state in a checkpoint."""
        self._weight_prefix, self._state_prefix = prefixes
        self._settings = settings
        self._weights = dict(trainable(model) if weights is None else weights)
        self._masters: dict[str, Tensor] = {}
        for name, weight in self._weights.items():
            if weight.dtype == wide_dtype(weight.dtype):
                self._masters[name] = weight  # a weight of float32 or wider is its own master
            else:
                self._masters[name] = to_wide_dtype(weight.detach())
                weight.register_post_accumulate_grad_hook(_add_to(self._masters[name]))
        # One kernel for all operations takes a fifth of the time. It rounds differently, so small
        # models keep the plain steps with which their recorded figures were measured.
        self._is_fused = is_large(model)
        self._towers = [vision for vision in visions_in(model) if vision.is_trained]
        # Where the model is sharded, a weight that is not has a replica on each rank. torch cannot
        # compute with both kinds in one list.
        sharded = [name for name, weight in self._weights.items() if is_sharded(weight)]
        whole = [name for name, weight in self._weights.items() if not is_sharded(weight)]
        self._kinds = (sharded, whole) if sharded else (whole, [])
        # By id: a tied output layer is the embedding's weight, and has no decay either.
        no_decay_ids = {
            id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
        }
        decayed = {n for n, p in self._weights.items() if p.ndim >= 2 and id(p) not in no_decay_ids}
        groups = [
            {
                "params": [self._masters[n] for n in kind if (n in decayed) == decays],
                "weight_decay": settings.weight_decay if decays else 0.0,
            }
            for kind in self._kinds
            for decays in (True, False)
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

    def step(self, adam: OptimizerSettings | None = None) -> StepOutcome:
        """Makes one optimizer step with the gradients that backward() left in the weights.

        `adam` replaces the settings for this step, without a schedule, and its weight decay is that
        of all weights, as in torch's AdamW."""
        for tower in self._towers:
            tower.backward()
        settings = adam or self._settings
        lr = settings.lr if adam else lr_at(self.num_steps, settings)
        if adam:
            for group in self._adamw.param_groups:
                group |= {"betas": adam.betas, "eps": adam.eps, "weight_decay": adam.weight_decay}
        # A weight without gradient gets 0, so that it has the same state as the others, on every
        # rank and after a resume.
        for master in self._masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        kinds = [
            [grad for name in names if (grad := self._masters[name].grad) is not None]
            for names in self._kinds
        ]
        sum_replicas(kinds[1])
        # Of the whole gradient, also where it is sharded: every rank makes the same decision.
        norms = [float(full_tensor(torch.nn.utils.get_total_norm(grads))) for grads in kinds]
        grad_norm = math.hypot(*filter(None, norms))
        stepped = math.isfinite(grad_norm)  # else the step is skipped and counted
        if stepped:
            limit = settings.grad_clip
            if limit and grad_norm > limit:
                for grads in filter(None, kinds):
                    torch._foreach_mul_(grads, limit / grad_norm)  # pyright: ignore[reportPrivateImportUsage]
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
        for tower in self._towers:
            tower.forget()

    @torch.no_grad()
    def _copy_masters_to_weights(self) -> None:
        masters = {n: m for n, m in self._masters.items() if m is not self._weights[n]}
        if masters:
            weights: list[Tensor] = [self._weights[name] for name in masters]
            torch._foreach_copy_(weights, list(masters.values()))  # pyright: ignore[reportPrivateImportUsage]

    def checkpoint(self) -> ModelState:
        """Returns the weights and their state for a checkpoint: not copied, and sharded where the
        model is."""
        counters = {"num_steps": self.num_steps, "num_skipped": self.num_skipped}
        return ModelState(self._named(self.tensors()), counters)

    def checkpoint_template(self) -> dict[str, Tensor]:
        """Returns tensors with the names, shapes and shards of a checkpoint's; their content is
        arbitrary."""
        return self._named(self.template())

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restores the weights and their state from a checkpoint."""
        load_weights(self._weights, tensors, self._weight_prefix)
        # A checkpoint of sharded weights has no masters, since those weights are float32. One that
        # has them overwrites these entries.
        state_tensors = {f"{n}.master": tensors[f"{self._weight_prefix}{n}"] for n in self._weights}
        state_tensors |= {
            name.removeprefix(self._state_prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(self._state_prefix)
        }
        self.load(state_tensors, int(state["num_steps"]), int(state["num_skipped"]))

    def _named(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights = {f"{self._weight_prefix}{n}": p.detach() for n, p in self._weights.items()}
        return weights | {f"{self._state_prefix}{n}": t for n, t in state.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Returns AdamW's state by weight name, and the masters of narrower weights."""
        out: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            state = self._adamw.state.get(master, {})
            out |= {f"{name}.{key}": state[key] for key in STATE_KEYS if key in state}
            if master is not self._weights[name]:
                out[f"{name}.master"] = master.detach()
        return out

    def template(self) -> dict[str, Tensor]:
        """Returns tensors with the names, shapes and shards that `tensors` has after a step.

        A tensor as large as a weight is that weight itself, so no memory is allocated."""
        out: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            out |= {f"{name}.{key}": master.detach() for key in STATE_KEYS}
            out[f"{name}.step"] = self._zero_step(master)
            if master is not self._weights[name]:
                out[f"{name}.master"] = master.detach()
        return out

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], num_steps: int, num_skipped: int) -> None:
        """Restores the state; `tensors` has a master for each weight, also where it is the weight
        itself. Raises `WeightMismatch` if a tensor is missing or has another shape."""
        for name, master in self._masters.items():
            check_fits(f"{name}.master", tensors[f"{name}.master"], master)
            copy_tensor(master, tensors[f"{name}.master"])
            self._adamw.state.pop(master, None)
            if num_steps:  # before its first step AdamW has no state
                moments = {key: torch.zeros_like(master) for key in ("exp_avg", "exp_avg_sq")}
                state = moments | {"step": self._zero_step(master)}
                for key in STATE_KEYS:
                    saved = tensors.get(f"{name}.{key}")
                    check_fits(f"{name}.{key}", saved, state[key])
                    copy_tensor(state[key], tensors[f"{name}.{key}"])
                self._adamw.state[master] = state
        self.num_steps, self.num_skipped = num_steps, num_skipped

    def _zero_step(self, master: Tensor) -> Tensor:
        """Returns a step count of 0 on the device where AdamW keeps it: the weight's if it is
        fused, the CPU if not."""
        return torch.zeros((), device=master.device if self._is_fused else "cpu")


class TrainedModel:
    """A model with its optimizer, as checkpoints save and load it."""

    model: nn.Module
    optimizer: ModelOptimizer

    def state_dict(self) -> ModelState:
        reshard(self.model)
        return self.optimizer.checkpoint()

    def template(self) -> dict[str, Tensor]:
        """Returns tensors with the names, shapes and shards of a checkpoint's; their content is
        arbitrary."""
        reshard(self.model)
        return self.optimizer.checkpoint_template()

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restores the weights and the optimizer from a checkpoint."""
        reshard(self.model)
        self.optimizer.restore(tensors, state)


def lr_at(num_steps: int, settings: OptimizerSettings) -> float:
    """Returns the learning rate of the step that follows `num_steps` steps."""
    if num_steps < settings.warmup_steps:
        return settings.lr * (num_steps + 1) / settings.warmup_steps
    if settings.lr_schedule == "constant":
        return settings.lr
    progress = (num_steps - settings.warmup_steps) / (settings.total_steps - settings.warmup_steps)
    decay = 1 - min(progress, 1.0)
    if settings.lr_schedule == "cosine":
        decay = 0.5 * (1 - math.cos(math.pi * decay))
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * decay)


def _add_to(master: Tensor) -> Callable[[Tensor], None]:
    """Returns a hook that adds a weight's gradient of one micro-batch to its master's. In bfloat16
    the sum would lose what later micro-batches add."""

    def add(weight: Tensor) -> None:
        if weight.grad is None:
            return
        if master.grad is None:
            master.grad = weight.grad.to(master.dtype)
        elif master.device.type == "cuda":
            master.grad += weight.grad
        else:
            chunks = (master.grad.view(-1).split(ADDED), weight.grad.reshape(-1).split(ADDED))
            for total, part in zip(*chunks, strict=True):
                total += part
        weight.grad = None

    return add
