"""Tinker's losses written from its documentation, datum by datum, with torch alone."""

import numpy as np
import torch

from ajet.serve.tinker.wire import Datum


def loss_of(name, logprobs, inputs, config):
    """The loss of one datum, whose target log-probabilities have a gradient."""
    tensors = {key: torch.from_numpy(value).to(logprobs.dtype) for key, value in inputs.items()}
    if name == "cross_entropy":
        return (-logprobs * tensors["weights"]).sum()
    advantages, sampling_logprobs = tensors["advantages"], tensors["logprobs"]
    ratio = torch.exp(logprobs - sampling_logprobs)
    if name == "importance_sampling":
        return -(ratio * advantages).sum()
    if name == "dro":
        quadratic = (logprobs - sampling_logprobs) ** 2
        return -(logprobs * advantages - 0.5 * config["beta"] * quadratic).sum()
    low, high = config["clip_low_threshold"], config["clip_high_threshold"]
    if name == "cispo":
        return -(torch.clamp(ratio, low, high).detach() * logprobs * advantages).sum()
    if name == "gspo":
        marked = tensors["sequence_ratio_mask"] != 0
        log_ratio = (logprobs.detach() - sampling_logprobs)[marked].mean()
        ratio = torch.exp(log_ratio + logprobs - logprobs.detach())
    clipped = torch.clamp(ratio, low, high)
    return -torch.min(ratio * advantages, clipped * advantages).sum()


def logprobs_of(model, datum):
    """The log-probabilities of a datum's targets, from transformers' own forward pass."""
    logits = model(input_ids=torch.from_numpy(datum.tokens_N)[None]).logits[0]
    targets = torch.from_numpy(datum.targets.reshape(len(datum.tokens_N), -1))
    return torch.log_softmax(logits, -1).gather(1, targets).reshape(datum.targets.shape)


def sampled_data(seed=0, vocab=64):
    """Two groups with a common prompt each, of ragged replies; advantages are those of a group."""
    rng = np.random.default_rng(seed)
    data = []
    for group in range(2):
        prompt = rng.integers(0, vocab, 9 + group)
        for _ in range(4):
            reply = rng.integers(0, vocab, int(rng.integers(1, 7)))
            ids = np.concatenate((prompt, reply))
            is_reply = np.arange(len(ids) - 1) >= len(prompt) - 1
            inputs = {
                "target_tokens": ids[1:],
                "logprobs": (rng.normal(-4, 0.5, len(ids) - 1) * is_reply).astype(np.float32),
                "advantages": (rng.normal() * is_reply).astype(np.float32),
                "sequence_ratio_mask": is_reply.astype(np.float32),
                "weights": rng.normal(1, 1, len(ids) - 1).astype(np.float32),
            }
            data.append(Datum(ids[:-1], inputs))
    return data


def only(datum, *names):
    return Datum(datum.tokens_N, {name: datum.inputs[name] for name in ("target_tokens", *names)})
