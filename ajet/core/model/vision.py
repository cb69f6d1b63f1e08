"""The vision tower of a multimodal model, whose text model is trained. The text model's embedding
and, where features are also added to the first layers (Qwen3-VL), these layers take an image's
features from here, so every forward pass sees images: through transformers, over flat lists, as
trees, with a cache.
"""

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from ajet.core.images.image_ids import FIRST_ID, image_spans, keys_and_places
from ajet.core.images.processor import ImageProcessor
from ajet.core.images.store import ImageStore
from ajet.core.model.decoder import decoder_layers, unwrapped

SEEING = frozenset(("gemma3", "glm4v", "llava", "qwen2_5_vl", "qwen3_vl", "smolvlm"))
"""The model types whose passes over images a test compares with transformers' own."""
TOWER = "vision_tower"
"""The name of the tower, with its projector, as a module of the text model."""
KEPT_BYTES = 1 << 28
"""The most bytes of features that are kept."""


def vision_of(model: Any) -> "Vision | None":
    """Returns the vision tower attached to a text model, if one is."""
    return getattr(unwrapped(model), "vision", None)


def visions_in(model: nn.Module) -> "list[Vision]":
    """Returns what is attached to a model, or to one inside it: one vision at most."""
    found = [vars(module).get("vision") for module in model.modules()]
    return [each for each in found if isinstance(each, Vision)]


def images_of(model: Any) -> ImageStore | None:
    """Returns the images that a model is shown, if it sees any."""
    vision = vision_of(model)
    return None if vision is None else vision.processor.store


def saved_name(whole: PreTrainedModel, name: str) -> str:
    """Returns the name under which transformers saves a weight: it renames some modules when it
    loads a checkpoint."""
    (saved,) = revert_weight_conversion(whole, {name: torch.empty(0, device="meta")})
    return saved


class Vision:
    """Gives the features and positions of images to the text model. Each image is encoded alone, so
    the bits of its features do not depend on what else is in a batch.

    A frozen tower has no gradient. One that is trained is a module of the text model. It is run
    once for each image of an optimizer step: micro-batches leave their gradients in the features,
    and `backward` takes them through the tower. Each of several ranks has a whole tower, for the
    images of its own micro-batches; the optimizer sums their gradients."""

    def __init__(self, whole: PreTrainedModel, processor: ImageProcessor) -> None:
        """`whole` is the multimodal model, of which only the vision tower is used."""
        self.processor = processor
        self.num_encoded = 0
        self.is_trained = False
        self._text = ""
        self._saved_name = cache(partial(saved_name, whole))
        self._whole: Any = getattr(whole, "model", whole)
        self.has_axes = hasattr(self._whole, "get_rope_index")
        family = sys.modules[type(self._whole).__module__]
        self._masks = getattr(family, "create_masks_for_vision_model", None)
        self.sees_both_ways = self._masks is not None
        """Whether the tokens of an image also see those of it that come later (Gemma 3)."""
        self._features: OrderedDict[int, Tensor] = OrderedDict()
        self._num_bytes = 0
        # What the tower computed since the last step, and the same as leaves, which get gradients.
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._deep_LND: Tensor | None = None  # what the layers of the present pass add
        self._is_image = torch.zeros(0, dtype=torch.bool)

    def attach(self, model: Any, *, train: bool = False) -> None:
        """Makes the text model's passes see images; `train` adds the tower to its weights."""
        base = unwrapped(model)
        base.vision = self
        self.is_trained = train
        children = self._whole.named_children()
        (self._text,) = (name for name, each in children if each is base.base_model)
        if train:
            setattr(base, TOWER, self.tower())
        embedding = base.get_input_embeddings()
        embedding.forward = partial(self._embed, embedding.forward)
        if self.sees_both_ways:
            base.base_model.register_forward_pre_hook(self._add_masks, with_kwargs=True)
        towers = getattr(self._whole.config, "vision_config", None)
        num_deep = len(getattr(towers, "deepstack_visual_indexes", ()))
        for number, layer in enumerate(decoder_layers(base.base_model)[:num_deep]):
            layer.register_forward_hook(partial(self._add_deep, number))

    def tower(self) -> nn.ModuleDict:
        """Returns the tower with its projector: all of the whole model but its text model."""
        children = self._whole.named_children()
        return nn.ModuleDict({name: each for name, each in children if name != self._text})

    def whole_name(self, name: str) -> str:
        """Returns the name that a weight of the text model, or of the tower in it, has in the
        files of the whole model."""
        prefix, _, rest = name.partition(".")
        inside = {"model": f"model.{self._text}.{rest}", TOWER: f"model.{rest}"}.get(prefix, name)
        return self._saved_name(inside)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Vision":
        if not self.is_trained:
            return self  # a copy of the policy sees with the same tower
        memo[id(self)] = other = copy.copy(self)
        other._whole = copy.deepcopy(self._whole, memo)
        other._features, other._pending, other._num_bytes = OrderedDict(), [], 0
        return other

    def positions(self, ids_T: ArrayLike) -> NDArray[np.int64]:
        """Returns the positions ``[3, T]`` of a sequence whose positions have three axes (M-RoPE,
        arXiv 2409.12191). An image of h x w features takes max(h, w) positions:

            tokens     a  b  I00 I01 I02 I10 I11 I12  c
            time       0  1  2   2   2   2   2   2    5
            height     0  1  2   2   2   3   3   3    5
            width      0  1  2   3   4   2   3   4    5"""
        ids = np.asarray(ids_T, np.int64)
        # As if all were text; then each image moves itself and all after it, from left to right, so
        # that `first` is final when its image is reached.
        positions_3T = np.tile(np.arange(len(ids)), (3, 1))
        keys, places = keys_and_places(ids)
        for start in np.flatnonzero((ids >= FIRST_ID) & (places == 0)):
            expansion = self.processor.expansion(int(keys[start]))
            assert expansion.grid is not None
            height, width = expansion.grid
            first, stop = positions_3T[0, start], start + expansion.num_tokens
            rows, columns = np.divmod(np.arange(expansion.num_tokens), width)
            positions_3T[:, start:stop] = first + np.stack([0 * rows, rows, columns])
            positions_3T[:, stop:] += max(height, width) - expansion.num_tokens
        return positions_3T

    def forget(self) -> None:
        """Forgets features, which depend on the tower's weights."""
        self._features.clear()
        self._pending.clear()
        self._num_bytes = 0

    def backward(self) -> None:
        """Takes the gradients of the features through the tower, to its weights."""
        pairs = [(out, leaf.grad) for out, leaf in self._pending if leaf.grad is not None]
        self._pending.clear()
        if pairs:
            outputs, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(outputs, gradients)

    def features(self, key: int) -> Tensor:
        """Returns the features ``[1 + L, tokens, hidden]`` of an image: those of the embedding,
        and those added after each of the first L layers."""
        kept = self._features.get(key)
        with_graph = self.is_trained and torch.is_grad_enabled()
        if kept is None or with_graph > kept.requires_grad:
            if kept is not None:
                self._num_bytes -= kept.nbytes
            self._features[key] = self._encode(key, with_graph)
            self._num_bytes += self._features[key].nbytes
            while self._num_bytes > KEPT_BYTES and len(self._features) > 1:
                self._num_bytes -= self._features.popitem(last=False)[1].nbytes
        self._features.move_to_end(key)
        return self._features[key]

    def _encode(self, key: int, with_graph: bool) -> Tensor:
        self.num_encoded += 1
        # With several ranks the text model's weights are shards, of another dtype.
        tower = next(self.tower().parameters())
        inputs = {
            name: value.to(tower.device, tower.dtype if value.is_floating_point() else None)
            for name, value in self.processor.inputs(key).items()
        }
        # Without a graph, features serve every pass and micro-batch until they are evicted.
        with torch.set_grad_enabled(with_graph):
            out = self._whole.get_image_features(**inputs, return_dict=True)
            layers = [out.pooler_output, *(getattr(out, "deepstack_features", None) or ())]
            # One image, of one or several tiles.
            features = torch.stack([torch.cat(list(each)).flatten(0, -2) for each in layers])
        if not with_graph:
            return features
        leaf = features.detach().requires_grad_()
        self._pending.append((features, leaf))
        return leaf

    def _embed(self, embed: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        """Embeds tokens by `embed`, and images by their features."""
        is_image = ids >= FIRST_ID
        # Those of the pass before must not reach the layers of this one.
        self._deep_LND = None
        if not bool(is_image.any()):
            return embed(ids)
        # Any id of the vocabulary will do for images: their rows are replaced and have no
        # gradient.
        embedded = embed(ids.masked_fill(is_image, 0))
        keys, places = keys_and_places(ids[is_image].cpu().numpy())
        features = torch.empty(0)
        for key in np.unique(keys):
            of_image = self.features(int(key)).to(embedded)
            if not len(features):
                features = embedded.new_empty(len(of_image), len(keys), embedded.shape[-1])
            features[:, keys == key] = of_image[:, places[keys == key]]
        self._is_image, self._deep_LND = is_image.unsqueeze(-1), features[1:]
        return embedded.masked_scatter(self._is_image, features[0])

    def _add_masks(
        self, model: nn.Module, args: Any, inputs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Gives a pass over padded rows the masks in which images see themselves both ways."""
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        is_flat = mask is not None and mask.ndim == 4  # there `attend` sees to it
        if is_flat or not bool((ids >= FIRST_ID).any()):
            return None
        numbers = np.full(tuple(ids.shape), -1)
        for row, number_row in zip(ids.cpu().numpy(), numbers, strict=True):
            for number, (start, stop) in enumerate(image_spans(row)):
                number_row[start:stop] = number
        weight = next(model.parameters())
        assert self._masks is not None
        masks = self._masks(
            config=model.config,
            inputs_embeds=weight.new_empty(*ids.shape, 1),  # for its shape and dtype
            attention_mask=mask,
            cache=None,  # images are never fed to a cache that has tokens
            position_ids=inputs.get("position_ids"),
            block_sequence_ids=torch.from_numpy(numbers).to(ids.device),
        )
        return args, inputs | {"attention_mask": masks}

    def _add_deep(self, number: int, layer: nn.Module, args: Any, hidden: Tensor) -> Tensor:
        """Adds the features of the layer to its output."""
        if self._deep_LND is None:
            return hidden
        zeros = torch.zeros_like(hidden)
        return hidden + zeros.masked_scatter(self._is_image, self._deep_LND[number])
