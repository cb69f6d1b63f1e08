"""A tiny Qwen2 and hand-made samples, for the tests of the update."""

from dataclasses import replace

import numpy as np
import torch

from ajet.core.checkpoint.checkpoint import prepare_checkpoint, read_checkpoint
from ajet.core.checkpoint.manifest import newest_checkpoint
from ajet.core.ranks.ranks import ONE_RANK
from ajet.core.trajectory.sample import TrainingSample


def save_checkpoint(*arguments, **options):
    """Writes a checkpoint and returns its folder."""
    return prepare_checkpoint(*arguments, **options)()


def tiny_model(seed=0, **changes):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = dict(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(Qwen2Config(**(shape | changes))).eval()


def sample(ids, mask, *, episode="e0", group="g0", advantage=1.0, logprobs=None):
    """`mask` is a string such as "0011"; `logprobs` are those of the trained tokens."""
    mask_T = np.array([c == "1" for c in mask])
    logprobs_T = np.zeros(len(mask), np.float32)
    logprobs_T[mask_T] = -2.0 if logprobs is None else logprobs
    return TrainingSample(
        episode_id=episode,
        group_id=group,
        token_ids=np.array(ids, np.int64),
        loss_mask=mask_T,
        logprobs=logprobs_T,
        advantages=np.where(mask_T, advantage, 0.0).astype(np.float32),
        spans=(),
        min_policy_version=0,
        max_policy_version=0,
    )


def forked_groups(seed=0, num_groups=3, group_size=4, vocab=64):
    """A shared system prompt; ragged groups; forks, several timelines for some episodes, equal
    responses, one row without a trained token, one that is a prefix of another."""
    rng = np.random.default_rng(seed)
    system = rng.integers(0, vocab, 11)
    samples = []
    for g in range(num_groups):
        prompt = np.concatenate((system, rng.integers(0, vocab, 3 + 2 * g)))
        stem = rng.integers(0, vocab, 4)
        for e in range(group_size + g):
            first = np.concatenate((stem[: rng.integers(0, 5)], rng.integers(0, vocab, 1 + e)))
            tool = rng.integers(0, vocab, 3)
            second = rng.integers(0, vocab, 1 + int(rng.integers(0, 6)))
            name, advantage = f"g{g}e{e}", float(rng.normal())
            ids = np.concatenate((prompt, first, tool, second))
            mask = "0" * len(prompt) + "1" * len(first) + "0" * len(tool) + "1" * len(second)
            logprobs = rng.normal(-2.5, 0.7, mask.count("1"))
            samples.append(
                sample(
                    ids, mask, episode=name, group=f"g{g}", advantage=advantage, logprobs=logprobs
                )
            )
            if e % 2:  # a second timeline of the episode, after the first answer
                other = rng.integers(0, vocab, 4)
                ids = np.concatenate((prompt, first, other))
                mask = "0" * (len(prompt) + len(first)) + "0111"
                logprobs = rng.normal(-2.5, 0.7, 3)
                samples.append(
                    sample(
                        ids,
                        mask,
                        episode=name,
                        group=f"g{g}",
                        advantage=advantage,
                        logprobs=logprobs,
                    )
                )
        samples.append(sample(prompt, "0" * len(prompt), episode=f"g{g}none", group=f"g{g}"))
        samples.append(
            sample(ids, mask, episode=f"g{g}twin", group=f"g{g}", advantage=-0.5, logprobs=logprobs)
        )
        longer = np.concatenate((ids, [5, 6]))
        samples.append(
            sample(
                longer, "0" * len(ids) + "11", episode=f"g{g}longer", group=f"g{g}", advantage=0.3
            )
        )
    return samples


def with_streams(samples, seed=0):
    """In turn: plain; first token given; scored by a teacher; all given; given and scored."""
    rng = np.random.default_rng(seed)
    names = list(dict.fromkeys(each.episode_id for each in samples))
    found = []
    for each in samples:
        kind = names.index(each.episode_id) % 5
        mask = each.loss_mask.astype(np.float32)
        first = mask * (np.cumsum(mask) == 1)
        given = {1: first, 3: mask, 4: 0.5 * first}.get(kind, 0 * mask)
        sampled = mask * (given == 0)
        streams = {
            "policy_gradient": 0.25 * sampled if kind == 2 else sampled,
            "kl_reference": sampled,
            "cross_entropy": given,
            "kl_teacher": sampled * (kind in (2, 4)),
        }
        teacher = (each.logprobs + rng.normal(0, 0.5, len(each))).astype(np.float32)
        changed = replace(each, streams=streams, teacher_logprobs=teacher)
        found.append(changed if kind else each)
    return found


def load_newest(folder, *, like=None, ranks=ONE_RANK):
    """Reads the newest whole checkpoint, as a run that resumes does; None where there is none."""
    path = newest_checkpoint(folder)
    return None if path is None else read_checkpoint(path, like=like, ranks=ranks)


def assert_same_gradient(found, expected):
    """To 1e-5 of the largest entry of each weight: float32 adds in other orders."""
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        scale = max(grad.abs().max().item(), 1e-9)
        torch.testing.assert_close(found[name], grad, rtol=0, atol=1e-5 * scale, msg=name)
