"""What Prometheus reads of the operator."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rljob_operator.endpoints import Metrics
from simulator.world import World


def samples(metrics: Metrics) -> Iterator[Sample]:
    for family in text_string_to_metric_families(metrics.text().decode()):
        yield from family.samples


def samples_of(world: World) -> Iterator[Sample]:
    """With all that happened in the world so far."""
    world.feed.deliver()
    return samples(Metrics(world.feed.cache, {}, lambda: 0.0, {}))
