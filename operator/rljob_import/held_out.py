"""How other systems answer held-out prompts."""

from collections.abc import Iterator

from rljob_import.settings import Settings
from rljob_import.table import Said


def responses(settings: Settings, sampled: bool, top_p: str, top_k: str, count: str) -> Iterator[Said]:
    """What the keys for the narrowed distribution and the responses per prompt become. They say nothing unless responses are `sampled`."""
    if not sampled:
        for key in (top_p, top_k, count):
            if key in settings:
                yield settings.implied(key, "held-out prompts are answered greedily")
        return
    yield settings.field("evaluation.sampling.topP", float(settings.number(top_p)), top_p)
    yield settings.field("evaluation.sampling.topK", max(0, settings.integer(top_k)), top_k)
    yield settings.field("evaluation.samplesPerPrompt", settings.integer(count), count)
