"""Which entries of spec.rewards judge a data source. Driver and ranks both ask; no torch here."""

from collections.abc import Sequence

from rljob_api.spec.model import RewardSpec

EVERY_OTHER = "*"


def entries_of(rewards: Sequence[RewardSpec], data_source: str) -> list[tuple[int, RewardSpec]]:
    """The entries that name `data_source`, else those of `*`, each with its index in spec.rewards.

    Those with `model` are scored by the ranks, all others by the driver. Empty: nobody judges it.
    """
    named = [(i, r) for i, r in enumerate(rewards) if r.data_source == data_source]
    return named or [(i, r) for i, r in enumerate(rewards) if r.data_source == EVERY_OTHER]
