"""Trinity-RFT's two keys for how losses of tokens become one.

Older versions have the argument of the policy's loss alone. Newer ones have a key of the algorithm as well, token-mean unless the file says
otherwise, and put it over the argument where `policy_loss_fn_args` have one; penalties and entropy read the algorithm's key only. Source:
AlgorithmConfigValidator in trinity/common/config_validator.py.
"""

from collections.abc import Iterator, Mapping

from rljob_import.settings import Settings, show
from rljob_import.table import Row, Said, read

ARGUMENTS = "algorithm.policy_loss_fn_args."
ARGUMENT, KEY, USUAL = f"{ARGUMENTS}loss_agg_mode", "algorithm.loss_agg_mode", "token-mean"


def aggregation_rows(field: str) -> tuple[Row, ...]:
    return read(KEY, field, USUAL), read(ARGUMENT, field, text=f"{KEY} counts, where it is set")


def aggregation(settings: Settings, field: str, modes: Mapping[str, str]) -> Iterator[Said]:
    """`modes`: ours by Trinity-RFT's."""
    counts = ARGUMENT if ARGUMENT in settings and KEY not in settings else KEY
    agree = (ARGUMENT,) if counts == KEY and settings[ARGUMENT] == settings[KEY] else ()
    if settings[counts] not in modes:
        yield settings.lacking(counts, f"the aggregations are {', '.join(modes)}; {USUAL} in its place")
    yield settings.field(field, modes.get(settings[counts], modes[USUAL]), counts, *agree)
    yield from _unlike_trinity(settings)


def _unlike_trinity(settings: Settings) -> Iterator[Said]:
    """What is not what every version of Trinity-RFT makes of the same file."""
    argument, key = settings[ARGUMENT], settings[KEY]
    if argument is None and key != USUAL and _has_arguments(settings):
        yield settings.changed(
            KEY,
            f"is the whole loss's here; Trinity-RFT reads it for penalties alone, with {ARGUMENTS}* but no {ARGUMENT}",
        )
    elif argument is not None and argument != key:
        counts = f"{KEY} = {show(key)}"
        text = "which counts" if KEY in settings else "its default; here the argument counts"
        yield settings.changed(ARGUMENT, f"newer versions of Trinity-RFT have in its place {counts}, {text}")


def _has_arguments(settings: Settings) -> bool:
    """Then Trinity-RFT leaves its own out, with the one that the key is put over."""
    return any(key.startswith(ARGUMENTS) and given.value is not None for key, given in settings.given.items())
