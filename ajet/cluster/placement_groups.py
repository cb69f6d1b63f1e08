"""A placement in Ray's terms: one bundle of a placement group a node, options for every actor.

    with reserved(session, placement) as reservation:
        actor = Rank.options(**reservation.options(process)).remote(…)

A bundle reserves a node's cores and GPUs for the run. Which GPU an actor sees is said by
CUDA_VISIBLE_DEVICES, since Ray cannot give two actors the same one and a third another; the numbers
are those that Ray reserved, in their order. Not covered: the actors (trainer_group.py, …).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ajet.cluster.placement import SMALLEST_SHARE, Placement, Process
from ajet.core.errors import ConfigError

READY_WITHIN_S = 120.0
OWN_DEVICES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


@dataclass(frozen=True)
class Reservation:
    """A placement whose bundles are this run's."""

    group: Any
    gpu_ids: tuple[tuple[str, ...], ...]
    environment: Mapping[str, str]

    def options(self, process: Process, **more: Any) -> dict[str, Any]:
        """For `Actor.options(**…)`: where, cores, GPUs; `more` is the actor's own."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        seen = ",".join(self.gpu_ids[process.bundle][gpu] for gpu in process.gpus)
        env = {**self.environment, **OWN_DEVICES, "CUDA_VISIBLE_DEVICES": seen}
        place = PlacementGroupSchedulingStrategy(
            placement_group=self.group,
            placement_group_bundle_index=process.bundle,
            placement_group_capture_child_tasks=False,
        )
        return {
            "num_cpus": process.cpus,
            "num_gpus": 0,
            "scheduling_strategy": place,
            "runtime_env": {"env_vars": env},
            **more,
        }


@contextmanager
def reserved(
    placement: Placement, environment: Mapping[str, str], within_s: float = READY_WITHIN_S
) -> Iterator[Reservation]:
    """The placement's cores and GPUs, until the block ends; `environment` is every process's."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group(
        bundles(placement),
        strategy="STRICT_SPREAD" if len(placement.nodes) > 1 else "STRICT_PACK",
        bundle_label_selector=[{"ray.io/node-id": node.ray_id} for node in placement.nodes],
    )
    try:
        if not group.wait(within_s):
            raise ConfigError(_not_free(placement, within_s))
        ids = [_gpu_ids(group, bundle, placement) for bundle in range(len(placement.nodes))]
        yield Reservation(group, tuple(ids), dict(environment))
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def bundles(placement: Placement) -> list[dict[str, float]]:
    """Cores and GPUs of each node that the run uses."""
    return [_bundle(placement, index) for index in range(len(placement.nodes))]


def _bundle(placement: Placement, index: int) -> dict[str, float]:
    cpus = sum(each.cpus for each in placement.processes if each.bundle == index)
    gpus = placement.gpus_of(index)
    bundle = {"CPU": round(max(cpus, SMALLEST_SHARE), 4)}
    return bundle | {"GPU": float(gpus)} if gpus else bundle


def _gpu_ids(group: Any, bundle: int, placement: Placement) -> tuple[str, ...]:
    """The GPUs that Ray reserved in a bundle, by asking a process that has them all."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    count = placement.gpus_of(bundle)
    if not count:
        return ()
    place = PlacementGroupSchedulingStrategy(group, bundle)
    asked = ray.remote(_visible).options(num_cpus=0, num_gpus=count, scheduling_strategy=place)
    return tuple(sorted(ray.get(asked.remote()), key=lambda name: (len(name), name)))


def _visible() -> list[str]:
    import ray

    return [str(name) for name in ray.get_gpu_ids()]


def _not_free(placement: Placement, within_s: float) -> str:
    wanted = "; ".join(
        f"{node.name}: {bundle['CPU']:g} cores, {bundle.get('GPU', 0):g} GPUs"
        for node, bundle in zip(placement.nodes, bundles(placement), strict=True)
    )
    return (
        f"the cluster has not been free for this run within {within_s:.0f} s ({wanted}); other "
        "runs hold it: `ray status` says what is used"
    )
