"""The model's own tokenizer, used on the driver's side only: ranks and rollouts see token ids."""

from collections.abc import Sequence
from typing import Any, Protocol

from rljob_api.spec.model import ModelSpec
from rljob_trainer.failure import ConfigurationError


class Tokenizer(Protocol):
    """What we ask of it."""

    chat_template: Any
    """None or empty: it has none."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool) -> str: ...


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """From the files of spec.model.path, never from a network. Raises ConfigurationError when there is none."""
    from transformers import AutoTokenizer  # seconds to import: only who needs a tokenizer pays

    try:
        return AutoTokenizer.from_pretrained(spec.path, trust_remote_code=spec.trust_remote_code, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        fix = "put the tokenizer's files beside config.json, or correct the path"
        raise ConfigurationError(
            "spec.model.path", spec.path, f"no tokenizer can be loaded from it: {error}", fix
        ) from error
