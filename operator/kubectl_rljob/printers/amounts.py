"""How many samples and tokens move, for the page of `plan`."""

from collections.abc import Mapping

from kubectl_rljob.printers.text import plural
from rljob_api import names
from rljob_api.sizing.layout import Amounts, Layout
from rljob_api.spec import RLJobSpec
from rljob_api.spec.job import Task

NOUNS: Mapping[Task, tuple[str, str]] = {
    "rl": ("prompt", "sample"),
    "sft": ("conversation", "conversation"),
    "dpo": ("pair", "sequence"),
    "rewardModel": ("pair", "sequence"),
    "pretrain": ("sequence", "sequence"),
}
"""What is drawn from the data, and what is made of it and counted as a sample (`Amounts`)."""


def batch(spec: RLJobSpec, whole: bool) -> list[str]:
    """Samples of a step; and, if they can be divided, of a mini-batch, of a data-parallel rank, of the job."""
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
    if t.steps is None or a.optimizer_steps is None:
        return f"{t.epochs:g} epoch{'' if t.epochs == 1 else 's'}; the trainer counts the data and reports the steps"
    steps = f"{plural(t.steps, 'step')}, {plural(a.optimizer_steps, 'optimizer step')}"
    return f"{steps}, {plural(t.steps * a.samples_per_step, NOUNS[spec.task][1])} in all"


def tokens(spec: RLJobSpec) -> list[str]:
    """Of a sample, a step and a micro-batch."""
    a, (_, sample) = Amounts.of(spec), NOUNS[spec.task]
    prompt, response = spec.data.max_prompt_tokens, spec.rollout.sampling.max_tokens
    parts = "" if spec.supervised else f"{prompt:,} of the prompt + {response:,} of the response = "
    return [
        f"at most {parts}{a.longest:,} per {sample}, {a.longest * a.samples_per_step:,} per step",
        f"at most {spec.train.tokens_per_micro_batch:,} per micro-batch and data-parallel rank",
    ]
