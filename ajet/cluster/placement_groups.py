"""Reserves a placement as a Ray placement group. A bundle reserves a node's cores and GPUs for the
run; CUDA_VISIBLE_DEVICES sets which of them an actor sees, since Ray cannot make two actors share
one GPU and give another to a third.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ajet.cluster.placement import SMALLEST_SHARE, Placement, Process
from ajet.core.errors import TooFewGpus

RESERVE_TIMEOUT_S = 120.0
OWN_DEVICES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


@dataclass(frozen=True)
class Reservation:
    """A reserved placement; `gpu_ids[bundle]` are the GPUs that Ray reserved on a node."""

    group: Any
    gpu_ids: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]

    def options(self, process: Process, **more: Any) -> dict[str, Any]:
        """Returns arguments for `Actor.options(**…)`: node, cores and GPUs of the process, and
        `more`."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        visible = ",".join(self.gpu_ids[process.bundle][gpu] for gpu in process.gpus)
        env = {**self.environment, **OWN_DEVICES, "CUDA_VISIBLE_DEVICES": visible}
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.group,
            placement_group_bundle_index=process.bundle,
            placement_group_capture_child_tasks=False,
        )
        return {
            "num_cpus": process.cpus,
            "num_gpus": 0,
            "scheduling_strategy": strategy,
            "runtime_env": {"env_vars": env},
            **more,
        }


@contextmanager
def reserve(
    placement: Placement, environment: Mapping[str, str], timeout_s: float = RESERVE_TIMEOUT_S
) -> Iterator[Reservation]:
    """Reserves the placement's cores and GPUs until the block ends. All processes get the variables
    of `environment`."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group(
        bundles(placement),
        strategy="STRICT_SPREAD" if len(placement.nodes) > 1 else "STRICT_PACK",
        bundle_label_selector=[{"ray.io/node-id": node.ray_id} for node in placement.nodes],
    )
    try:
        if not group.wait(timeout_s):
            requested = "; ".join(
                f"{node.name}: {bundle['CPU']:g} cores, {bundle.get('GPU', 0):g} GPUs"
                for node, bundle in zip(placement.nodes, bundles(placement), strict=True)
            )
            raise TooFewGpus(
                f"the cluster had no room for this run within {timeout_s:.0f} s ({requested}); "
                "other runs hold it: see `ray status`"
            )
        ids = [_gpu_ids(group, bundle, placement) for bundle in range(len(placement.nodes))]
        yield Reservation(group, tuple(ids), dict(environment))
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def bundles(placement: Placement) -> list[dict[str, float]]:
    """Returns the cores and GPUs to reserve on each node."""
    reserved = []
    for index in range(len(placement.nodes)):
        cpus = sum(process.cpus for process in placement.processes if process.bundle == index)
        bundle = {"CPU": round(max(cpus, SMALLEST_SHARE), 4)}
        if gpus := placement.gpus_of(index):
            bundle["GPU"] = float(gpus)
        reserved.append(bundle)
    return reserved


def _gpu_ids(group: Any, bundle: int, placement: Placement) -> tuple[str, ...]:
    """Returns the GPUs that Ray reserved in a bundle, by asking a task that gets all of them."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    count = placement.gpus_of(bundle)
    if not count:
        return ()
    strategy = PlacementGroupSchedulingStrategy(group, bundle)
    task = ray.remote(_visible).options(num_cpus=0, num_gpus=count, scheduling_strategy=strategy)
    return tuple(sorted(ray.get(task.remote()), key=lambda name: (len(name), name)))


def _visible() -> list[str]:
    import ray

    return [str(name) for name in ray.get_gpu_ids()]
