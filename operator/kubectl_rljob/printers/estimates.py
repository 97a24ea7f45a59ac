"""What the GPUs and hosts of a job have to hold, in GiB, and what crosses the network cards of the busiest node."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from kubectl_rljob import gib
from kubectl_rljob.fitting import ROOM, SMALLEST, refused, tight
from kubectl_rljob.planning import Estimate
from kubectl_rljob.printers.text import plural, table
from kubectl_rljob.sharing import Sharing
from kubectl_rljob.ways import ServerWay, ServerWays
from rljob_api.sizing.devices import Gpu
from rljob_api.sizing.host import HostMemory
from rljob_api.sizing.memory import CacheMemory, PhaseMemory
from rljob_api.sizing.network import Cards, Flow
from rljob_api.sizing.replica import Arrival, RolloutHost
from rljob_api.sizing.speed import Speed
from rljob_api.sizing.volume import VolumeSpace
from rljob_api.spec import RLJobSpec


def parts(estimates: Sequence[Estimate]) -> str:
    """By what holds them, at the moment when most is held."""
    columns = dict.fromkeys(part for e in estimates for part in e.parts if any(e.parts.get(part) for e in estimates))
    rows = [(e.role, *gib.row([e.parts.get(c, 0.0) for c in columns])) for e in estimates]
    return table(("GIB PER GPU", *map(_title, columns), "TOTAL"), rows)


def _title(part: str) -> str:
    return part.replace("_", " ").upper()


NOTES = {
    "outside": "OUTSIDE: what processes hold outside of tensors, such as CUDA's contexts",
    "buckets": "BUCKETS: weights on their way to servers",
}
OF_STAGES = "a row is of the pipeline stage that then holds most"


def by_phase(phases: Sequence[PhaseMemory], device: Gpu, stages: int) -> str:
    """Of a trainer's GPU, at the moment of each phase when most is held, whose GPU that is, and the verdict."""
    held = [asdict(p.parts) for p in phases]
    columns = [part for part in held[0] if any(of_phase[part] for of_phase in held)]
    rows = [(p.name, *gib.row([of_phase[c] for c in columns])) for p, of_phase in zip(phases, held, strict=True)]
    header = ("TRAINER, BY PHASE", *map(_title, columns), f"OF {gib.text(device.bytes)}")
    source = f"GPU: {device.source}\n" if device.source else ""
    notes = [NOTES[c] for c in columns if c in NOTES] + [OF_STAGES] * (stages > 1)
    what = "; ".join(["GiB per GPU of all models on a rank, when most is held", *notes])
    return f"{table(header, rows)}\n{what}\n\n{source}{_verdict(phases, device)}"


GB = 1e9
HELD = {
    "offloaded": "offload",
    "reference": "the reference",
    "checkpoint": "a checkpoint",
    "processes": "ranks and servers",
    "arriving": "the next policy",
    "snapshots": "snapshots of adapters",
}


def of_host(role: str, memory: HostMemory | RolloutHost, limit: float) -> list[str]:
    """At most one line, with the limit of a pod's container where it has one (0: none)."""
    amounts = ((getattr(memory, part, 0.0), what) for part, what in HELD.items())
    parts = [f"{gib.text(held)} for {what}" for held, what in amounts if held]
    if not parts:
        return []
    more = "" if getattr(memory, "processes", 0.0) else ", and what its processes need in any case"
    line = f"Host memory of a {role} pod: {gib.whole(memory)} GiB ({', '.join(parts)}){more}"
    if not limit:
        return [f"{line}; spec.{role}.template.resources.limits.memory is not set: a node has to have that much"]
    over = ", which is less: the pod would end with OOMKilled" if memory.total > limit else ""
    shown = f"{gib.text(limit)} GiB" if limit >= SMALLEST else f"{limit:.0f} bytes"
    return [f"{line}; limits.memory: {shown}{over}"]


def cache(memory: CacheMemory, device: Gpu | None, sharing: int) -> str:
    """One line, apart from what has to be there: a smaller cache is slower and not wrong. `sharing`: servers on each GPU."""
    of_one, size = f"each of the {sharing} servers on a GPU", "GiB"
    if sharing == 1:
        of_one, size = "a server", "GiB per GPU"
    wanted = f"{gib.text(memory.wanted)} {size} would hold all samples in flight at their longest"
    if not device:
        return f"KV cache of {of_one}: {wanted}; --gpu says how much there is"
    if memory.there <= 0:
        return (
            f"No KV cache of a server: its weights take {gib.text(-memory.there)} GiB per GPU more than vLLM may have"
        )
    return f"KV cache of {of_one}: at most {gib.text(memory.there)} {size}, {memory.tokens:,.0f} tokens; {wanted}"


def ways(of_servers: ServerWays, spec: RLJobSpec, uncertain: str) -> str:
    """A table of them, with what is left out of it. `uncertain`: why there may be more room; empty: there is not."""
    pods = f"{plural(spec.rollout.nodes, 'pod')} x {spec.rollout.processes_per_pod} GPUs"
    header = (f"WAYS OF A SERVER: {pods}", "WEIGHTS, GIB", "CACHE, GIB", "TOKENS", "GB OUT OF A POD, PER STEP", "FITS")
    rows = [
        (
            f"{way.name}{' (as the job)' if way.own else ''}",
            _cell(way.weights),
            _cell(max(0.0, way.cached)),
            f"{way.tokens:,.0f}",
            f"{way.sent / GB:,.1f}" if way.sent else "-",
            _fits(way, "may not" if uncertain else "no"),
        )
        for way in of_servers.accepted
    ]
    left = [f"    {plural(of_servers.more, 'way')} with less room"] if of_servers.more else []
    left += [f"    {', '.join(names)}: {field}, since {rule}" for names, field, rule in of_servers.refused]
    return "\n".join([table(header, rows), *(["Not shown:", *left] if left else [])])


def _fits(way: ServerWay, no: str) -> str:
    if way.fits:
        return "yes"
    return f"{no}: its weights" if way.cached <= 0 else f"{no}: a sample of {way.longest:,} tokens"


def not_counted(arguments: Mapping[str, str]) -> str:
    """One line for each argument of vLLM, for what it changes."""
    return "\n".join(["Not counted:", *(f"    {key}: {what}" for key, what in arguments.items())])


def arrival(arriving: Arrival) -> str:
    """One line: where the next policy is while the one before is served."""
    if arriving.where == "in place":
        return (
            "Rollout servers receive a new policy over the one that they serve, and pause meanwhile: "
            "limits.memory of their pods has no room for a second copy"
        )
    memory = "on the GPUs" if arriving.where == "gpu" else "in host memory"
    kept = f"next to the one that they serve, {memory}: {gib.text(arriving.copies)} GiB per pod"
    return f"Rollout servers receive a new policy {kept}"


def pool_cache(pool: str, there: float) -> str:
    if there < 0:
        return f"No KV cache of pool {pool}: its weights take {gib.text(-there)} GiB per GPU more than vLLM may have"
    return f"KV cache of pool {pool}: at most {gib.text(there)} GiB per GPU"


def _verdict(phases: Sequence[PhaseMemory], device: Gpu) -> str:
    never, hardly = (", ".join(p.name for p in chosen(phases, device)) for chosen in (refused, tight))
    if never:
        return f"Does not fit in {never}" + (f", and by the estimate not in {hardly}" if hardly else "")
    if hardly:
        return f"May not fit in {hardly}, by the estimate"
    close = ", ".join(p.name for p in phases if p.total > ROOM * device.bytes)
    return "Fits, by the estimate" + (
        f", with less than {100 * (1 - ROOM):.0f} % of the GPU to spare in {close}" if close else ""
    )


def volume(space: VolumeSpace) -> str:
    """One line, in the units of storage."""
    kinds = ((space.checkpoints, space.checkpoint, "checkpoint"), (space.exports, space.export, "export"))
    parts = [f"{plural(count, kind)} of {size / GB:,.1f} GB" for count, size, kind in kinds if count]
    if not parts:
        return "Volume: no checkpoint and no model is written to it"
    return f"Volume: {', '.join(parts)}; {space.total / GB:,.1f} GB in all, at most"


def volume_of_clients(space: VolumeSpace) -> str:
    """Of a service: the same of one model, since clients say how many there are."""
    checkpoint, snapshot = space.checkpoint / GB, space.export / GB
    return f"Volume: {checkpoint:,.1f} GB for each checkpoint of a client's model, {snapshot:,.1f} GB for each snapshot"


def _cell(size: float) -> str:
    return gib.text(size) if size else "-"


FLOWS = {
    "generation": "generation of a step",
    "sync": "a sync of the servers",
    "batch": "the hand-over of a batch",
}


def between_nodes(traffic: Mapping[str, Flow], cards: Cards | None) -> str:
    """With the least time, where the cards were named."""
    rows = [
        (
            FLOWS[name],
            f"{flow.sent / GB:,.1f}",
            f"{flow.received / GB:,.1f}",
            f"{flow.seconds(cards):.2f}" if cards else "-",
        )
        for name, flow in traffic.items()
    ]
    at = f"SECONDS AT {cards.text}" if cards else "SECONDS (--network)"
    return table(("BETWEEN NODES, GB", "OUT OF A POD", "INTO A POD", at), rows)


def step(taken: Speed, cards: str) -> str:
    """Seconds of a step by phase, and how far the model that says so was compared with measurements."""
    several = {"IN ALL": taken.seconds} if len(taken.phases) > 1 else {}
    seconds = {name.upper(): part for name, part in taken.phases.items()} | several
    header = ("STEP, SECONDS BY THE MODEL", *seconds, "TOKENS/S")
    row = (_sum(taken), *(f"{part:,.1f}" for part in seconds.values()), f"{taken.tokens_per_second:,.0f}")
    compared = "20 % for training" + (" and 25 % for generation" if taken.generate else "")
    note = (
        f"Modelled and never measured for this job, with {cards} a node, every sample at its longest, without evaluations and checkpoints.\n"
        f"On up to four GPUs of one host the model was within {compared}; nothing larger was compared (docs/sizing.md#suggested-layouts)"
    )
    return f"{table(header, [row])}\n{note}"


def shared(found: Sharing, taken: Speed) -> str:
    """What to set for two servers on each GPU, and what they would save of a step as it is."""
    seconds, settings = found.speed.seconds, (f"spec.{field}: {value}" for field, value in found.settings.items())
    return (
        f"By the same model a step takes {seconds:,.1f} s, {taken.seconds - seconds:,.1f} s less, with two servers on each GPU:\n"
        f"{', with '.join(settings)}\n(docs/sizing.md#several-servers-on-a-gpu)"
    )


def _sum(taken: Speed) -> str:
    """How the phases of a step follow each other."""
    names: list[str] = list(taken.phases)
    parallel = [name for name in names if name != "sync"]
    if not taken.overlapped or len(parallel) == 1:
        return _and(names)
    longest = "longer" if len(parallel) == 2 else "longest"
    return f"the {longest} of {_and(parallel)}" + (", and sync" if "sync" in names else "")


def _and(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
