"""The experts that a mixture-of-experts model chooses for each token: read in the engine's passes,
replayed in the trainer's (rollout routing replay, arXiv 2510.11370).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.model.decoder import unwrapped
from ajet.core.model.precision import float64_device
from ajet.core.model.routes import Routes, route_dtype, unknown


@dataclass
class RouterLoad:
    """Sums over the tokens of passes, for each layer with experts.

    tokens_LE         the number of tokens that an expert computes
    probabilities_LE  the sum of the softmax of the router's logits
    num_changed       tokens whose experts, in one layer, are not those the router would choose
    """

    tokens_LE: Tensor
    probabilities_LE: Tensor
    num_changed: Tensor

    @classmethod
    def merge(cls, loads: "Sequence[RouterLoad]") -> "RouterLoad":
        columns = zip(
            *((x.tokens_LE, x.probabilities_LE, x.num_changed) for x in loads), strict=True
        )
        return cls(*(torch.stack([t.cpu() for t in column]).sum(0) for column in columns))

    def result(self) -> dict[str, float]:
        """Returns metrics, means over layers; the first two are 1 where all experts are as busy.

        router_balance   the load of the busiest expert over the mean load
        router_aux_loss  num_experts · Σ_i f_i P_i of the shares of tokens f and the mean
                         probabilities P (Switch Transformer, arXiv 2101.03961, equation 4)
        router_changed   the share of tokens whose experts the trainer would not have chosen
        """
        shares_LE = self.tokens_LE / self.tokens_LE.sum(1, keepdim=True)
        means_LE = self.probabilities_LE / self.probabilities_LE.sum(1, keepdim=True)
        num_experts, num_tokens = shares_LE.shape[1], self.probabilities_LE.sum()
        return {
            "router_balance": float((num_experts * shares_LE.max(1).values).mean()),
            "router_aux_loss": float((num_experts * (shares_LE * means_LE).sum(1)).mean()),
            "router_changed": float(self.num_changed / num_tokens),
        }


class Routers:
    """The routers of `model`, in the order of its layers.

    Every router of transformers ends in one `topk` over its scores, and computes the experts'
    weights from what that returns. So there experts are replayed, whatever the family: it returns
    the recorded ones, with the trainer's own scores of them, and the gradient reaches the router.

    All that compute with the model share one object (`of`). Each pass starts with `begin`. What it
    was begun with holds until the next one, because the backward pass may compute layers again."""

    def __init__(self, model: nn.Module) -> None:
        routers: dict[str, Any] = {
            name: module
            for name, module in model.named_modules()
            if type(module).__name__.endswith("Router")
        }
        self.num_layers, self.num_experts, self.top_k = len(routers), 0, 0
        self.layers = [int(name.partition("layers.")[2].partition(".")[0]) for name in routers]
        self._given_NLk: Tensor | None = None
        self._load: RouterLoad | None = None
        self._chosen: list[Tensor] = []
        for layer, module in enumerate(routers.values()):
            self.num_experts = getattr(module, "num_experts", 0) or module.config.num_experts
            self.top_k = getattr(module, "top_k", 0) or module.config.top_k_experts
            module.forward = _RoutedForward(self, layer, module.forward)
        self.dtype = route_dtype(self.num_experts)

    @staticmethod
    def of(model: nn.Module) -> "Routers":
        """Returns the routers of a model, which peft may have wrapped. Raises ConfigError if it has
        none."""
        base: Any = unwrapped(model)
        if "ajet_routers" not in base.__dict__:
            base.__dict__["ajet_routers"] = Routers(base)
        routers: Routers = base.__dict__["ajet_routers"]
        if not routers.num_layers:
            raise ConfigError(
                "ajet.rollout.routing_replay: the model, of type "
                f"{base.config.model_type!r}, has no experts to replay; leave it false",
                code=Code.MODEL_UNSUPPORTED,
            )
        return routers

    def begin(self, given_NLk: Tensor | None = None, load: RouterLoad | None = None) -> None:
        """Begins a pass over N tokens: with these experts, or with those that the routers choose.
        `load` counts them, until `end`."""
        self._given_NLk, self._load, self._chosen = given_NLk, load, []

    def end(self) -> Tensor:
        """Returns the experts ``[N, layers, k]`` of the pass."""
        chosen_NLk, self._load, self._chosen = torch.stack(self._chosen, dim=1), None, []
        return chosen_NLk

    def select_layers(self, routes: Routes) -> Routes:
        """Returns the experts of layers that have a router; servers send those of all layers."""
        has_all = routes.shape[1] > self.num_layers and routes.shape[1] > self.layers[-1]
        return routes[:, self.layers] if has_all else routes

    def compact(self, routes_NLk: Tensor) -> Routes:
        return routes_NLk.cpu().numpy().astype(self.dtype)

    def new_load(self, device: torch.device) -> RouterLoad:
        shape = (self.num_layers, self.num_experts)
        has_float64 = float64_device(device) == device
        dtype = torch.float64 if has_float64 else torch.float32
        tokens_LE, probabilities_LE = torch.zeros(2, *shape, dtype=dtype, device=device)
        return RouterLoad(tokens_LE, probabilities_LE, tokens_LE.new_zeros(()))

    def choose(self, layer: int, scores_NE: Tensor, own: Any) -> Any:
        """Returns the scores and experts of this pass, as `topk` does; `own` are the router's."""
        own_Nk = own.indices
        if self._given_NLk is None:
            self._chosen.append(own_Nk)
            return own
        given_Nk = self._given_NLk[:, layer].to(own_Nk)
        # The last token of a reply, which was never fed, and padding have none.
        given_Nk = torch.where(given_Nk == unknown(self.dtype), own_Nk, given_Nk)
        self._chosen.append(given_Nk)
        if self._load is not None:
            # As sets: an engine may list the same experts in another order.
            is_same_N = (own_Nk.sort(-1).values == given_Nk.sort(-1).values).all(-1)
            self._load.num_changed += (~is_same_N).sum()
        return torch.return_types.topk((scores_NE.gather(-1, given_Nk), given_Nk))

    def count(self, layer: int, logits_NE: Tensor) -> None:
        """Adds a layer's pass to the load."""
        if self._load is not None:
            experts = self._chosen[layer].reshape(-1)
            load = self._load
            ones = torch.ones_like(experts, dtype=load.tokens_LE.dtype)
            load.tokens_LE[layer].index_add_(0, experts, ones)
            load.probabilities_LE[layer] += logits_NE.detach().to(ones).softmax(-1).sum(0)


class _RoutedForward:
    """A router's `forward`, whose `topk` asks the `Routers`."""

    def __init__(self, routers: Routers, layer: int, forward: Callable[..., Any]) -> None:
        self._routers, self._layer, self._forward = routers, layer, forward

    def __call__(self, *inputs: Any) -> Any:
        with _ChosenTopk(self._routers, self._layer):
            output = self._forward(*inputs)
        # In every family the first output are the logits of all experts.
        self._routers.count(self._layer, output[0])
        return output


class _ChosenTopk(TorchFunctionMode):
    """Passes the `topk` over all experts to `Routers.choose`; others, over groups of experts
    (DeepSeek-V3), are computed as they are."""

    def __init__(self, routers: Routers, layer: int) -> None:
        self._routers, self._layer = routers, layer

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result, routers = func(*args, **(kwargs or {})), self._routers
        if func not in (torch.topk, Tensor.topk):
            return result
        scores, k = args[0], result.indices.shape[-1]
        # The scores of groups have three dimensions.
        is_of_experts = scores.dim() == 2 and scores.shape[1] == routers.num_experts
        if is_of_experts and k == routers.top_k:
            return routers.choose(self._layer, scores, result)
        return result
