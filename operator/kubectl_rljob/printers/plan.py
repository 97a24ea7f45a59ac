"""The page of `plan`: what a spec amounts to, and what is wrong with it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from kubectl_rljob.leaving import Leaving, too_short
from kubectl_rljob.planning import NETWORK, Plan, Role, Stages, roles
from kubectl_rljob.preview import Preview
from kubectl_rljob.printers import estimates, placement
from kubectl_rljob.printers.text import plural, table
from kubectl_rljob.sharing import sharing
from rljob_api import names
from rljob_api.config_json import unfit
from rljob_api.families import language_of, targets_of
from rljob_api.rules import Violation
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.sizing.replica import longest_context
from rljob_api.spec import RLJobSpec
from rljob_api.spec.job import Task
from rljob_api.spec.model import LoraSpec
from rljob_api.type_errors import as_written

MODEL_KEYS = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key-value heads",
    "hidden_size": "wide",
    "vocab_size": "tokens",
}
NOUNS: Mapping[Task, tuple[str, str]] = {
    "rl": ("prompt", "sample"),
    "sft": ("conversation", "conversation"),
    "dpo": ("pair", "sequence"),
    "rewardModel": ("pair", "sequence"),
    "pretrain": ("sequence", "sequence"),
}
"""What is drawn from the data, and what is made of it and counted as a sample (`Amounts`)."""


def page(plan: Plan, where: Preview, leaving: Leaving) -> str:
    """Amounts as far as they can be computed, then the verdict."""
    blocks = [f"RLJob {plan.name}"]
    if plan.spec is not None:
        blocks += [facts(plan, plan.spec)]
        blocks += [defaults(plan)] if plan.taken or plan.unread else []
        blocks += [
            pods(plan.spec),
            *memory(plan, plan.spec),
            *servers(plan, plan.spec),
            *bytes_and_seconds(plan, plan.spec),
        ]
        if unpublished := images(plan.spec):
            blocks += [unpublished]
        if not plan.violations:
            outside, short = plan.outside(), [*too_short(plan.spec, leaving)]
            blocks += [elsewhere(outside)] if outside else []
            blocks += [placement.preview(where)]
            blocks += [grace(short)] if short else []
    if unusual := plan.advice():
        blocks += [advice(unusual)]
    return "\n\n".join([*blocks, verdict(plan.violations, plan.misfits(), plan.doubts())])


def facts(plan: Plan, spec: RLJobSpec) -> str:
    """How ranks and batches are divided, and what is trained."""
    cut, whole_layout = plan.stages(), not plan.breaks("spec.trainer.parallelism")
    gangs = {role: not plan.breaks(f"{spec.field_of(role)}.parallelism") for role in spec.gangs}
    named = {
        "Layout": [
            layout(spec, names.ROLE_TRAINER, whole_layout),
            *([stages(cut)] if cut else []),
            *(f"{role}: {layout(spec, role, whole)}" for role, whole in gangs.items()),
        ],
        "Batch": batch(spec, whole_layout and not plan.breaks("spec.train.miniBatches")),
        "Tokens": tokens(spec),
        "Model": [model(plan.model), *adapters(spec.model.lora, plan)],
    }
    return "\n".join(f"{f'{key}:' if not i else '':<9}{text}" for key, of in named.items() for i, text in enumerate(of))


def servers(plan: Plan, spec: RLJobSpec) -> Iterator[str]:
    """What hosts hold, and the room of servers for keys, values and the next policy."""
    if host := plan.host():
        yield from estimates.of_host("trainer", host, spec.trainer.template.memory_limit)
    if cache := plan.cache():
        yield estimates.cache(cache, plan.device, spec.rollout.servers_per_gpu)
    if ways := plan.ways():
        yield estimates.ways(ways, spec, plan.uncertain_room())
    if uncounted := plan.not_counted():
        yield estimates.not_counted(uncounted)
    if arriving := plan.arrival():
        place, held = arriving
        if place.copies or place.where == "in place":
            yield estimates.arrival(place)
        yield from estimates.of_host("rollout", held, spec.rollout.template.memory_limit)
    for pool, there in plan.pool_caches().items():
        yield estimates.pool_cache(pool, there)


def bytes_and_seconds(plan: Plan, spec: RLJobSpec) -> Iterator[str]:
    """Of the volume, between nodes, and of a step."""
    if space := plan.volume():
        yield estimates.volume_of_clients(space) if spec.task == "service" else estimates.volume(space)
    if traffic := plan.traffic():
        yield estimates.between_nodes(traffic, plan.cards)
    if taken := plan.speed():
        yield estimates.step(taken, plan.cards.text if plan.cards else NETWORK)
        if faster := sharing(plan, taken):
            yield estimates.shared(faster, taken)


def memory(plan: Plan, spec: RLJobSpec) -> list[str]:
    """What the GPUs of each role hold: one table of the trainer's, which with a known GPU is by phase, and one of all others."""
    phases, held = plan.phases(), plan.memory()
    if plan.device and phases:
        there = {names.ROLE_TRAINER} | ({names.ROLE_ROLLOUT} if spec.rollout.placement == "colocated" else set())
        others = [estimate for estimate in held if estimate.role not in there]
        return [
            estimates.by_phase(phases, plan.device, spec.trainer.parallelism.pipeline),
            *([estimates.parts(others)] if others else []),
        ]
    return [f"{estimates.parts(held)}\n--gpu shows every phase of a step on a trainer's GPU"] if held else []


def layout(spec: RLJobSpec, role: str, whole: bool) -> str:
    """How the ranks of a gang are divided, if they can be."""
    cut, ranks = Layout.of(spec, role), spec.ranks_of(role)
    sizes = f"tensor {cut.tensor} x pipeline {cut.pipeline}" + (f" x context {cut.context}" if cut.context > 1 else "")
    world = (
        f"{plural(ranks.nodes, 'pod')} x {plural(ranks.processes_per_node, 'process')} = {plural(cut.world, 'rank')}"
    )
    if not whole:
        return f"{world}, against {sizes}"
    return f"{world} = {sizes} x data {cut.data} ({cut})"


def stages(cut: Stages) -> str:
    """Layers by stage, equal neighbours together."""
    runs = [(layers, len(list(same))) for layers, same in groupby(cut.layers)]
    parts = ", ".join(f"{count} x {layers}" if count > 1 else str(layers) for layers, count in runs)
    further = ", the last with the one for multi-token prediction" if cut.further else ""
    return f"stages of {parts} layers{further}; the busiest computes {cut.imbalance:.2f} of the mean"


def model(config: dict[str, Any] | None) -> str:
    if config is None:
        return "not checked (--model checks heads and layers, and estimates memory)"
    if unfit(config):
        return "not read, for the values that are named below"
    own = language_of(config)
    known = [f"{own[key]:,} {word}" for key, word in MODEL_KEYS.items() if isinstance(own.get(key), int)]
    tower = ["a vision tower"] if "vision_config" in config else []
    kind = config.get("model_type") or "unknown type"
    return ": ".join(filter(None, (kind, ", ".join([*known, *tower]))))


def adapters(lora: LoraSpec | None, plan: Plan) -> list[str]:
    """Next to which matrices they are, where the spec may say so."""
    if lora is None or plan.breaks("spec.model.lora"):
        return []
    targets = targets_of(lora.targets, plan.model) if plan.model else lora.targets
    where = ", ".join(targets) if targets else "all that the model's family has them for"
    return [f"adapters of rank {lora.rank} next to {where}"]


def defaults(plan: Plan) -> str:
    """What the cluster's administrator has added to the manifest."""
    if plan.unread:
        return f"Defaults of the cluster: {plan.unread}"
    return table(("DEFAULT OF THE CLUSTER", "VALUE"), [(path, as_written(value)) for path, value in plan.taken.items()])


def pods(spec: RLJobSpec) -> str:
    found = roles(spec)
    total = ("total", sum(r.pods for r in found), "-", sum(r.gpus for r in found))
    return table(("ROLE", "PODS", "PROCESSES/POD", "GPUS"), [*(_of_role(r, spec) for r in found), total])


def _of_role(role: Role, spec: RLJobSpec) -> tuple[Any, ...]:
    if not role.pods:  # rollouts alone may have none
        return (f"{role.name} ({_colocated(spec)})" if spec.rollout.placement == "colocated" else role.name, 0, "-", 0)
    workers = spec.workers.get(role.name)
    fewest = f"{workers.fewest} to " if workers and workers.autoscaling else ""
    return (role.name, f"{fewest}{role.pods}", role.processes_per_pod, role.gpus)


def _colocated(spec: RLJobSpec) -> str:
    """With how many servers there are where several share a GPU."""
    servers = spec.rollout.servers_per_gpu
    where = "on each GPU" if spec.trainer.device == "gpu" else "of each rank"
    return f"colocated, {servers} servers {where}" if servers > 1 else "colocated"


def images(spec: RLJobSpec) -> str:
    """What to do about images that no node can pull; empty: there are none."""
    named = {spec.template(role).image or spec.image or "" for role in spec.pods}
    unpublished = sorted(image for image in named if image.startswith(names.UNPUBLISHED))
    return f"Image {', '.join(unpublished)}: {names.PUBLISH}" if unpublished else ""


def elsewhere(outside: Mapping[str, str]) -> str:
    named = ", ".join(f"{field} = {path}" for field, path in outside.items())
    return f"On none of spec.volumes, so that the image has to hold it: {named}"


def grace(short: Sequence[Violation]) -> str:
    """What makes the job lose a step when it has to leave its nodes."""
    lines = ["Loses the step when it has to leave its nodes:"]
    return "\n".join([*lines, *(f"    {v.field} = {v.value} {v.rule}; {v.fix}" for v in short)])


def advice(unusual: Sequence[Violation]) -> str:
    """What is no error, and most often a mistake."""
    return "\n".join(["Unusual, and no error:", *(f"    {v}" for v in unusual)])


def verdict(broken: Sequence[Violation], misfits: Sequence[Violation], doubts: Sequence[str]) -> str:
    """Whether the spec is valid, and whether the job fits, in one message."""
    if not broken and not misfits:
        return f"Valid, and by the estimate it may not fit {'; '.join(doubts)}." if doubts else "Valid."
    rules = f"{plural(len(broken), 'rule')} {'is' if len(broken) == 1 else 'are'} broken:"
    holding = rules.removesuffix(":") if broken else "Every rule holds"
    lines = [f"{holding}, and the job does not fit:" if misfits else rules]
    for v in (*broken, *misfits):
        lines += ["", f"{v.field} = {v.value}", f"    {v.rule}", f"    fix: {v.fix}"]
    return "\n".join(lines)


def batch(spec: RLJobSpec, whole: bool) -> list[str]:
    """Samples of a step; and, if they can be divided, of a mini-batch, of a data-parallel rank, of the job."""
    if spec.task == "service":
        return ["what clients send in one call"]
    if spec.evaluation.only:
        idle = [f"not started: {', '.join(spec.idle)}"] if spec.idle else []
        return ["nothing is trained, with spec.evaluation.only", *idle]
    a, t, (drawn, sample) = Amounts.of(spec), spec.train, NOUNS[spec.task]
    lines = [f"{_of(a.groups_per_step, a.group, spec)}{plural(a.samples_per_step, sample)} per step"]
    if not whole:
        return lines
    mini = f"{plural(t.mini_batches, 'mini-batch')} of {plural(a.samples_per_mini_batch, sample)}"
    groups = f" ({plural(a.groups_per_mini_batch, drawn)})" if drawn != sample else ""
    per_rank, rest = divmod(a.samples_per_mini_batch, Layout.of(spec, names.ROLE_TRAINER).data)
    share = f"{'about ' if rest else ''}{plural(per_rank, sample)}"
    return [*lines, f"{mini}{groups}, {share} per data-parallel rank", _total(spec)]


def _of(groups: int, group: int, spec: RLJobSpec) -> str:
    """`64 prompts x 8 samples = `; nothing where one is the other."""
    drawn, sample = NOUNS[spec.task]
    return f"{plural(groups, drawn)} x {plural(group, sample)} = " if drawn != sample else ""


def _total(spec: RLJobSpec) -> str:
    a, t = Amounts.of(spec), spec.train
    if t.steps is None and t.epochs is None:
        return "neither steps nor epochs say how long it trains"
    if t.steps is None or a.optimizer_steps is None:
        return f"{t.epochs:g} epoch{'' if t.epochs == 1 else 's'}; the trainer counts the data and reports the steps"
    steps = f"{plural(t.steps, 'step')}, {plural(a.optimizer_steps, 'optimizer step')}"
    return f"{steps}, {plural(t.steps * a.samples_per_step, NOUNS[spec.task][1])} in all"


def tokens(spec: RLJobSpec) -> list[str]:
    """Of a sample, a step and a micro-batch."""
    packed = f"at most {spec.train.tokens_per_micro_batch:,} per micro-batch and data-parallel rank"
    if spec.task == "service":
        return [packed]
    a, (_, sample) = Amounts.of(spec), NOUNS[spec.task]
    if spec.evaluation.only:
        longest = a.longest if spec.supervised else longest_context(spec)
        return [f"at most {longest:,} per {sample}", *([packed] if spec.supervised else [])]
    prompt, rest = spec.data.max_prompt_tokens, "turns" if spec.rollout.agent else "response"
    parts = "" if spec.supervised else f"{prompt:,} of the prompt + {a.longest - prompt:,} of the {rest} = "
    return [
        f"at most {parts}{a.longest:,} per {sample}, {a.longest * a.samples_per_step:,} per step",
        packed,
    ]
