"""What others say in a conversation, as the chat template writes it behind tokens that were generated. Those are never rendered again."""

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.spec.model import ChatTemplate
from rljob_trainer.agents.api import PolicyError
from rljob_trainer.data.tokenizer import Tokenizer

MARK = "rljob-assistant-turn"
"""Stands for the assistant's turn while the template is asked what it writes behind one."""


def reply(
    context: Sequence[int], messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, template: ChatTemplate
) -> list[int]:
    """Tokens of `messages` behind `context`, which ends with an assistant's turn, up to where the assistant begins again. Raises PolicyError."""
    if not tokenizer.chat_template:
        raise PolicyError("the tokenizer in spec.model.path has no chat template")
    before = [{"role": "user", "content": MARK.upper()}, {"role": "assistant", "content": MARK}]
    try:
        text = tokenizer.apply_chat_template(
            [*before, *messages], add_generation_prompt=True, tokenize=False, **template.arguments
        )
    except Exception as error:  # templates are programs, and raise what they like
        raise PolicyError(f"the chat template refuses the messages: {type(error).__name__}: {error}") from error
    _, mark, behind = text.rpartition(MARK)
    if not mark:
        raise PolicyError("the chat template does not write what the assistant said")
    last = tokenizer.decode([context[-1]], skip_special_tokens=False)
    return tokenizer.encode(behind.removeprefix(last), add_special_tokens=False)
