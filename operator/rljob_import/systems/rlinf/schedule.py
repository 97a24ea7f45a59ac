"""RLinf's learning rates: Megatron and FSDP have keys of their own for warm-up and decay, and read no others."""

from collections.abc import Iterator

from rljob_import.settings import Settings, show
from rljob_import.shared.training import Warmup
from rljob_import.shared.values import DECAYS, product
from rljob_import.table import Said

BACKEND = "actor.training_backend"
SYNCHRONOUS = "actor.lr_sched_sync_with_optim"
UNREAD = "RLinf does not read it with {}: {} is its {}"


def on_megatron(settings: Settings) -> bool:
    return bool(settings[BACKEND] == "megatron")


def schedule(settings: Settings, prefix: str, target: str, total: int | None, updates: int) -> Iterator[Said]:
    """`total` steps of the job, None: unknown, of `updates` optimizer steps each. Source: workers/actor/fsdp_actor_worker.py and
    hybrid_engines/fsdp/fsdp_model_manager.py of RLinf; with FSDP a schedule moves on with the optimizer, unless the file says otherwise."""
    if on_megatron(settings):
        yield from _warm_up_of_megatron(settings, prefix, target, total, updates)
    else:
        yield from _warm_up_of_fsdp(settings, prefix, target, 1 if settings[SYNCHRONOUS] else updates)
    yield from _decay(settings, prefix, target, (total or 0) * updates)


def _warm_up_of_megatron(
    settings: Settings, prefix: str, target: str, total: int | None, updates: int
) -> Iterator[Said]:
    own = Warmup(f"{prefix}lr_sched.lr_warmup_iters", f"{prefix}lr_sched.lr_warmup_fraction", f"{target}.warmupSteps")
    yield from own.said(settings, total, updates)
    others = (f"{prefix}optim.lr_warmup_steps", f"{prefix}optim.lr_warmup_steps_ratio")
    yield from _unread(settings, others, own.steps, "warm-up")


def _warm_up_of_fsdp(settings: Settings, prefix: str, target: str, counted: int) -> Iterator[Said]:
    """A share is one of `total_training_steps`: without that, of nothing."""
    steps, ratio, last = (
        f"{prefix}optim.{name}" for name in ("lr_warmup_steps", "lr_warmup_steps_ratio", "total_training_steps")
    )
    if settings.number(steps) >= 0:
        why = f"x {counted} optimizer steps of a training step" if counted > 1 else ""
        yield settings.field(f"{target}.warmupSteps", settings.integer(steps) * counted, steps, why=why)
    elif settings.number(ratio) and settings[last]:
        share = int(settings.number(ratio) * settings.integer(last)) * counted
        yield settings.field(f"{target}.warmupSteps", share, ratio, last)
    elif settings.number(ratio):
        yield settings.lacking(ratio, f"RLinf takes it of {last}, which is not set: there is no warm-up")
    others = (f"{prefix}lr_sched.lr_warmup_iters", f"{prefix}lr_sched.lr_warmup_fraction")
    yield from _unread(settings, others, steps, "warm-up")


def _unread(settings: Settings, keys: tuple[str, ...], own: str, what: str) -> Iterator[Said]:
    for key in (key for key in keys if key in settings):
        if settings.number(key) > 0:
            yield settings.lacking(key, UNREAD.format(settings[BACKEND], own, what))


def _decay(settings: Settings, prefix: str, target: str, total: int) -> Iterator[Said]:
    megatron, s, o = on_megatron(settings), f"{prefix}lr_sched.", f"{prefix}optim."
    of_megatron, of_fsdp = f"{s}lr_decay_style", f"{o}lr_scheduler"
    key, other = (of_megatron, of_fsdp) if megatron else (of_fsdp, of_megatron)
    if settings[other] not in (None, "constant"):
        yield settings.lacking(other, UNREAD.format(settings[BACKEND], key, "schedule"))
    try:
        ours = DECAYS(settings[key])
    except ValueError as error:
        yield settings.problem(f"{show(settings[key])} {error}", key)
        return
    yield settings.field(f"{target}.decay", ours, key)
    if ours != "constant":
        yield from _least(settings, target, s, o)
        yield from _length(settings, f"{s}lr_decay_iters" if megatron else f"{o}total_training_steps", total)


def _least(settings: Settings, target: str, s: str, o: str) -> Iterator[Said]:
    rate, field = f"{o}min_lr_rate", f"{target}.minLearningRate"
    if not on_megatron(settings) and settings[rate] is not None:
        yield settings.field(field, product(settings.number(rate), settings.number(f"{o}lr")), rate, f"{o}lr")
        return
    low = f"{s}min_lr" if settings[f"{s}min_lr"] and on_megatron(settings) else f"{o}min_lr"
    if settings[low]:
        yield settings.field(field, settings.number(low), low)


def _length(settings: Settings, last: str, total: int) -> Iterator[Said]:
    if last in settings and settings.integer(last) != total:
        yield settings.lacking(last, f"the rate falls until the last of {total or 'all'} optimizer steps")
