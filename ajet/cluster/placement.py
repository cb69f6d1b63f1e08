"""Assigns the processes of a run to nodes, GPUs and CPUs.

colocated (verl)                        disaggregated (trinity)
node 0  GPU 0: trainer 0, engine 0      node 0  GPU 0 and 1: trainer 0, trainer 1
        GPU 1: trainer 1, engine 1              GPU 2: engine 1
        CPU:   worker 0 to 3                    GPU 3: engine 0
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ajet.core.config import AjetConfig
from ajet.core.config.trainer import TrainerConfig
from ajet.core.errors import ConfigError, TooFewGpus
from ajet.core.errors.codes import Code

Role = Literal["trainer", "engine", "worker"]
RANKS, ENGINES = "ajet.trainer_common.n_trainer_ranks", "ajet.rollout.n_vllm_engine"
PARALLEL = "ajet.rollout.tensor_model_parallel_size"
TRAINER_MAP, ENGINE_MAP = "ajet.trainer_common.device_mapping", "ajet.rollout.device_mapping"
GPUS_PER_NODE, SEQUENCE = "n_gpus_per_node", "ajet.trainer_common.ulysses_sequence_parallel_size"
WITHOUT_TRAINER = ("explore", "bench", "serve")
MAX_WORKERS = 8
CORES_PER_GPU = 8.0
"""Assumed for nodes that are only described (`ajet plan`)."""
SMALLEST_SHARE = 1e-4
"""The resolution with which Ray counts CPUs."""


@dataclass(frozen=True)
class Node:
    """The resources of one machine; `memory` is in GiB, 0 if unknown. `ray_id` and `port` are those
    of its Ray, if it has one. `is_remote`: the driver is on another machine. `sees_run_folder`: the
    run folder there is the driver's."""

    name: str
    cpus: float
    gpus: int
    ray_id: str = ""
    is_remote: bool = False
    memory: float = 0.0
    port: int = 0
    sees_run_folder: bool = True


@dataclass(frozen=True)
class Process:
    """One rank, engine or worker, the bundle of its node, and its GPUs and CPUs there."""

    role: Role
    index: int
    bundle: int
    gpus: tuple[int, ...] = ()
    cpus: float = 1.0


@dataclass(frozen=True)
class Placement:
    """All processes of a run; `nodes[process.bundle]` is the node of a process."""

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
        """Whether a trainer rank and an engine share a GPU: one sleeps while the other works."""
        devices = {(rank.bundle, gpu) for rank in self.trainer for gpu in rank.gpus}
        return any((e.bundle, gpu) in devices for e in self.engines for gpu in e.gpus)

    def nodes_of(self, processes: Iterable[Process]) -> list[Node]:
        """Returns the nodes of these processes, in the nodes' order."""
        used = {process.bundle for process in processes}
        return [node for bundle, node in enumerate(self.nodes) if bundle in used]

    def threads_of(self, rank: Process) -> int | None:
        """Returns the CPU threads of a trainer rank with a GPU: its share of its node's CPUs. None
        without a GPU, where engines and workers compute on the same CPUs."""
        if not rank.gpus:
            return None
        neighbours = sum(neighbour.bundle == rank.bundle for neighbour in self.trainer)
        return max(1, int(self.nodes[rank.bundle].cpus) // neighbours)

    def gpus_of(self, bundle: int) -> int:
        """Returns how many GPUs to reserve on a node: up to the highest number in use."""
        return max(self._used(bundle), default=-1) + 1

    def with_renumbered_gpus(self) -> "Placement":
        """Returns the placement with each node's used GPUs numbered from 0, so that only those are
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
        here = (process.gpus for process in self.processes if process.bundle == bundle)
        return sorted({gpu for gpus in here for gpu in gpus})

    def names_on(self, node: Node) -> str:
        """Returns the names of a node's processes, such as "trainer 0, worker 0 to 3"."""
        return _names(process for process in self.processes if self.nodes[process.bundle] == node)

    def rows(self) -> list[tuple[str, str, str]]:
        """Returns table rows: node, GPU or CPU, the processes there."""
        return [row for bundle in range(len(self.nodes)) for row in self._rows_of(bundle)]

    def _rows_of(self, bundle: int) -> list[tuple[str, str, str]]:
        here = [process for process in self.processes if process.bundle == bundle]
        name = self.nodes[bundle].name
        rows = [
            (name, f"GPU {gpu}", _names(process for process in here if gpu in process.gpus))
            for gpu in self._used(bundle)
        ]
        on_cpu = _names(process for process in here if not process.gpus)
        return [*rows, (name, "CPU", on_cpu)] if on_cpu else rows


@dataclass(frozen=True)
class ResourceRequest:
    """The processes and devices that a config requests; `place_processes` decides None and "auto".
    A run that `generates` has engines if it `samples`, and workers unless clients run its
    episodes."""

    colocated: bool
    nnodes: int = 1
    n_gpus_per_node: int | Literal["auto"] = "auto"
    trains: bool = True
    generates: bool = True
    samples: bool = True
    clients_run_episodes: bool = False
    n_trainer_ranks: int | None = None
    n_engines: int | None = None
    tensor_parallel: int = 1
    in_process: bool = False
    sequence_parallel: int = 1
    trainer_devices: Sequence[int] | None = None
    engine_devices: Sequence[int] | None = None
    num_workers: int | None = None
    max_episodes: int = 64

    @classmethod
    def from_config(cls, config: AjetConfig) -> "ResourceRequest":
        trainer, rollout = config.ajet.trainer_common, config.ajet.rollout
        mode = config.trinity.mode if config.ajet.backbone == "trinity" else "colocate"
        # A run that computes on the CPU does not reserve GPUs that others could use.
        uses_cpu = trainer.n_gpus_per_node == "auto" and config.ajet.model.device == "cpu"
        return cls(
            colocated=mode == "colocate",
            nnodes=trainer.nnodes,
            n_gpus_per_node=0 if uses_cpu else trainer.n_gpus_per_node,
            trains=mode not in WITHOUT_TRAINER,
            generates=mode != "train",
            samples=config.samples,
            clients_run_episodes=config.clients_run_episodes,
            n_trainer_ranks=trainer.n_trainer_ranks,
            n_engines=rollout.n_vllm_engine,
            tensor_parallel=rollout.tensor_model_parallel_size,
            in_process=rollout.name == "in_process",
            sequence_parallel=trainer.ulysses_sequence_parallel_size,
            trainer_devices=trainer.device_mapping,
            engine_devices=rollout.device_mapping,
            num_workers=rollout.agent.num_workers,
            max_episodes=rollout.max_env_worker,
        )


def place(config: AjetConfig, nodes: Sequence[Node]) -> Placement:
    return place_processes(ResourceRequest.from_config(config), nodes)


def place_processes(request: ResourceRequest, nodes: Sequence[Node]) -> Placement:
    """Places the processes of a run on these nodes; raises ConfigError if they do not fit. Without
    GPUs, ranks and engines are CPU processes."""
    used = _choose_nodes(request, nodes)
    devices = [(bundle, gpu) for bundle, node in enumerate(used) for gpu in range(node.gpus)]
    if devices:
        trainer, engines = _on_gpus(request, devices)
    else:
        trainer, engines = _on_cpus(request, len(used))
    if len(trainer) % request.sequence_parallel:
        raise ConfigError(
            f"{SEQUENCE}={request.sequence_parallel} does not divide the "
            f"{_count(len(trainer), 'trainer rank')}; choose a divisor",
            code=Code.PARALLEL_SIZE,
        )
    workers = _workers(request, used)
    return _with_cpu_shares(Placement(tuple(used), trainer, engines, workers))


def configured_nodes(
    trainer: TrainerConfig,
    here: Node,
    nnodes: int | None = None,
    gpus: int | None = None,
    memory: float = 0.0,
) -> list[Node]:
    """Describes the nodes that a config requests, or `nnodes` of `gpus` and `memory` GiB each. The
    missing numbers are taken from `here`, this machine."""
    requested = here.gpus if trainer.n_gpus_per_node == "auto" else trainer.n_gpus_per_node
    gpus_per_node = requested if gpus is None else gpus
    cores = max(here.cpus, CORES_PER_GPU * gpus_per_node)
    # A laptop's memory says nothing about the memory of GPU nodes.
    memory = memory or (here.memory if here.gpus and gpus is None else 0.0)
    numbers = range(nnodes or trainer.nnodes)
    return [Node(f"node {index}", cores, gpus_per_node, memory=memory) for index in numbers]


def _choose_nodes(request: ResourceRequest, nodes: Sequence[Node]) -> list[Node]:
    """Returns the `nnodes` nodes with the most GPUs, in their order, each with the GPUs that the
    run uses."""
    gpus_per_node = request.n_gpus_per_node
    if len(nodes) < request.nnodes:
        raise TooFewGpus(
            f"ajet.trainer_common.nnodes={request.nnodes}: the cluster has "
            f"{_count(len(nodes), 'node')}; add nodes or lower it"
        )
    by_gpus = sorted(range(len(nodes)), key=lambda index: -nodes[index].gpus)
    used = [nodes[index] for index in sorted(by_gpus[: request.nnodes])]
    if gpus_per_node == "auto":
        return used
    for node in used:
        if node.gpus < gpus_per_node:
            raise TooFewGpus(
                f"ajet.trainer_common.{GPUS_PER_NODE}={gpus_per_node}: {node.name} has "
                f"{_count(node.gpus, 'GPU')}; lower it, or leave it out to use all GPUs"
            )
    return [replace(node, gpus=gpus_per_node) for node in used]


def _on_gpus(
    request: ResourceRequest, devices: list[tuple[int, int]]
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    for_trainer = _devices_of(request.trainer_devices, devices, TRAINER_MAP)
    for_engines = _devices_of(request.engine_devices, devices, ENGINE_MAP)
    if request.generates and request.in_process and request.tensor_parallel > 1:
        raise ConfigError(
            f"{PARALLEL}={request.tensor_parallel}: the in-process engine computes on one GPU; "
            "leave it at 1, or set ajet.rollout.name to vllm or sglang",
            code=Code.PARALLEL_SIZE,
        )
    if not request.samples:
        return _ranks(request, for_trainer or devices) if request.trains else (), ()
    if not request.trains:
        free = for_engines or _remaining_devices(
            devices, for_trainer, TRAINER_MAP, "engines", ENGINE_MAP
        )
        of_both = for_engines is None and for_trainer is not None
        return (), _engines(request, free, from_the_end=of_both)
    if not request.generates:
        free = for_trainer or _remaining_devices(
            devices, for_engines, ENGINE_MAP, "trainer", TRAINER_MAP
        )
        return _ranks(request, free), ()
    if request.colocated:
        trainer = for_trainer or for_engines or devices
        return _ranks(request, trainer), _engines(request, for_engines or trainer)
    return _side_by_side(request, devices, for_trainer, for_engines)


def _remaining_devices(
    devices: list[tuple[int, int]],
    other_devices: list[tuple[int, int]] | None,
    others_key: str,
    role: str,
    key: str,
) -> list[tuple[int, int]]:
    """Returns the devices that the run's other command (trainer or explorer) does not use."""
    remaining = [device for device in devices if device not in (other_devices or ())]
    if not remaining:
        raise TooFewGpus(
            f"{others_key} takes all {len(devices)} GPUs and leaves the {role} none: shorten it, "
            f"or set {key} (on another machine GPUs are numbered from 0, too)"
        )
    return remaining


def _side_by_side(
    request: ResourceRequest,
    devices: list[tuple[int, int]],
    for_trainer: list[tuple[int, int]] | None,
    for_engines: list[tuple[int, int]] | None,
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    """Gives engines and trainer separate GPUs: by default the engines get the last ones and the
    trainer the rest."""
    both = sorted({*(for_trainer or ())} & {*(for_engines or ())})
    if both:
        raise TooFewGpus(
            f"{TRAINER_MAP} and {ENGINE_MAP} share GPU {devices.index(both[0])}: backbone trinity "
            "keeps them apart; choose others, or set trinity.mode=colocate"
        )
    if for_engines is None:
        free = [device for device in devices if device not in (for_trainer or ())]
        _check_gpu_count(request, len(devices), len(free), has_trainer=for_trainer is not None)
        engine_request = (
            request if for_trainer else replace(request, n_engines=request.n_engines or 1)
        )
        engines = _engines(engine_request, free, from_the_end=True)
    else:
        engines = _engines(request, for_engines)
    engine_devices = for_engines or [
        (engine.bundle, gpu) for engine in engines for gpu in engine.gpus
    ]
    rest = for_trainer or [device for device in devices if device not in engine_devices]
    if not rest:
        raise TooFewGpus(
            f"{ENGINE_MAP} takes all {len(devices)} GPUs and leaves the trainer none: shorten it, "
            "or set trinity.mode=colocate or --backbone verl, where they share GPUs"
        )
    return _ranks(request, rest), engines


def _check_gpu_count(request: ResourceRequest, total: int, free: int, *, has_trainer: bool) -> None:
    """Raises ConfigError if there are too few GPUs for engines and a trainer."""
    engines, size = request.n_engines or 1, request.tensor_parallel
    if engines * size + (not has_trainer) <= free:
        return
    raise TooFewGpus(
        f"too few GPUs: {_count(engines, 'engine')} of {_count(size, 'GPU')} ({ENGINES}, "
        f"{PARALLEL}) and the trainer need {engines * size + max(1, total - free)}, there "
        f"{'is' if total == 1 else 'are'} {total}; with --backbone verl they share them"
    )


def _engines(
    request: ResourceRequest, devices: list[tuple[int, int]], *, from_the_end: bool = False
) -> tuple[Process, ...]:
    """Gives each engine `tensor_parallel` GPUs of one node. By default there are as many engines as
    fit."""
    size = request.tensor_parallel
    by_node: dict[int, list[int]] = {}
    for bundle, gpu in devices:
        by_node.setdefault(bundle, []).append(gpu)
    for gpus in by_node.values():
        if request.n_engines is None and len(gpus) % size:
            raise ConfigError(
                f"{PARALLEL}={size} does not divide the {_count(len(gpus), 'GPU')} of a node, and "
                f"an engine is within one node; choose a divisor, or set {ENGINES}",
                code=Code.PARALLEL_SIZE,
            )
    # If some GPUs of a node stay unused, they are the first ones when engines come from the end.
    groups = [
        (bundle, tuple(gpus[start : start + size]))
        for bundle, gpus in by_node.items()
        for start in range(len(gpus) % size if from_the_end else 0, len(gpus) - size + 1, size)
    ]
    num_engines = len(groups) if request.n_engines is None else request.n_engines
    if num_engines > len(groups):
        raise TooFewGpus(
            f"{ENGINES}={num_engines} of {_count(size, 'GPU')} ({PARALLEL}): only {len(groups)} "
            f"fit on {_count(len(devices), 'GPU')} of {_count(len(by_node), 'node')}; lower one of "
            "them"
        )
    chosen = groups[::-1][:num_engines] if from_the_end else groups[:num_engines]
    return tuple(
        Process("engine", index, bundle, gpus) for index, (bundle, gpus) in enumerate(chosen)
    )


def _ranks(request: ResourceRequest, devices: list[tuple[int, int]]) -> tuple[Process, ...]:
    """Places one rank on each GPU, in their order."""
    num_ranks = len(devices) if request.n_trainer_ranks is None else request.n_trainer_ranks
    if num_ranks > len(devices):
        raise TooFewGpus(
            f"{RANKS}={num_ranks}: the trainer has {_count(len(devices), 'GPU')}, and a rank needs "
            "one; lower it or leave it out"
        )
    return tuple(
        Process("trainer", rank, bundle, (gpu,))
        for rank, (bundle, gpu) in enumerate(devices[:num_ranks])
    )


def _on_cpus(
    request: ResourceRequest, num_nodes: int
) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
    for key, devices in (
        (TRAINER_MAP, request.trainer_devices),
        (ENGINE_MAP, request.engine_devices),
    ):
        if devices:
            raise TooFewGpus(f"{key} names GPUs, and the run's nodes have none; leave it out")
    if request.tensor_parallel > 1:
        raise ConfigError(
            f"{PARALLEL}={request.tensor_parallel}: there is no GPU, and on CPU an engine is one "
            "process; leave it at 1",
            code=Code.PARALLEL_SIZE,
        )
    ranks = (request.n_trainer_ranks or 1) if request.trains else 0
    engines = (request.n_engines or 1) if request.generates and request.samples else 0
    return _spread("trainer", ranks, num_nodes), _spread("engine", engines, num_nodes)


def _spread(role: Role, count: int, num_nodes: int) -> tuple[Process, ...]:
    """Spreads processes evenly over the nodes, consecutive ones on the same node."""
    return tuple(Process(role, index, index * num_nodes // count) for index in range(count))


def _workers(request: ResourceRequest, nodes: Sequence[Node]) -> tuple[Process, ...]:
    if not request.generates or request.clients_run_episodes:
        return ()
    cores = int(sum(node.cpus for node in nodes))
    num_workers = request.num_workers or min(MAX_WORKERS, max(1, cores // 2))
    # A worker runs at least one episode at a time, so more workers than slots would be idle.
    return _spread("worker", min(num_workers, request.max_episodes), len(nodes))


def _with_cpu_shares(placement: Placement) -> Placement:
    """Gives each process one core, or an equal share if its node has fewer cores."""

    def share(process: Process) -> Process:
        num_processes = sum(neighbour.bundle == process.bundle for neighbour in placement.processes)
        cores = placement.nodes[process.bundle].cpus / num_processes
        # Rounded down to what Ray counts: shares rounded up would not fit into the bundle.
        steps = int(min(1.0, cores) / SMALLEST_SHARE)
        return replace(process, cpus=max(1, steps) * SMALLEST_SHARE)

    return replace(
        placement,
        trainer=tuple(map(share, placement.trainer)),
        engines=tuple(map(share, placement.engines)),
        workers=tuple(map(share, placement.workers)),
    )


def _devices_of(
    numbers: Sequence[int] | None, devices: list[tuple[int, int]], key: str
) -> list[tuple[int, int]] | None:
    """Returns the GPUs of a device list, in the order of the nodes, or None without a list. The
    list numbers all GPUs from 0 over the nodes; a device is a pair (bundle, GPU): the index of a
    node, and a number within the node."""
    if numbers is None:
        return None
    if max(numbers) >= len(devices):
        raise TooFewGpus(
            f"{key} names GPU {max(numbers)}: the run has {_count(len(devices), 'GPU')}, numbered "
            "from 0 over its nodes (nnodes, n_gpus_per_node)"
        )
    return [devices[number] for number in sorted(numbers)]


def _names(processes: Iterable[Process]) -> str:
    """Returns the names of processes, such as "trainer 0, engine 0, worker 0 to 3"."""
    by_role: dict[str, list[int]] = {}
    for process in processes:
        by_role.setdefault(process.role, []).append(process.index)
    return ", ".join(f"{role} {_range(indices)}" for role, indices in by_role.items())


def _range(indices: list[int]) -> str:
    is_range = list(range(indices[0], indices[-1] + 1)) == indices
    if len(indices) > 1 and is_range:
        return f"{indices[0]} to {indices[-1]}"
    return " and ".join(map(str, indices))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
