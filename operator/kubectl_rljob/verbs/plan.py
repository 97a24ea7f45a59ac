"""Check a manifest before it is applied."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import click

from kubectl_rljob import errors, inputs, options
from kubectl_rljob.errors import UserError
from kubectl_rljob.inputs import adapter_config, model_config
from kubectl_rljob.leaving import Leaving, expected
from kubectl_rljob.options import Session, output, verb
from kubectl_rljob.planning import NETWORK, Plan
from kubectl_rljob.preview import Read, Site, preview
from kubectl_rljob.printers import data, suggestions
from kubectl_rljob.printers import plan as page
from kubectl_rljob.printers.plan_data import dump
from kubectl_rljob.splitting import better_split
from kubectl_rljob.suggesting import elsewhere
from kubectl_rljob.suggesting import suggest as search_layouts
from rljob_api.manifest import Manifest
from rljob_api.policy import DEFAULT_POLICY, JobPolicy
from rljob_api.sizing import devices
from rljob_api.sizing.devices import DEVICES, RATES, Gpu
from rljob_api.sizing.network import Cards, cards
from rljob_api.sizing.shape import Shape
from rljob_api.sizing.training import Machine
from rljob_api.status_parts import PlacementStatus
from rljob_placement.cluster import OCCUPYING, essential
from rljob_placement.devices import API, KINDS, NOT_SERVED, Devices


@verb()
@options.filename("manifest with one or more RLJobs; - reads standard input")
@click.option(
    "--model",
    metavar="DIR|FILE|ORG/NAME",
    help="model, by its directory, its config.json, or its name on the hub: checks heads and layers too, and estimates memory per GPU",
)
@click.option(
    "--adapters",
    metavar="DIR|FILE|ORG/NAME",
    help="adapters that the job begins from (spec.model.lora.path), by their directory, its adapter_config.json, or their name on the hub: "
    "checks that they fit spec.model.lora",
)
@click.option(
    "--model-of",
    "models_of",
    multiple=True,
    metavar="ROLE=DIR|FILE|ORG/NAME",
    help="model of a pool, or of a critic, reference or reward model on a gang of its own: estimates its memory too, for example "
    "`judge=Qwen/Qwen3-32B`; may be repeated",
)
@click.option(
    "--gpu",
    metavar="NAME|SIZE",
    help=f"GPU to check against, for example h100 or 96Gi: compares each phase of a step with its memory ({', '.join(DEVICES)}; "
    "default: what the labels of the cluster's nodes say)",
)
@click.option(
    "--network",
    metavar="RATE",
    help="network cards of a node, for example 400g, or 8x400g for eight of 400 Gbit/s: shows the least seconds of a sync and of a batch",
)
@click.option(
    "--suggest",
    is_flag=True,
    help="in place of the plan, show layouts in which the job fits, for its numbers of nodes and GPUs, the fastest first by a model of their speed "
    f"(needs --model and --gpu; --network is {NETWORK} unless given)",
)
@options.settings(
    "set a field of the spec of every job, as a YAML value, before it is checked, for example `train.steps=500`; may be repeated"
)
@click.option("--offline", is_flag=True, help="do not contact the cluster: leave out its defaults and the placement")
@options.operator_namespace
@output
def plan(
    session: Session,
    filename: str,
    model: str | None,
    adapters: str | None,
    models_of: tuple[str, ...],
    gpu: str | None,
    network: str | None,
    suggest: bool,
    settings: tuple[str, ...],
    offline: bool,
    operator_namespace: str,
    output: str | None,
) -> None:
    """Check a manifest before it is applied.

    Ranks, layout, batches, what the cluster's defaults add, pods, GPUs, memory, placement on the cluster as it is
    now, and every broken rule at once. Exit code 1 when a rule is broken, or the job does not fit; 0 for a valid job,
    also for one that may not fit by the estimate alone, which the last line says.
    """
    config, device = model_config(model) if model else None, _device(gpu, model) if gpu else None
    others = _others(models_of, model)
    given = adapter_config(adapters) if adapters else None
    manifests = inputs.read(filename, settings)
    policy, unread = (DEFAULT_POLICY, "") if offline else session.job_policy(operator_namespace)
    between = _cards(network or NETWORK) if network or suggest else None
    planned = partial(
        Plan.of,
        model=config,
        policy=policy,
        unread=unread,
        device=device,
        others=others,
        adapters=given,
        cards=between,
    )
    plans = [planned(m) for m in manifests]
    _require_roles(others, plans)
    _require_adapters(adapters, plans)
    read = cache(partial(_read, session))
    if not gpu and not offline:
        plans = [_on_cluster(p, read) for p in plans]
    if suggest and not any(p.spec is None or elsewhere(p.violations) for p in plans):
        _suggest(session, list(zip(manifests, plans, strict=True)), planned, output)
        return
    pages = [
        (
            p,
            preview(p, _site(session, policy, m, read), offline),
            expected(p, Leaving() if offline else _measured(session, m)),
        )
        for p, m in zip(plans, manifests, strict=True)
    ]
    if output:
        dumps = [dump(p) | {"placement": where.dump(), "leaving": leaving.dump()} for p, where, leaving in pages]
        session.terminal.data(data.render(dumps, output))
    else:
        session.terminal.show("\n\n".join(page.page(*parts) for parts in pages))
    if any(p.violations or p.misfits() for p in plans):
        raise click.exceptions.Exit(errors.REFUSED)


def _suggest(
    session: Session, jobs: Sequence[tuple[Manifest, Plan]], planned: Callable[[Manifest], Plan], output: str | None
) -> None:
    searched = []
    for job, base in jobs:
        machine, on_gpu = _machine(base), partial(_on, base.device, planned)
        search = search_layouts(job, base, machine, on_gpu)
        split = better_split(job, base, search.suggestions[0], machine, on_gpu) if search.suggestions else None
        searched.append((base, search, split))
    if output:
        dumps = [found.dump(base.name) | ({"split": split.dump()} if split else {}) for base, found, split in searched]
        session.terminal.data(data.render(dumps, output))
    else:
        session.terminal.show("\n\n".join(suggestions.page(*found) for found in searched))
    if not all(found.suggestions for _, found, _ in searched):
        raise click.exceptions.Exit(errors.REFUSED)


def _machine(base: Plan) -> Machine:
    if base.spec and base.spec.trainer.device != "gpu":
        raise UserError(
            f"--suggest is for jobs on GPUs, and {base.name} has spec.trainer.device: {base.spec.trainer.device}"
        )
    if base.model is None or base.cards is None or base.device is None or base.device.rates is None:
        raise UserError(
            f"--suggest needs --model, and --gpu with one of {', '.join(RATES)}: a size says nothing of speed"
        )
    return Machine(base.device.rates, base.device.bytes, base.cards)


def _on(device: Gpu | None, planned: Callable[[Manifest], Plan], job: Manifest) -> Plan:
    return replace(planned(job), device=device)


def _on_cluster(plan: Plan, read: Read) -> Plan:
    """Without nodes to read, the page says so where it says where pods would go."""
    try:
        return plan.on_gpu_of(read()[0])
    except UserError:
        return plan


def _device(gpu: str, model: str | None) -> Gpu:
    if not model:
        raise UserError("--gpu needs --model, without which no memory is estimated")
    try:
        return devices.device(gpu)
    except ValueError as error:
        raise UserError(f"--gpu {gpu}: {error}") from error


def _cards(network: str) -> Cards:
    try:
        return cards(network)
    except ValueError as error:
        raise UserError(f"--network {network}: {error}") from error


def _others(models_of: tuple[str, ...], model: str | None) -> dict[str, Shape]:
    """Shapes of models by role."""
    if models_of and not model:
        raise UserError("--model-of needs --model, without which no memory is estimated")
    return dict(_other(given) for given in models_of)


def _other(given: str) -> tuple[str, Shape]:
    role, equals, where = given.partition("=")
    if not equals:
        raise UserError(f"--model-of {given}: write ROLE=MODEL, for example judge=Qwen/Qwen3-32B")
    shape = Shape.of(model_config(where))
    if shape is None:
        raise UserError(f"--model-of {given}: its config.json does not have the sizes that its memory is estimated by")
    return role, shape


def _require_roles(others: Iterable[str], plans: Sequence[Plan]) -> None:
    """Every role that was named is one of some job."""
    specs = [p.spec for p in plans if p.spec]
    roles = {role for spec in specs for role in (*spec.gangs, *(pool.name for pool in spec.pools), *spec.idle)}
    unknown = next((role for role in others if role not in roles), None)
    if specs and unknown:
        known = f"only {', '.join(sorted(roles))}" if roles else "and none at all"
        raise UserError(f"--model-of {unknown}: there is no pool and no gang of that name, {known}")


def _require_adapters(adapters: str | None, plans: Sequence[Plan]) -> None:
    """Some job begins from those that were named."""
    specs = [p.spec for p in plans if p.spec]
    if adapters and specs and not any(spec.model.lora and spec.model.lora.path for spec in specs):
        raise UserError(f"--adapters {adapters}: no job begins from adapters: none has spec.model.lora.path")


def _measured(session: Session, job: Manifest) -> Leaving:
    """Of the job of this name. Most often there is none yet; and without a cluster, the page says so where it says where pods would go."""
    try:
        cluster = session.cluster()
        live = replace(cluster, namespace=job.namespace or cluster.namespace).job(job.name)
        return Leaving.of(live.status.progress)
    except UserError:
        return Leaving()


def _site(session: Session, policy: JobPolicy, job: Manifest, read: Read) -> Site:
    def devices() -> tuple[Devices, str]:
        cluster = session.cluster()
        namespace = job.namespace or cluster.namespace
        if not cluster.serves(API):
            return Devices(problem=NOT_SERVED), namespace
        return Devices.of(*(cluster.everything(plural, api=f"apis/{API}") for plural in KINDS)), namespace

    return Site(read, devices, partial(_waiting, session), policy.pod_patch)


def _waiting(session: Session) -> list[tuple[str, PlacementStatus]]:
    try:
        jobs = session.cluster().jobs(all_namespaces=True)
        placements = [(f"{job.namespace}/{job.name}", job.status.placement) for job in jobs if not job.other_controller]
    except UserError:  # who may not read the jobs of all namespaces plans without them
        return []
    return [(name, placement) for name, placement in placements if placement and placement.reserved]


def _read(session: Session) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    cluster = session.cluster()
    return list(cluster.everything("nodes")), [essential(pod) for pod in cluster.everything("pods", OCCUPYING)]
