"""Configurations of a kind that a job's rules and transformers accept, with other values in as many fields as go together."""

from collections.abc import Iterable
from typing import Any

from rljob_api.families import has_latent_attention
from rljob_api.rules.model import fitting_violations, model_violations
from rljob_api.spec import RLJobSpec
from trainer.megatron.config_fields import Setting, foreign, settings, with_settings
from trainer.megatron.config_parity import OF_LATENTS, Subject, subject, wide
from trainer.megatron.config_rows import Row


class Drawn:
    """`usual`: transformers' configuration of the kind. `apart`: fields that keep their values, with their section or without
    it. `further`: settings to try as well."""

    def __init__(self, usual: Any, spec: RLJobSpec, apart: Iterable[str] = (), further: Iterable[Setting] = ()):
        self._usual, self._spec = usual, spec
        self._apart, self._further = {*apart}, [*further]
        self._config = wide(usual.to_dict())
        self._last: tuple[Row, Subject | None] = ([], None)
        self.known: list[Row] = []
        """Of which is known that nothing can be compared with them."""
        if has_latent_attention(self._config):
            self._apart.add(OF_LATENTS)

    @property
    def settings(self) -> list[Setting]:
        every = [*settings(self._config), *foreign(self._config), *self._further]
        return [one for one in every if not self._apart & {one.path[-1], ".".join(one.path)}]

    def config(self, row: Row) -> dict[str, Any]:
        return with_settings(self._config, row)

    def possible(self, row: Row) -> bool:
        """Whether neither rules nor transformers refuse it, and nothing is known of a part of it."""
        known = any(all(one in row for one in part) for part in self.known)
        return not known and self._accepted(row) and self.subject(row) is not None

    def _accepted(self, row: Row) -> bool:
        return not [*model_violations(self._spec, self.config(row))]

    def subject(self, row: Row) -> Subject | None:
        if self._last[0] != row:
            self._last = row, subject(self._usual, self.config(row))
        found = self._last[1]
        resolved = found and found.model.config.to_dict()
        return None if not resolved or [*fitting_violations(self._spec, resolved)] else found
