"""Reserves a placement as a Ray placement group: one bundle for each node, options for each actor.

    with reserve(placement, environment) as reservation:
        actor = Rank.options(**reservation.options(process)).remote(…)

A bundle reserves a node's cores and GPUs for the run. CUDA_VISIBLE_DEVICES sets which GPUs an actor
sees, since Ray cannot make two actors share one GPU and give another to a third; the numbers are
those that Ray reserved, in their order. Not covered: the actors (trainer_group.py, …).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ajet.cluster.placement import SMALLEST_SHARE, Placement, Process
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

RESERVE_TIMEOUT_S = 120.0
OWN_DEVICES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


@dataclass(frozen=True)
class Reservation:
    """A placement whose bundles are reserved for this run."""

    group: Any
    gpu_ids: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]

    def options(self, process: Process, **more: Any) -> dict[str, Any]:
        """Returns arguments for `Actor.options(**…)`: node, cores and GPUs of the process, and
        `more` as it is."""
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
    """Reserves the placement's cores and GPUs until the block ends; every process gets the
    variables of `environment`."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group(
        bundles(placement),
        strategy="STRICT_SPREAD" if len(placement.nodes) > 1 else "STRICT_PACK",
        bundle_label_selector=[{"ray.io/node-id": node.ray_id} for node in placement.nodes],
    )
    try:
        if not group.wait(timeout_s):
            raise ConfigError(_not_free_message(placement, timeout_s), code=Code.TOO_FEW_GPUS)
        ids = [_gpu_ids(group, bundle, placement) for bundle in range(len(placement.nodes))]
        yield Reservation(group, tuple(ids), dict(environment))
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def bundles(placement: Placement) -> list[dict[str, float]]:
    """Returns the cores and GPUs to reserve on each node."""
    return [_bundle(placement, index) for index in range(len(placement.nodes))]


def _bundle(placement: Placement, index: int) -> dict[str, float]:
    cpus = sum(each.cpus for each in placement.processes if each.bundle == index)
    gpus = placement.gpus_of(index)
    bundle = {"CPU": round(max(cpus, SMALLEST_SHARE), 4)}
    return bundle | {"GPU": float(gpus)} if gpus else bundle


def _gpu_ids(group: Any, bundle: int, placement: Placement) -> tuple[str, ...]:
    """Returns the GPUs that Ray reserved in a bundle, as a task that has all of them sees them."""
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


def _not_free_message(placement: Placement, timeout_s: float) -> str:
    wanted = "; ".join(
        f"{node.name}: {bundle['CPU']:g} cores, {bundle.get('GPU', 0):g} GPUs"
        for node, bundle in zip(placement.nodes, bundles(placement), strict=True)
    )
    return (
        f"the cluster has not been free for this run within {timeout_s:.0f} s ({wanted}); other "
        "runs hold it: `ray status` says what is used"
    )
