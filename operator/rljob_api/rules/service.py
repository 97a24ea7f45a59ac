"""A service's clients: where their keys are, and whose limits are whose."""

from collections.abc import Iterator

from rljob_api.rules.engine import Check, Rule, Violation, present, repeated, size
from rljob_api.rules.volumes import paths, volume_of
from rljob_api.spec import RLJobSpec

OBJECT_RULES = (
    Rule(
        "service.clients",
        size("service.clients").equals(0) | present("service.keys"),
        "clients are known by their keys, and without spec.service.keys all who use the service are one client",
        "set spec.service.keys, or spec.service.limits in place of this",
        value=lambda spec: ", ".join(client.name for client in spec.service.clients),
    ),
)


def keys_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """The volume with the keys of clients holds nothing that other pods read."""
    keys = spec.service.keys
    if keys is None or not spec.volumes:
        return
    volume = volume_of(spec, keys)
    if volume is None:
        yield Violation("spec.service.keys", keys, "is on none of spec.volumes", "mount the Secret that holds them")
        return
    rule = f"is on the volume of spec.service.keys, {volume.name}, which only the gateway mounts"
    for field, path in paths(spec):
        own = field == "spec.service.keys" or field.startswith("spec.volumes[")
        if not own and volume_of(spec, path) is volume:
            yield Violation(field, path, rule, "give the keys a volume of their own, of a Secret")


def client_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """A client's limits are found by its name."""
    named = [client.name for client in spec.service.clients]
    yield from repeated("spec.service.clients[{}].name", named, "every client has one entry")


RULES: tuple[Check, ...] = (*OBJECT_RULES, keys_violations, client_violations)
