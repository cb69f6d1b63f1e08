"""Where each process of a run goes: a config and what the nodes have in, a frozen `Placement` out.

    colocated (verl)                        disaggregated (trinity)
    node 0  GPU 0: trainer 0, engine 0      node 0  GPU 0 and 1: trainer 0, trainer 1
            GPU 1: trainer 1, engine 1              GPU 2: engine 1
            CPU:   worker 0 to 3                    GPU 3: engine 0

GPUs are numbered from 0 over the nodes in their order; an engine of tensor-parallel size n has n
GPUs of one node. Where there is no GPU, ranks and engines are CPU processes. A node is one bundle
of the placement group (placement_groups.py). Not covered: whether a model fits (plan.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError

Role = Literal["trainer", "engine", "worker"]
RANKS, ENGINES = "ajet.trainer_common.n_trainer_ranks", "ajet.rollout.n_vllm_engine"
PARALLEL = "ajet.rollout.tensor_model_parallel_size"
TRAINER_MAP, ENGINE_MAP = "ajet.trainer_common.device_mapping", "ajet.rollout.device_mapping"
GPUS_PER_NODE, SEQUENCE = "n_gpus_per_node", "ajet.trainer_common.ulysses_sequence_parallel_size"
WITHOUT_TRAINER = ("explore", "bench", "serve")
MOST_WORKERS = 8
CORES_PER_GPU = 8.0
"""Taken for nodes that are only described."""
SMALLEST_SHARE = 1e-4
"""The step in which Ray counts CPUs."""


@dataclass(frozen=True)
class Node:
    """What one machine has for the run; `ray_id` where it is a node of Ray's, `is_remote` where the
    driver is on another."""

    name: str
    cpus: float
    gpus: int
    ray_id: str = ""
    is_remote: bool = False


@dataclass(frozen=True)
class Process:
    """One rank, engine or worker: its node, the GPUs of that node it may see, its share of CPUs."""

    role: Role
    index: int
    bundle: int
    gpus: tuple[int, ...] = ()
    cpus: float = 1.0


@dataclass(frozen=True)
class Placement:
    """All processes of a run. `nodes[process.bundle]` is where one is."""

    nodes: tuple[Node, ...]
    trainer: tuple[Process, ...]
    engines: tuple[Process, ...]
    workers: tuple[Process, ...]

    @property
    def processes(self) -> tuple[Process, ...]:
        return (*self.trainer, *self.engines, *self.workers)

    @property
    def on_gpus(self) -> bool:
        return any(process.gpus for process in self.processes)

    @property
    def shares_gpus(self) -> bool:
        """Whether some GPU is a trainer's and an engine's: one must sleep while the other works."""
        of_trainer = {(rank.bundle, gpu) for rank in self.trainer for gpu in rank.gpus}
        return any((each.bundle, gpu) in of_trainer for each in self.engines for gpu in each.gpus)

    def gpus_of(self, bundle: int) -> int:
        """GPUs to reserve on a node: up to the highest that a process of it uses."""
        return max(self._used(bundle), default=-1) + 1

    def packed(self) -> "Placement":
        """With the GPUs that a node's processes use numbered from 0: no more than those need be
        reserved."""

        def renumbered(process: Process) -> Process:
            used = self._used(process.bundle)
            return replace(process, gpus=tuple(used.index(gpu) for gpu in process.gpus))

        return replace(
            self,
            trainer=tuple(map(renumbered, self.trainer)),
            engines=tuple(map(renumbered, self.engines)),
        )

    def _used(self, bundle: int) -> list[int]:
        here = (each.gpus for each in self.processes if each.bundle == bundle)
        return sorted({gpu for gpus in here for gpu in gpus})

    def rows(self) -> list[tuple[str, str, str]]:
        """(node, GPU or CPU, who is there), for a table."""
        return [row for bundle in range(len(self.nodes)) for row in self._rows_of(bundle)]

    def _rows_of(self, bundle: int) -> list[tuple[str, str, str]]:
        here = [each for each in self.processes if each.bundle == bundle]
        name = self.nodes[bundle].name
        rows = [
            (name, f"GPU {gpu}", _named(each for each in here if gpu in each.gpus))
            for gpu in self._used(bundle)
        ]
        on_cpu = _named(each for each in here if not each.gpus)
        return [*rows, (name, "CPU", on_cpu)] if on_cpu else rows


@dataclass(frozen=True)
class Needs:
    """What a config asks of a cluster; null and auto are still open."""

    colocated: bool
    nnodes: int = 1
    n_gpus_per_node: int | Literal["auto"] = "auto"
    trains: bool = True
    generates: bool = True
    n_trainer_ranks: int | None = None
    n_engines: int | None = None
    tensor_parallel: int = 1
    in_process: bool = False
    sequence_parallel: int = 1
    trainer_devices: tuple[int, ...] | None = None
    engine_devices: tuple[int, ...] | None = None
    num_workers: int | None = None
    max_episodes: int = 64

    @classmethod
    def of(cls, config: AjetConfig) -> "Needs":
        trainer, rollout = config.ajet.trainer_common, config.ajet.rollout
        mode = config.trinity.mode if config.ajet.backbone == "trinity" else "colocate"
        # What computes on the CPU takes no GPU from others.
        is_open = trainer.n_gpus_per_node == "auto" and config.ajet.model.device == "cpu"
        return cls(
            colocated=mode == "colocate",
            nnodes=trainer.nnodes,
            n_gpus_per_node=0 if is_open else trainer.n_gpus_per_node,
            trains=mode not in WITHOUT_TRAINER,
            generates=mode != "train",
            n_trainer_ranks=trainer.n_trainer_ranks,
            n_engines=rollout.n_vllm_engine,
            tensor_parallel=rollout.tensor_model_parallel_size,
            in_process=rollout.name == "in_process",
            sequence_parallel=trainer.ulysses_sequence_parallel_size,
            trainer_devices=_tuple(trainer.device_mapping),
            engine_devices=_tuple(rollout.device_mapping),
            num_workers=rollout.agent.num_workers,
            max_episodes=rollout.max_env_worker,
        )


def place(needs: Needs, nodes: Sequence[Node]) -> Placement:
    """The processes of a run on these nodes; ConfigError, in one line, for what does not fit."""
    used = _chosen(needs, nodes)
    devices = [(bundle, gpu) for bundle, node in enumerate(used) for gpu in range(node.gpus)]
    if devices:
        trainer, engines = _on_gpus(needs, devices)
    else:
        trainer, engines = _on_cpus(needs, len(used))
    _check_sequence_parallel(needs, len(trainer))
    workers = _workers(needs, used)
    return _with_cpu_shares(Placement(tuple(used), trainer, engines, workers))


def configured_nodes(
    config: AjetConfig, here: Node, nnodes: int | None = None, gpus: int | None = None
) -> list[Node]:
    """The nodes that a config names, or `nnodes` of `gpus` each; the rest is as it is `here`."""
    trainer = config.ajet.trainer_common
    wanted = trainer.n_gpus_per_node
    each = gpus if gpus is not None else here.gpus if wanted == "auto" else wanted
    cores = max(here.cpus, CORES_PER_GPU * each)
    return [Node(f"node {place}", cores, each) for place in range(nnodes or trainer.nnodes)]


def _chosen(needs: Needs, nodes: Sequence[Node]) -> list[Node]:
    """The `nnodes` nodes with the most GPUs, in the order given, each with what the run uses."""
    wanted = needs.n_gpus_per_node
    if len(nodes) < needs.nnodes:
        raise ConfigError(
            f"ajet.trainer_common.nnodes={needs.nnodes}: the cluster has "
            f"{_count(len(nodes), 'node')}; add nodes or lower it"
        )
    by_gpus = sorted(range(len(nodes)), key=lambda place: -nodes[place].gpus)
    used = [nodes[place] for place in sorted(by_gpus[: needs.nnodes])]
    if wanted == "auto":
        return used
    for node in used:
        if node.gpus < wanted:
            raise ConfigError(
                f"ajet.trainer_common.{GPUS_PER_NODE}={wanted}: {node.name} has "
                f"{_count(node.gpus, 'GPU')}; lower it, or leave it out to take what there is"
            )
    return [replace(node, gpus=wanted) for node in used]


def _on_gpus(
    needs: Needs, devices: list[tuple[int, int]]
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    for_trainer = _mapped(needs.trainer_devices, devices, TRAINER_MAP)
    for_engines = _mapped(needs.engine_devices, devices, ENGINE_MAP)
    if needs.generates and needs.in_process and needs.tensor_parallel > 1:
        raise ConfigError(
            f"{PARALLEL}={needs.tensor_parallel}: the in-process engine computes on one GPU; leave "
            "it at 1, or set ajet.rollout.name to vllm or sglang"
        )
    if not needs.trains:
        left = for_engines or _left(devices, for_trainer, TRAINER_MAP, "engines", ENGINE_MAP)
        of_both = for_engines is None and for_trainer is not None
        return (), _engines(needs, left, from_the_end=of_both)
    if not needs.generates:
        left = for_trainer or _left(devices, for_engines, ENGINE_MAP, "trainer", TRAINER_MAP)
        return _ranks(needs, left), ()
    if needs.colocated:
        trainer = for_trainer or for_engines or devices
        return _ranks(needs, trainer), _engines(needs, for_engines or trainer)
    return _side_by_side(needs, devices, for_trainer, for_engines)


def _left(
    devices: list[tuple[int, int]],
    others: list[tuple[int, int]] | None,
    their_key: str,
    who: str,
    key: str,
) -> list[tuple[int, int]]:
    """What the other command of the run does not name."""
    left = [device for device in devices if device not in (others or ())]
    if not left:
        raise ConfigError(
            f"{their_key} takes all {len(devices)} GPUs and leaves the {who} none: shorten it, or "
            f"say {key} (on another machine they are numbered from 0, too)"
        )
    return left


def _side_by_side(
    needs: Needs,
    devices: list[tuple[int, int]],
    for_trainer: list[tuple[int, int]] | None,
    for_engines: list[tuple[int, int]] | None,
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Engines have their GPUs, by default the last ones; the trainer has the rest."""
    both = sorted({*(for_trainer or ())} & {*(for_engines or ())})
    if both:
        raise ConfigError(
            f"{TRAINER_MAP} and {ENGINE_MAP} share GPU {devices.index(both[0])}: backbone trinity "
            "keeps them apart; choose others, or set trinity.mode=colocate"
        )
    if for_engines is None:
        free = [device for device in devices if device not in (for_trainer or ())]
        _check_room(needs, len(devices), len(free), has_trainer=for_trainer is not None)
        asked = needs if for_trainer else replace(needs, n_engines=needs.n_engines or 1)
        engines = _engines(asked, free, from_the_end=True)
    else:
        engines = _engines(needs, for_engines)
    taken = for_engines or [(each.bundle, gpu) for each in engines for gpu in each.gpus]
    rest = for_trainer or [device for device in devices if device not in taken]
    if not rest:
        raise ConfigError(
            f"{ENGINE_MAP} takes all {len(devices)} GPUs and leaves the trainer none: shorten it, "
            "or set trinity.mode=colocate or --backbone verl, where they share GPUs"
        )
    return _ranks(needs, rest), engines


def _check_room(needs: Needs, total: int, free: int, *, has_trainer: bool) -> None:
    """That engines and a trainer have GPUs of their own."""
    engines, size = needs.n_engines or 1, needs.tensor_parallel
    if engines * size + (not has_trainer) <= free:
        return
    raise ConfigError(
        f"too few GPUs: {_count(engines, 'engine')} of {_count(size, 'GPU')} ({ENGINES}, "
        f"{PARALLEL}) and the trainer need {engines * size + max(1, total - free)}, there "
        f"{'is' if total == 1 else 'are'} {total}; with --backbone verl they share them"
    )


def _engines(
    needs: Needs, devices: list[tuple[int, int]], *, from_the_end: bool = False
) -> tuple[Process, ...]:
    """Groups of `tensor_parallel` GPUs, each within one node; null is all there is room for."""
    size = needs.tensor_parallel
    by_node: dict[int, list[int]] = {}
    for bundle, gpu in devices:
        by_node.setdefault(bundle, []).append(gpu)
    if needs.n_engines is None:
        _check_divides(size, by_node)
    groups = [
        (bundle, tuple(gpus[start : start + size]))
        for bundle, gpus in by_node.items()
        for start in range(len(gpus) % size if from_the_end else 0, len(gpus) - size + 1, size)
    ]
    wanted = len(groups) if needs.n_engines is None else needs.n_engines
    if wanted > len(groups):
        raise ConfigError(
            f"{ENGINES}={wanted} of {_count(size, 'GPU')} ({PARALLEL}): there is room for "
            f"{len(groups)} on {_count(len(devices), 'GPU')} of {_count(len(by_node), 'node')}; "
            "lower one of them"
        )
    chosen = groups[::-1][:wanted] if from_the_end else groups[:wanted]
    return tuple(Process("engine", at, bundle, gpus) for at, (bundle, gpus) in enumerate(chosen))


def _check_divides(size: int, by_node: dict[int, list[int]]) -> None:
    for gpus in by_node.values():
        if len(gpus) % size:
            raise ConfigError(
                f"{PARALLEL}={size} does not divide the {_count(len(gpus), 'GPU')} of a node: an "
                f"engine is within one node; choose a divisor, or say how many with {ENGINES}"
            )


def _ranks(needs: Needs, devices: list[tuple[int, int]]) -> tuple[Process, ...]:
    """One rank for each GPU; rank 0 has the first."""
    wanted = len(devices) if needs.n_trainer_ranks is None else needs.n_trainer_ranks
    if wanted > len(devices):
        raise ConfigError(
            f"{RANKS}={wanted}: the trainer has {_count(len(devices), 'GPU')}, and a rank needs "
            "one; lower it or leave it out"
        )
    return tuple(
        Process("trainer", rank, bundle, (gpu,))
        for rank, (bundle, gpu) in enumerate(devices[:wanted])
    )


def _on_cpus(needs: Needs, num_nodes: int) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    for key, devices in ((TRAINER_MAP, needs.trainer_devices), (ENGINE_MAP, needs.engine_devices)):
        if devices:
            raise ConfigError(
                f"{key} names GPUs, and the nodes have none for the run; leave it out"
            )
    if needs.tensor_parallel > 1:
        raise ConfigError(
            f"{PARALLEL}={needs.tensor_parallel}: there is no GPU, and on CPU an engine is one "
            "process; leave it at 1"
        )
    ranks = (needs.n_trainer_ranks or 1) if needs.trains else 0
    engines = (needs.n_engines or 1) if needs.generates else 0
    return _spread("trainer", ranks, num_nodes), _spread("engine", engines, num_nodes)


def _spread(role: Role, count: int, num_nodes: int) -> tuple[Process, ...]:
    """Evenly, neighbours on one node."""
    return tuple(Process(role, each, each * num_nodes // count) for each in range(count))


def _workers(needs: Needs, nodes: Sequence[Node]) -> tuple[Process, ...]:
    if not needs.generates:
        return ()
    cores = int(sum(node.cpus for node in nodes))
    wanted = needs.num_workers or min(MOST_WORKERS, max(1, cores // 2))
    return _spread("worker", min(wanted, needs.max_episodes), len(nodes))


def _with_cpu_shares(placement: Placement) -> Placement:
    """Each process a core, or an equal share of its node where there are fewer cores."""

    def share(process: Process) -> Process:
        crowd = sum(each.bundle == process.bundle for each in placement.processes)
        cores = placement.nodes[process.bundle].cpus / crowd
        steps = int(min(1.0, cores) / SMALLEST_SHARE)
        return replace(process, cpus=max(1, steps) * SMALLEST_SHARE)

    return replace(
        placement,
        trainer=tuple(map(share, placement.trainer)),
        engines=tuple(map(share, placement.engines)),
        workers=tuple(map(share, placement.workers)),
    )


def _check_sequence_parallel(needs: Needs, ranks: int) -> None:
    if ranks % needs.sequence_parallel:
        raise ConfigError(
            f"{SEQUENCE}={needs.sequence_parallel} does not divide the "
            f"{_count(ranks, 'trainer rank')}; choose a divisor"
        )


def _mapped(
    numbers: tuple[int, ...] | None, devices: list[tuple[int, int]], key: str
) -> list[tuple[int, int]] | None:
    """The GPUs of a device list, in the order of the nodes."""
    if numbers is None:
        return None
    if max(numbers) >= len(devices):
        raise ConfigError(
            f"{key} names GPU {max(numbers)}: the run has {_count(len(devices), 'GPU')}, numbered "
            "from 0 over its nodes (nnodes, n_gpus_per_node)"
        )
    return [devices[number] for number in sorted(numbers)]


def _named(processes: Iterable[Process]) -> str:
    """`trainer 0, engine 0, worker 0 to 3`."""
    by_role: dict[str, list[int]] = {}
    for process in processes:
        by_role.setdefault(process.role, []).append(process.index)
    return ", ".join(f"{role} {_range(indices)}" for role, indices in by_role.items())


def _range(indices: list[int]) -> str:
    in_a_row = list(range(indices[0], indices[-1] + 1)) == indices
    if len(indices) > 1 and in_a_row:
        return f"{indices[0]} to {indices[-1]}"
    return " and ".join(map(str, indices))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _tuple(numbers: list[int] | None) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(numbers)
