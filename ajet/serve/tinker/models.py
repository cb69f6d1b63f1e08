"""Models that clients train: adapters over one base, or copies of all its weights. Each model has
separate modules, gradients and optimizer, so what one client does cannot change a bit of another's
weights. All methods of trained models run in one thread, one after another.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ajet.core.checkpoint.checkpoint import (
    WEIGHT_PREFIX,
    prepare_checkpoint,
    read_checkpoint,
    read_state,
    read_weights,
)
from ajet.core.checkpoint.manifest import find_checkpoint, naming_checkpoint
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import Row, concat_to_device
from ajet.core.update.lora import with_lora
from ajet.core.update.many_adapters import sharing_weights
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, OptimizerSettings, UpdateSettings
from ajet.core.update.weights import load_weights, trainable
from ajet.core.workflow.gateway.request import RequestError
from ajet.serve.tinker.losses import TinkerLoss, TokenInputs, find_loss, settings_of
from ajet.serve.tinker.messages import AdamParams, LoraConfig
from ajet.serve.tinker.store import StepRecord
from ajet.serve.tinker.wire import Datum, LossRequest, LossResult

ALPHA = 32.0
"""An adapter is scaled by ALPHA / rank, as Tinker's are."""


@dataclass(frozen=True)
class BaseModel:
    """The model that is served; its weights never change. `max_context` is in tokens."""

    name: str
    model: Any
    settings: UpdateSettings
    max_context: int
    # Drawing an adapter's first weights seeds torch's global generator for a moment.
    _is_drawing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def vocab_size(self) -> int:
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def has_tied_head(self) -> bool:
        head = self.model.get_output_embeddings()
        return head is not None and head.weight is self.model.get_input_embeddings().weight

    def lora_settings(self, lora: LoraConfig, seed: int) -> LoraSettings:
        """Returns the adapter's settings; `seed` is for a request without one. Linear layers that
        are neither of attention nor the output layer count as MLP. A tied output layer gets no
        adapter: it is the embedding."""
        head = self.model.get_output_embeddings()
        targets = []
        for name, module in self.model.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            if module is head:
                is_trained = lora.train_unembed and not self.has_tied_head
            else:
                is_trained = lora.train_attn if "attn" in name.lower() else lora.train_mlp
            if is_trained:
                targets.append(name)
        if not targets:
            raise RequestError("lora_config: no layer of this model is left to train")
        seed = seed if lora.seed is None else lora.seed
        return LoraSettings(lora.rank, ALPHA, tuple(targets), seed)

    def num_trained(self, lora: LoraSettings | None) -> int:
        """Returns the number of weights that are trained: an adapter's, or with None all."""
        if lora is None:
            return sum(weight.numel() for weight in self.model.parameters())
        shapes = [self.model.get_submodule(name).weight.shape for name in lora.targets]
        return lora.rank * sum(map(sum, shapes))

    def policy(self, lora: LoraSettings | None) -> Policy:
        """Returns a policy with new modules: an adapter over the base's weights, or over a copy of
        them where all are trained."""
        model = self._copy() if lora is None else sharing_weights(self.model)
        with self._is_drawing:
            return Policy(model, replace(self.settings, lora=lora))

    def modules(self, checkpoint: Path | None) -> nn.Module:
        """Returns new modules with the weights of a checkpoint of this base, or the base's."""
        if checkpoint is None:
            return sharing_weights(self.model)
        if not checkpoint.is_dir():
            raise RequestError(
                f"{checkpoint.parent.name}: these weights are gone: only the latest that were "
                "saved without a name are kept, and a checkpoint may be deleted or overwritten"
            )
        lora = saved_lora(read_state(checkpoint, is_checked=True))
        if lora is None:
            model = wrapped = self._copy()
        else:
            model = sharing_weights(self.model)
            with self._is_drawing:
                wrapped = with_lora(model, lora)  # puts the adapter into `model`
        load_weights(trainable(wrapped), read_weights(checkpoint))
        return model

    def _copy(self) -> nn.Module:
        return copy.deepcopy(self.model).requires_grad_(True)

    def check_tokens(self, tokens_N: NDArray[np.integer], what: str) -> None:
        """Refuses an empty or long sequence, and ids that are no tokens."""
        if not 0 < len(tokens_N) <= self.max_context:
            raise RequestError(
                f"{what}: {len(tokens_N)} tokens; 1 to {self.max_context} are served"
            )
        self.check_ids(tokens_N, what)

    def check_ids(self, ids: NDArray[np.integer], what: str) -> None:
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise RequestError(f"{what}: token ids must be in 0 .. {self.vocab_size - 1}")


class TrainedModel:
    """A client's model with its optimizer."""

    def __init__(self, base: BaseModel, model_id: str, lora: LoraSettings | None) -> None:
        self.base, self.model_id, self.lora = base, model_id, lora
        self.policy = base.policy(lora)
        self.num_changes = 0
        """Counts steps and loads; a checkpoint has it as its number."""
        self.record: StepRecord | None = None
        self._failure: str | None = None
        """Why the gradients since the last step are incomplete."""

    def forward_backward(
        self, read: Callable[[], LossRequest], *, forward_only: bool
    ) -> LossResult:
        """Adds the gradients of a request, unless it is a forward pass alone. `read` is called here
        because a request that cannot be read has failed like any other."""
        try:
            request = read()
            loss = find_loss(request.loss_fn)
            config = settings_of(request.loss_fn, request.config)
            data = [
                self._checked(datum, loss, f"datum {number}")
                for number, datum in enumerate(request.data)
            ]
            if not data:
                raise RequestError("forward_backward: there is no data")
            result = self._compute(data, loss, config, forward_only)
        except Exception as error:
            # A step with the gradients of the other chunks would train on something else.
            if not forward_only:
                self._failure = str(error)
                self._drop_gradients()
            raise
        if self.record is not None and not forward_only:
            self.record.add(request.loss_fn, config, data, result)
        return result

    def _drop_gradients(self) -> None:
        self.policy.optimizer.zero_grad()
        if self.record is not None:
            self.record.clear()

    def _compute(
        self,
        data: Sequence[Datum],
        loss: TinkerLoss,
        config: Mapping[str, float],
        forward_only: bool,
    ) -> LossResult:
        policy = self.policy
        logprobs: dict[int, NDArray[np.float32]] = {}
        total = 0.0

        def loss_of(rows: Sequence[Row]) -> Tensor:
            nonlocal total
            logprobs_M = policy.scores(rows).logprobs_M
            batch = [data[row.sample_index] for row in rows]
            sizes = [datum.targets.size for datum in batch]
            for row, datum, part in zip(rows, batch, logprobs_M.detach().split(sizes), strict=True):
                logprobs[row.sample_index] = part.float().cpu().numpy().reshape(datum.targets.shape)

            def gather(name: str) -> Tensor:
                arrays = (datum.inputs[name].reshape(-1) for datum in batch)
                return concat_to_device(arrays, policy.device).to(logprobs_M.dtype)

            numbers = torch.tensor(sizes, device=policy.device)
            datum_M = torch.arange(len(batch), device=policy.device).repeat_interleave(numbers)
            tensors = {name: gather(name) for name in loss.inputs}
            loss_M = loss.of_tokens(TokenInputs(logprobs_M, datum_M, tensors, config))
            value = loss_M.sum()
            total += float(value.detach())
            return value

        # Rows with a common prefix meet in a micro-batch, where the tree computes it once.
        rows = [_row(datum, number) for number, datum in enumerate(data)]
        budget = policy.settings.max_tokens_per_micro_batch
        for micro_batch in policy.layout.split(rows, budget):
            if forward_only:
                with torch.no_grad():
                    loss_of(micro_batch)
            else:
                policy.accumulate(micro_batch, loss_of)
        return LossResult([logprobs[number] for number in range(len(data))], total)

    def _checked(self, datum: Datum, loss: TinkerLoss, what: str) -> Datum:
        """Returns the datum with all tensors of the loss; refuses what the loss cannot read."""
        self.base.check_tokens(datum.tokens_N, what)
        for name, values in datum.inputs.items():
            if name != "target_tokens" and name not in loss.inputs:
                raise RequestError(f"{what}: the loss does not read {name}: leave it out")
            if not np.isfinite(values).all():
                raise RequestError(f"{what}: {name} has a value that is not finite")
        targets = datum.inputs.get("target_tokens")
        if targets is None or targets.dtype != np.int64:
            raise RequestError(f"{what}: target_tokens must be there, as integers")
        if targets.ndim not in (1, 2) or len(targets) != len(datum.tokens_N) or not targets.size:
            raise RequestError(
                f"{what}: target_tokens of shape {list(targets.shape)} for "
                f"{len(datum.tokens_N)} tokens: [N] or [N, K] is expected"
            )
        self.base.check_ids(targets, f"{what}: target_tokens")
        inputs = {"target_tokens": targets}
        for name, default in loss.inputs.items():
            values = datum.inputs.get(name)
            if values is None and default is None:
                raise RequestError(f"{what}: {name} is missing")
            if values is None:
                values = np.full(targets.shape, default, np.float32)
            if values.shape != targets.shape:
                raise RequestError(
                    f"{what}: {name} has shape {list(values.shape)}, target_tokens "
                    f"{list(targets.shape)}"
                )
            inputs[name] = values
        return Datum(datum.tokens_N, inputs)

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        """Makes a step with the gradients since the last one, and returns its metrics."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._drop_gradients()
            raise RequestError(
                "optim_step: no step was made, because a forward_backward since the last one "
                f"failed: {failure}"
            )
        settings = OptimizerSettings(
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
            grad_clip=max(adam.grad_clip_norm, 0.0),
        )
        outcome = self.policy.step(settings)
        if not outcome.stepped:
            self._drop_gradients()
            raise RequestError(
                "optim_step: no step was made, and the gradients were dropped: their norm is "
                f"{outcome.grad_norm}"
            )
        self.num_changes += 1
        if self.record is not None:
            numbers = {"update/grad_norm": outcome.grad_norm, "update/lr": adam.learning_rate}
            self.record.step(numbers)
        return {"grad_norm": outcome.grad_norm}

    def save(self, folder: Path, **more: Any) -> Path:
        """Writes weights and optimizer as a checkpoint below `folder`, with `more` (JSON) in its
        state, and returns its path. Of one folder, the latest two are kept."""
        tensors, state = self.policy.state_dict()
        return self._save(folder, tensors, {"optimizer": state, **more})

    def save_weights(self, folder: Path, **more: Any) -> Path:
        """Writes a checkpoint as `save` does, without the optimizer."""
        weights = {f"{WEIGHT_PREFIX}{n}": p for n, p in self.policy.trainable().items()}
        return self._save(folder, weights, more)

    def _save(self, folder: Path, tensors: Mapping[str, Tensor], more: dict[str, Any]) -> Path:
        adapter = {"rank": self.lora.rank, "targets": self.lora.targets} if self.lora else None
        about = {"base_model": self.base.name, "lora": adapter}
        write = prepare_checkpoint(folder, self.num_changes, tensors, about | more)
        return write()

    def load(self, folder: Path, *, with_optimizer: bool) -> None:
        """Reads what `save` wrote. Without its optimizer, a new one begins."""
        checkpoint = read_checkpoint(find_checkpoint(folder))
        tensors = checkpoint.tensors
        if not with_optimizer:
            tensors = {n: t for n, t in tensors.items() if n.startswith(WEIGHT_PREFIX)}
            state = {"num_steps": 0, "num_skipped": 0}
        elif (state := checkpoint.state.get("optimizer")) is None:
            raise RequestError("this checkpoint has no optimizer: it was saved to sample with")
        with naming_checkpoint(checkpoint.path):
            self.policy.load_state_dict(tensors, state)
        self._drop_gradients()
        self._failure = None
        # Later checkpoints have larger numbers, also in a folder that this one came from.
        self.num_changes = 1 + max(self.num_changes, checkpoint.step)


def saved_lora(state: Mapping[str, Any]) -> LoraSettings | None:
    """Returns the settings of the adapter that a checkpoint with this state holds; None if it has
    all weights."""
    adapter = state["lora"]
    if adapter is None:
        return None
    return LoraSettings(adapter["rank"], ALPHA, tuple(adapter["targets"]))


def prompt_row(prompt_ids: Sequence[int]) -> Row:
    """Returns the row of a prompt whose tokens but the first are targets."""
    ids = np.array(prompt_ids, np.int64)
    return _row(Datum(ids[:-1], {"target_tokens": ids[1:]}), 0)


def _row(datum: Datum, number: int) -> Row:
    """Returns the row of a datum: at each position, its target or its K targets."""
    num_tokens = len(datum.tokens_N)
    targets = datum.targets.reshape(num_tokens, -1)
    # The sample behind the row: the tokens and what the last one should be followed by.
    ids = np.append(datum.tokens_N, targets[-1, 0])
    zeros = np.zeros(num_tokens + 1, np.float32)
    mask = np.arange(num_tokens + 1) > 0
    sample = TrainingSample(f"datum {number}", "", ids, mask, zeros, zeros, (), 0, 0)
    positions = np.repeat(np.arange(num_tokens), targets.shape[1])
    return Row(sample, number, datum.tokens_N, positions, targets.reshape(-1))
