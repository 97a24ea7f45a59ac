"""The ways to cut a rollout server's model over the GPUs that the server has, and what each leaves for keys and values: tensor and pipeline
parallelism, and data-parallel attention with expert parallelism. `plan` chooses none of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from rljob_api.rules.validator import broken_rules
from rljob_api.sizing.layout import divisors
from rljob_api.sizing.memory import cache_memory, rollout_memory
from rljob_api.sizing.network import generation
from rljob_api.sizing.replica import longest_context
from rljob_api.sizing.shape import Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.processes import Servers

SHOWN = 10
"""Ways that are shown, at most."""
Sizes = tuple[int, int, int]
"""Tensor, pipeline and data parallelism."""


@dataclass(frozen=True, slots=True)
class ServerWay:
    """One cut, with the number of pods and GPUs that the job's servers have."""

    servers: Servers
    own: bool
    """It is the job's."""
    weights: float
    """Bytes of them on the GPU that has most."""
    cached: float
    """Bytes of a GPU for keys and values, at most. Negative: the weights do not fit."""
    tokens: float
    """For which a server has room."""
    longest: int
    """Tokens of one sample."""
    fits: bool
    """By the estimate, one sample at least."""
    sent: float
    """Bytes out of one pod of a server to its others in a step, at most."""

    @property
    def name(self) -> str:
        """As layouts of trainers are called."""
        sizes = self.servers.tensor_parallel, self.servers.pipeline_parallel, self.servers.data_parallel
        return _name(sizes) + "-ep" * self.servers.expert_parallel

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of spec.rollout that make a job have it."""
        return self.servers.model_dump(by_alias=True)

    def dump(self) -> dict[str, Any]:
        sizes = {name: round(getattr(self, name)) for name in ("weights", "cached", "tokens", "sent")}
        return {"name": self.name, "settings": self.settings, "own": self.own, "fits": self.fits, **sizes}


class Refused(NamedTuple):
    """Ways that a rule refuses."""

    names: tuple[str, ...]
    field: str
    rule: str


@dataclass(frozen=True, slots=True)
class ServerWays:
    """Those of a job's servers, most room for tokens first."""

    accepted: tuple[ServerWay, ...]
    """That break no rule, the job's own among them; SHOWN at most."""
    more: int
    """Accepted ones with less room that are left out."""
    refused: tuple[Refused, ...]
    """Those that break a rule, by the first one that they break."""


def ways(spec: RLJobSpec, shape: Shape, config: dict[str, Any], device: float) -> ServerWays | None:
    """On GPUs of `device` bytes, of a spec that breaks no rule. None: there is only the job's own."""
    accepted, refused = dict[Sizes, ServerWay](), dict[Sizes, tuple[str, str]]()
    for sizes, changed in _cuts(spec):
        broken = next(broken_rules(changed, config), None)
        if broken:
            refused.setdefault(sizes, (broken.field, broken.rule))
        elif sizes not in accepted:
            accepted[sizes] = _way(spec, changed, shape, device)
    if len(accepted) < 2:
        return None
    ranked = sorted(accepted.values(), key=lambda way: (way.own, way.tokens, -way.sent), reverse=True)
    shown = sorted(ranked[:SHOWN], key=lambda way: (-way.tokens, way.sent))
    left = {sizes: rule for sizes, rule in refused.items() if sizes not in accepted}
    return ServerWays(tuple(shown), len(ranked) - len(shown), tuple(_by_rule(left)))


def _by_rule(refused: Mapping[Sizes, tuple[str, str]]) -> Iterator[Refused]:
    for field, rule in sorted({*refused.values()}):
        yield Refused(tuple(_name(sizes) for sizes, broken in refused.items() if broken == (field, rule)), field, rule)


def _name(sizes: Sizes) -> str:
    return "-".join(f"{letters}{size}" for letters, size in zip(("tp", "pp", "dp"), sizes, strict=True) if size > 1)


def _cuts(spec: RLJobSpec) -> Iterator[tuple[Sizes, RLJobSpec]]:
    """The job with as many GPUs of a server cut otherwise. Whole experts and parts of them are as many bytes: the job's own choice comes first."""
    gpus, own = spec.rollout.gpus, spec.rollout.expert_parallel
    for tensor, pipeline in product(divisors(gpus), repeat=2):
        copies, rest = divmod(gpus, tensor * pipeline)
        if not copies or rest:
            continue
        for experts in (own, not own):
            sizes = {"tensor_parallel": tensor, "pipeline_parallel": pipeline, "data_parallel": copies}
            rollout = spec.rollout.model_copy(update=sizes | {"expert_parallel": experts})
            yield (tensor, pipeline, copies), spec.model_copy(update={"rollout": rollout})


def _way(job: RLJobSpec, spec: RLJobSpec, shape: Shape, device: float) -> ServerWay:
    servers = Servers.model_validate({name: getattr(spec.rollout, name) for name in Servers.model_fields})
    memory = cache_memory(spec, shape, device)
    return ServerWay(
        servers,
        own=spec.rollout == job.rollout,
        weights=rollout_memory(spec, shape).weights,
        cached=memory.there,
        tokens=memory.tokens,
        longest=longest_context(spec),
        fits=memory.holds_a_sample(spec),
        sent=generation(spec, shape).sent,
    )
