"""One rank's side of the tests over several ranks: cases whose result must not depend on how many.

    run_rank(rank, size, port, folder, names)    folder/NAME.SIZE.RANK.pt, one for each case

Started by test_ranks.py in processes of their own; a single process calls `run_case` directly.
"""

import tempfile
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from update_fixtures import (
    forked_groups,
    load_newest,
    sample,
    save_checkpoint,
    tiny_model,
    with_streams,
)

import ajet.core.ranks.sharding  # noqa: F401  # takes seconds: once, before the processes fork
from ajet.core.advantage import EstimatorSettings
from ajet.core.advantage.kl_controller import FixedKLController
from ajet.core.checkpoint.checkpoint import prepare_checkpoint, read_checkpoint
from ajet.core.errors import AjetError
from ajet.core.images.image import Image
from ajet.core.images.store import ImageStore
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.learner import Learner, LearnerSettings
from ajet.core.model.load import LoadedModel, load_model
from ajet.core.model.precision import to_float64
from ajet.core.ranks.ranks import ONE_RANK, Ranks, TorchRanks, connect, disconnect
from ajet.core.ranks.settings import ShardingSettings
from ajet.core.ranks.shards import copy_tensor, full_tensor, is_sharded
from ajet.core.trajectory.sample import TrainingSample, TurnSpan
from ajet.core.trajectory.trained_tokens import TrainedTokens
from ajet.core.update.critic import Critic
from ajet.core.update.many_adapters import adapter_policies
from ajet.core.update.policy import Policy
from ajet.core.update.settings import (
    CorrectionSettings,
    CriticSettings,
    LoraSettings,
    UpdateSettings,
)
from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.load import BaseWeights, LiveSource, load_weights
from tests.core.model.families import family_model
from tests.core.model.test_vision import prompt
from tests.vision_models import picture, save_vision_model

# AdamW divides by sqrt(v) + eps: with its usual eps, a gradient that is rounding alone, which the
# order of additions changes, would make a step of the size of lr.
STEADY: dict[str, Any] = {"lr": 1e-3, "eps": 1e-5, "max_tokens_per_micro_batch": 400}
LORA = LoraSettings(rank=4, alpha=8, targets=("q_proj", "v_proj", "down_proj"))


@dataclass(frozen=True)
class Case:
    """Three updates by the policy, or by a critic."""

    settings: dict[str, Any] = field(default_factory=dict)
    sharding: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    family: str = ""
    sees: str = ""  # the family of a model that sees images
    train_tower: bool = False
    is_float64: bool = False
    is_one_row: bool = False
    has_streams: bool = False
    is_critic: bool = False

    def new_model(self, ranks: Ranks = ONE_RANK) -> torch.nn.Module:
        """On other ranks than the first without memory: they get the weights from that one."""
        if self.sees:
            dtype = "float64" if self.is_float64 else "float32"
            return load_seeing(self, dtype=dtype, with_weights=ranks.rank == 0)[0].model
        with torch.device("cpu" if ranks.rank == 0 else "meta"):
            if self.family:
                model = family_model(self.family, **self.model)
            else:
                model = tiny_model(**self.model)
        return to_float64(model) if self.is_float64 else model

    def samples(self, seed: int) -> list[TrainingSample]:
        if self.sees:
            return image_groups(self, seed)
        if self.is_one_row:
            return [sample([1, 2, 3, 4 + seed], "0011", advantage=1.0)]
        return with_streams(groups(seed)) if self.has_streams else groups(seed)

    def in_turns(self, seed: int) -> list[TrainingSample]:
        """The same samples, each a turn of its episode."""
        numbered = enumerate(self.samples(seed))
        return [replace(each, spans=(TurnSpan(0, len(each), i),)) for i, each in numbered]


@cache
def vision_folder(family: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    save_vision_model(family, Path(folder.name))
    return folder


def load_seeing(case: Case, **options: Any) -> tuple[LoadedModel, list[int]]:
    """Loads a model that sees, and the keys of three images that it is shown."""
    store = ImageStore()
    folder = vision_folder(case.sees).name
    loaded = load_model(folder, device="cpu", images=store, train_tower=case.train_tower, **options)
    pictures = [picture(n, *size) for n, size in enumerate([(16, 24), (24, 24), (16, 32)])]
    return loaded, [store.add(Image.from_picture(each, store.limits)).key for each in pictures]


def image_groups(case: Case, seed: int) -> list[TrainingSample]:
    """Three groups of three episodes about an image each, and one about none."""
    loaded, keys = load_seeing(case)
    rng = np.random.default_rng(seed)
    samples = []
    for g, shown in enumerate([[keys[0]], [keys[1]], [keys[2], " and ", keys[0]], [""]]):
        for e in range(3):
            text = "".join(rng.choice(list("abcdefgh"), 2 + e))
            ids = prompt(loaded, ["see ", *shown, " say ", text])
            mask = "0" * (len(ids) - len(text)) + "1" * len(text)
            logprobs = rng.normal(-5, 0.7, len(text))
            names = {"episode": f"g{g}e{e}", "group": f"g{g}"}
            samples.append(sample(ids, mask, advantage=rng.normal(), logprobs=logprobs, **names))
    return samples


def groups(seed: int = 0) -> list[TrainingSample]:
    return forked_groups(seed, num_groups=2, group_size=3)


def in_sequence(size: int) -> dict[str, Any]:
    return {"ulysses_sequence_parallel_size": size}


CASES = {
    "tree": Case(
        dict(
            kl_loss_coef=0.1,
            entropy_coef=0.01,
            mini_batch_num=2,
            temperature=0.8,
            max_tokens_per_micro_batch=40,
        )
    ),
    "packed": Case(
        dict(
            batch_layout="packed",
            correction=CorrectionSettings(
                level="sequence",
                upper=1.5,
                normalize=True,
                reject={"token_k2": (-4.0, 4.0)},
                count_rejected=False,
            ),
            policy_loss="gmpo",
            loss_agg_mode="seq-mean-token-mean",
        ),
        model=dict(tie_word_embeddings=False),
    ),
    "padded": Case(
        dict(
            batch_layout="padded",
            kl_loss_coef=0.1,
            kl_loss_type="k1",
            policy_loss="clip_cov",
            cov_share=0.2,
            clip_cov_low=0.001,
            off_policy_mask=0.01,
            activation_checkpointing=True,
        ),
        dict(reshard_after_forward=False),
    ),
    "gspo": Case(
        dict(
            policy_loss="gspo",
            clip_low=3e-4,
            clip_high=4e-4,
            kl_loss_coef=0.1,
            activation_checkpointing=True,
        ),
        dict(cpu_offload=True),
    ),
    "streams": Case(
        dict(
            kl_loss_coef=0.1,
            entropy_coef=0.01,
            kl_teacher_coef=0.5,
            max_tokens_per_micro_batch=40,
            correction=CorrectionSettings(level="turn", reject={"seq_mean_k2": (-4.0, 4.0)}),
            policy_loss="gspo",
        ),
        has_streams=True,
    ),
    "lora": Case(dict(lora=LORA, lr=1e-2, kl_loss_coef=0.1)),
    "float64": Case(sharding=dict(param_dtype="float64"), is_float64=True),
    "float64_critic": Case(sharding=dict(param_dtype="float64"), is_float64=True, is_critic=True),
    "gathered": Case(
        dict(max_tokens_per_micro_batch=40, mini_batch_num=2, kl_loss_coef=0.1),
        dict(keep_gathered=True),
    ),
    "gathered_lora": Case(
        dict(lora=LORA, lr=1e-2, kl_loss_coef=0.1, max_tokens_per_micro_batch=40),
        dict(keep_gathered=True),
    ),
    "gathered_critic": Case(
        dict(max_tokens_per_micro_batch=40), dict(keep_gathered=True), is_critic=True
    ),
    "one_row": Case(is_one_row=True),
    "critic": Case(dict(mini_batch_num=2), is_critic=True),
    "sequence": Case(dict(kl_loss_coef=0.1, policy_loss="gspo"), in_sequence(2)),
    "sequence_packed": Case(
        dict(
            batch_layout="packed",
            lora=LORA,
            lr=1e-2,
            kl_loss_coef=0.1,
            activation_checkpointing=True,
        ),
        in_sequence(2),
    ),
    "sequence_critic": Case(sharding=in_sequence(2), is_critic=True),
    "experts": Case(dict(kl_loss_coef=0.1), family="qwen3_moe"),
    "windows": Case(
        dict(kl_loss_coef=0.1, activation_checkpointing=True),
        model=dict(hidden_size=256),  # as wide_layer.py computes it
        family="gemma3_text",
    ),
    "states": Case(dict(kl_loss_coef=0.1), family="lfm2"),
    "images": Case(dict(kl_loss_coef=0.1, max_tokens_per_micro_batch=120), sees="qwen3_vl"),
    "images_trained": Case(
        dict(kl_loss_coef=0.1, mini_batch_num=2, grad_clip=0.5, max_tokens_per_micro_batch=60),
        sees="qwen2_5_vl",
        train_tower=True,
    ),
    "images_float64": Case(
        dict(max_tokens_per_micro_batch=60, batch_layout="padded"),
        dict(param_dtype="float64", keep_gathered=True),
        sees="smolvlm",
        train_tower=True,
        is_float64=True,
    ),
    "images_sequence": Case(
        dict(kl_loss_coef=0.1), in_sequence(2), sees="qwen3_vl", train_tower=True
    ),
    "images_sequence_packed": Case(
        dict(batch_layout="packed"), in_sequence(2), sees="qwen2_5_vl", train_tower=True
    ),
    "images_lora": Case(dict(lora=LORA, lr=1e-2, kl_loss_coef=0.1), sees="gemma3"),
    "images_critic": Case(
        dict(max_tokens_per_micro_batch=60), sees="llava", train_tower=True, is_critic=True
    ),
    "sequence_of_four": Case(sharding=in_sequence(4)),  # fewer key-value heads than ranks
}


def run_case(name: str, ranks: Ranks = ONE_RANK) -> dict[str, Any]:
    """In one process without sharding, or over ranks."""
    case = CASES[name]
    return run_critic(case, ranks) if case.is_critic else run_policy(case, ranks)


def run_policy(case: Case, ranks: Ranks) -> dict[str, Any]:
    policy = Policy(case.new_model(ranks), UpdateSettings(**STEADY | case.settings), ranks)
    if policy.reference is not None:  # as for a KL in the reward, before anything is learnt
        policy.reference_scores(case.samples(0))
    tokens = TrainedTokens()
    metrics = [policy.update(case.in_turns(0), tokens=tokens)]
    metrics += [policy.update(case.samples(seed)) for seed in (1, 2)]
    samples = case.samples(3)
    out: dict[str, Any] = {"metrics": metrics, "scores": np.concatenate(policy.score(samples))}
    out |= {"tokens": tokens.rows, "cuts": tokens.cuts}
    if policy.reference is not None:
        out["reference"] = np.concatenate(policy.reference_scores(samples))
    published = {n: t.clone() for n, t in policy.weights()}
    if case.settings.get("lora"):
        out["alone"] = with_adapters_alone(case.new_model(), policy)
    return out | {"tensors": whole(policy), "published": published}


def with_adapters_alone(engine: torch.nn.Module, policy: Policy) -> dict[str, torch.Tensor]:
    """What an engine with the base weights makes of the adapters."""
    adapters = policy.describe_adapters()
    assert isinstance(adapters, Adapters)
    load_weights(engine, LiveSource(1, policy.adapter_weights, adapters), base=BaseWeights())
    return {name: weight.detach() for name, weight in engine.named_parameters()}


def several(ranks: Ranks, *, is_float64: bool = False) -> dict[str, Any]:
    """Two adapters over one base: both learn, in turns, with a KL to the base."""
    case = Case(is_float64=is_float64)
    asked = {"lr": 1e-2, "kl_loss_coef": 0.1, "max_tokens_per_micro_batch": 40}
    lora = replace(LORA, adapters=("pro", "con"))
    settings = UpdateSettings(**STEADY | asked | {"lora": lora})
    made = adapter_policies(case.new_model(ranks), settings, ranks)
    learning = LearnerSettings(EstimatorSettings())
    learners = AdapterLearners(
        {name: Learner(each, None, FixedKLController(0.1), learning) for name, each in made.items()}
    )
    metrics = [made["pro"].update(case.samples(0)), made["con"].update(case.samples(1))]
    of_con = {name: full_tensor(t).clone() for name, t in made["con"].state_dict().tensors.items()}
    metrics.append(made["pro"].update(case.samples(2)))
    after = {name: full_tensor(t) for name, t in made["con"].state_dict().tensors.items()}
    samples = case.samples(3)
    scores = [np.concatenate(made[name].score(samples)) for name in ("pro", "con", "pro")]
    return {
        "metrics": metrics,
        "tensors": whole(learners),
        "published": {name: weight.clone() for name, weight in learners.weights()},
        "scores": np.stack(scores),
        "reference": np.concatenate(made["con"].reference_scores(samples)),
        "base": {name: weight.clone() for name, weight in learners.policy.weights(is_base=True)},
        "con_moved": [name for name, t in of_con.items() if not torch.equal(t, after[name])],
    }


def several_relay(ranks: Ranks, folder: Path, step: int) -> dict[str, Any]:
    """Two adapters take up the newest checkpoint in `folder`, learn, save."""
    lora = replace(LORA, adapters=("pro", "con"), seed=step)
    settings = UpdateSettings(**STEADY | {"lr": 1e-2, "lora": lora})
    made = adapter_policies(tiny_model(), settings, ranks)
    learning = LearnerSettings(EstimatorSettings())
    learners = AdapterLearners(
        {name: Learner(each, None, FixedKLController(0.1), learning) for name, each in made.items()}
    )
    like = learners.template() if ranks.size > 1 else None
    found = load_newest(folder, like=like, ranks=ranks)
    if found is not None:
        learners.load_state_dict(found.tensors, found.state)
    for number, policy in enumerate(made.values()):
        policy.update(groups(step + 10 * number))
    tensors, state = learners.state_dict()
    save_checkpoint(folder, step, tensors, state, ranks=ranks)
    return {"tensors": whole(learners)}


def as_read(ranks: Ranks) -> dict[str, Any]:
    """What the ranks hold of models that rank 0 alone has read, before anything is learnt: with a
    tied head and without, adapters, a critic, and what is no parameter."""
    tied = Policy(CASES["lora"].new_model(ranks), UpdateSettings(lora=LORA), ranks)
    case = Case(model=dict(tie_word_embeddings=False))
    settings = UpdateSettings(kl_loss_coef=0.1)
    untied, critic = (
        Policy(case.new_model(ranks), settings, ranks),
        Critic(CASES["critic"].new_model(ranks), CriticSettings(), ranks),
    )
    assert untied.reference is not None and untied.reference.frozen_copy is not None
    models = [tied.model, untied.model, untied.reference.frozen_copy.model, critic.model]
    found = {
        f"{number}.{name}": full_tensor(tensor).detach().clone()
        for number, model in enumerate(models)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    return {"tensors": found}


def two_models(ranks: Ranks) -> dict[str, Any]:
    """The other ranks have made a model of other shapes."""
    changes = {} if ranks.rank == 0 else {"hidden_size": 64}
    try:
        Policy(tiny_model(**changes), UpdateSettings(), ranks)
    except AjetError as error:
        return {"said": str(error)}
    return {"said": ""}


def run_critic(case: Case, ranks: Ranks) -> dict[str, Any]:
    critic = bent(Critic(case.new_model(ranks), CriticSettings(**STEADY | case.settings), ranks))
    metrics = []
    for seed in range(3):
        samples = case.samples(seed)
        metrics.append(critic.update(samples, returns_of(samples, seed), critic.values(samples)))
    scores = np.concatenate(critic.values(case.samples(3)))
    return {"metrics": metrics, "scores": scores, "tensors": whole(critic)}


def returns_of(samples, seed):
    rng = np.random.default_rng(seed)
    return [np.where(s.loss_mask, rng.normal(0, 1, len(s)), 0).astype(np.float32) for s in samples]


def bent(critic: Critic) -> Critic:
    """With a head that is not zero, so that the gradient reaches the model."""
    head = critic.model.head.weight
    copy_tensor(head, 0.1 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
    return critic


def whole(learner: Policy | Critic | Learner | AdapterLearners) -> dict[str, torch.Tensor]:
    return {n: full_tensor(t).detach().clone() for n, t in learner.state_dict().tensors.items()}


def relay(ranks: Ranks, folder: Path, step: int) -> dict[str, Any]:
    """Takes up the newest checkpoint in `folder`, learns from the samples of `step`, and saves
    while it learns on."""
    policy = Policy(tiny_model(seed=step), UpdateSettings(**STEADY), ranks)
    critic = bent(Critic(tiny_model(seed=step + 1), CriticSettings(**STEADY), ranks))
    learner = Learner(
        policy, critic, FixedKLController(0.1), LearnerSettings(EstimatorSettings(name="gae"))
    )
    found = load_newest(folder, like=learner.template(), ranks=ranks)
    if found is not None:
        learner.load_state_dict(found.tensors, found.state)
    samples = groups(step)
    critic.update(samples, returns_of(samples, step), critic.values(samples))
    policy.update(samples)
    saved = whole(learner)
    write = prepare_checkpoint(
        folder, step, *learner.state_dict(), ranks=ranks.apart(), copies=True
    )
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(write)
        for number in range(3):
            policy.update(groups(step + 50 + number))
        writing.result()
    return {"tensors": saved}


def seeing_relay(ranks: Ranks, folder: Path, step: int) -> dict[str, Any]:
    """Takes up the newest checkpoint of a policy with a trained tower, learns, saves."""
    case = CASES["images_trained"]
    policy = Policy(case.new_model(ranks), UpdateSettings(**STEADY), ranks)
    like = policy.template() if ranks.size > 1 else None
    found = load_newest(folder, like=like, ranks=ranks)
    if found is not None:
        policy.load_state_dict(found.tensors, found.state["policy"])
    policy.update(case.samples(step))
    tensors, counters = policy.state_dict()
    save_checkpoint(folder, step, tensors, {"policy": counters}, ranks=ranks)
    return {"tensors": whole(policy)}


def apart(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Saves and loads where rank 0 alone sees the folder: another rank's is not there."""
    place = "here" if ranks.rank == 0 else "nowhere"
    policy = Policy(tiny_model(), UpdateSettings(**STEADY), ranks)
    policy.update(groups())
    tensors, counters = policy.state_dict()
    alone: dict[str, Any] = {"ranks": ranks, "shares_folder": False}
    path = save_checkpoint(folder / place, 1, tensors, {"policy": counters}, **alone)
    again = Policy(tiny_model(seed=5), UpdateSettings(**STEADY), ranks)
    found = read_checkpoint(path, like=again.template(), **alone)
    again.load_state_dict(found.tensors, found.state["policy"])
    fewer = Policy(tiny_model(num_hidden_layers=1), UpdateSettings(**STEADY), ranks)
    return {
        "saved": whole(policy),
        "loaded": whole(again),
        "sharded": {n for n, t in found.tensors.items() if is_sharded(t)},
        "refused": refused(lambda: read_checkpoint(path, like=fewer.template(), **alone)),
        "sees": path.exists(),
    }


def nan_on_one(ranks: Ranks) -> dict[str, Any]:
    """One row's gradient is not finite; whoever computes it, nobody may step."""
    samples = groups()
    mask = samples[0].loss_mask
    samples[0] = replace(
        samples[0],
        logprobs=np.where(mask, -18, 0).astype(np.float32),
        advantages=np.where(mask, -3e38, 0).astype(np.float32),
    )
    policy = Policy(tiny_model(), UpdateSettings(**STEADY), ranks)
    return {"metrics": [policy.update(samples)], "tensors": whole(policy)}


def in_bfloat16(ranks: Ranks) -> dict[str, Any]:
    policy = Policy(tiny_model(), UpdateSettings(**STEADY), ranks)
    metrics = [policy.update(groups())]
    with GatheredTypes() as gathered:
        published = {n: t.clone() for n, t in policy.weights()}
    return {
        "metrics": metrics,
        "tensors": whole(policy),
        "published": published,
        "gathered_types": sorted(map(str, gathered.types)),
    }


class GatheredTypes(TorchDispatchMode):
    """Notes the types of the shards that this rank sends to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "all_gather" in str(func):
            self.types.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def collectives(*, keep_gathered: bool) -> dict[str, int]:
    """Counts what one optimizer step of several micro-batches gathers and sums."""
    ranks = TorchRanks(ShardingSettings(keep_gathered=keep_gathered))
    settings = UpdateSettings(**STEADY | {"max_tokens_per_micro_batch": 40})
    policy = Policy(tiny_model(), settings, ranks)
    with CollectiveCounter() as counted:
        policy.update(groups())
    return dict(counted.counts)


class CollectiveCounter(TorchDispatchMode):
    """Counts the collective operations on tensors, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func.namespace == "c10d":
            self.counts[func.name().removeprefix("c10d::")] += 1
        return func(*args, **(kwargs or {}))


def refusals(folder: Path) -> dict[str, str]:
    """What a user may get wrong, each in one line on every rank."""
    ranks = TorchRanks()
    file = folder / "a_file"
    file.write_text("")
    other = Policy(
        tiny_model(hidden_size=16, num_attention_heads=2), UpdateSettings(**STEADY), ranks
    )
    tensors, state = other.state_dict()
    fewer = Policy(tiny_model(num_hidden_layers=1), UpdateSettings(**STEADY), ranks)

    def of_three() -> None:
        TorchRanks(ShardingSettings(ulysses_sequence_parallel_size=3))

    def padded_in_sequence() -> None:
        in_two = TorchRanks(ShardingSettings(ulysses_sequence_parallel_size=2))
        Policy(tiny_model(), UpdateSettings(batch_layout="padded"), in_two)

    tries = {
        "another_model": lambda: load_newest(folder / "relay", like=other.template(), ranks=ranks),
        "fewer_layers": lambda: load_newest(folder / "relay", like=fewer.template(), ranks=ranks),
        "no_folder": lambda: save_checkpoint(file / "in_it", 1, tensors, state, ranks=ranks),
        "of_three": of_three,
        "padded_in_sequence": padded_in_sequence,
    }
    return {name: refused(act) for name, act in tries.items()}


def refused(act) -> str:
    try:
        act()
    except AjetError as error:
        return str(error)
    return "not refused"


def run_rank(rank: int, size: int, port: int, folder: Path, names: list[str]) -> None:
    """In a process of its own, which the test starts; its traceback goes to a file."""
    torch.set_num_threads(1)
    try:
        for case in CASES.values():
            if case.sees:  # afterwards transformers saves on rank 0 alone
                vision_folder(case.sees)
        connect(rank, size, host="127.0.0.1", port=port, timeout_s=120)
        for name in names:
            torch.save(of_ranks(name, size, folder), folder / f"{name}.{size}.{rank}.pt")
        disconnect()
    except BaseException:
        (folder / f"fault.{size}.{rank}").write_text(traceback.format_exc())
        raise


def of_ranks(name: str, size: int, folder: Path) -> Any:
    match name:
        case "several":
            return several(TorchRanks())
        case "several_float64":
            return several(TorchRanks(ShardingSettings(param_dtype="float64")), is_float64=True)
        case "several_gathered":
            return several(TorchRanks(ShardingSettings(keep_gathered=True)))
        case "several_relay":
            return several_relay(TorchRanks(), folder / "several_relay", size)
        case "relay":
            return relay(TorchRanks(), folder / "relay", size)
        case "seeing_relay":
            return seeing_relay(TorchRanks(), folder / "seeing_relay", size)
        case "apart":
            return apart(TorchRanks(), folder / "apart")
        case "nan_on_one":
            return nan_on_one(TorchRanks())
        case "bfloat16":
            return in_bfloat16(TorchRanks(ShardingSettings(param_dtype="bfloat16")))
        case "collectives":
            return {kept: collectives(keep_gathered=kept) for kept in (False, True)}
        case "refusals":
            return refusals(folder)
        case "as_read":
            return as_read(TorchRanks())
        case "two_models":
            return two_models(TorchRanks())
        case _:
            return run_case(name, TorchRanks(ShardingSettings(**CASES[name].sharding)))
