"""The page of `plan`: what a spec amounts to, and what is wrong with it."""

from collections.abc import Sequence
from typing import Any

from kubectl_rljob.planning import Plan, Preview, roles
from kubectl_rljob.printers import placement
from kubectl_rljob.printers.text import plural, table
from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.spec import RLJobSpec
from rljob_api.validation import Violation

MODEL_KEYS = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key-value heads",
    "hidden_size": "wide",
    "vocab_size": "tokens",
}


def page(plan: Plan, found: Preview) -> str:
    """Amounts as far as they can be computed, then the verdict."""
    blocks = [f"RLJob {plan.name}"]
    if plan.spec is not None:
        whole_layout = not plan.breaks("spec.trainer.parallelism")
        whole_batch = whole_layout and not plan.breaks("spec.train.miniBatches")
        facts = {
            "Layout": layout(plan.spec, whole_layout),
            "Batch": batch(plan.spec, whole_batch),
            "Tokens": tokens(plan.spec),
            "Model": [model(plan.model)],
        }
        blocks += [
            "\n".join(
                f"{f'{key}:' if not i else '':<9}{text}" for key, of in facts.items() for i, text in enumerate(of)
            )
        ]
        blocks += [pods(plan.spec)]
        if estimates := plan.memory():
            blocks += [placement.memory(estimates)]
        if not plan.violations:
            blocks += [placement.preview(found)]
    return "\n\n".join([*blocks, verdict(plan.violations)])


def layout(spec: RLJobSpec, whole: bool) -> list[str]:
    """How the ranks are divided, if they can be."""
    cut, t = Layout.of(spec, names.ROLE_TRAINER), spec.trainer
    sizes = f"tensor {cut.tensor} x pipeline {cut.pipeline}" + (f" x context {cut.context}" if cut.context > 1 else "")
    world = f"{plural(t.nodes, 'pod')} x {plural(t.processes_per_node, 'process')} = {plural(cut.world, 'rank')}"
    if not whole:
        return [f"{world}, against {sizes}"]
    return [f"{world} = {sizes} x data {cut.data} ({cut})"]


def batch(spec: RLJobSpec, whole: bool) -> list[str]:
    """Samples of a step, of a mini-batch, of a data-parallel rank, of the job."""
    a, t = Amounts.of(spec), spec.train
    groups = f"{plural(a.groups_per_step, 'prompt')} x {plural(a.group, 'sample')}"
    lines = [f"{groups} = {a.samples_per_step:,} samples per step"]
    if not whole:
        return lines
    mini = f"{plural(t.mini_batches, 'mini-batch')} of {plural(a.samples_per_mini_batch, 'sample')}"
    per_rank, rest = divmod(a.samples_per_mini_batch, Layout.of(spec, names.ROLE_TRAINER).data)
    share = f"{'about ' if rest else ''}{plural(per_rank, 'sample')}"
    if t.steps is None or a.optimizer_steps is None:
        total = f"{t.epochs:g} epochs"
    else:
        steps = f"{plural(t.steps, 'step')}, {plural(a.optimizer_steps, 'optimizer step')}"
        total = f"{steps}, {t.steps * a.samples_per_step:,} samples in all"
    return [
        *lines,
        f"{mini} ({plural(a.groups_per_mini_batch, 'prompt')}), {share} per data-parallel rank",
        total,
    ]


def tokens(spec: RLJobSpec) -> list[str]:
    prompt, response = spec.data.max_prompt_tokens, spec.rollout.sampling.max_tokens
    return [
        f"at most {prompt:,} of the prompt + {response:,} of the response = {Amounts.of(spec).longest:,} per sample",
        f"at most {spec.train.tokens_per_micro_batch:,} per micro-batch and data-parallel rank",
    ]


def model(config: dict[str, Any] | None) -> str:
    if config is None:
        return "not checked (--model DIR checks heads and layers, and estimates memory)"
    known = [f"{config[key]:,} {word}" for key, word in MODEL_KEYS.items() if isinstance(config.get(key), int)]
    return f"{config.get('model_type', 'unknown type')}: {', '.join(known)}"


def pods(spec: RLJobSpec) -> str:
    rows = [(r.name, r.pods, r.processes_per_pod, r.gpus) for r in roles(spec)]
    total = ("total", sum(r[1] for r in rows), "-", sum(r[3] for r in rows))
    return table(("ROLE", "PODS", "PROCESSES/POD", "GPUS"), [*rows, total])


def verdict(found: Sequence[Violation]) -> str:
    if not found:
        return "Valid."
    lines = [f"{plural(len(found), 'rule')} {'is' if len(found) == 1 else 'are'} broken:"]
    for v in found:
        lines += ["", f"{v.field} = {v.value}", f"    {v.rule}", f"    fix: {v.fix}"]
    return "\n".join(lines)
