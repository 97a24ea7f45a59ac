"""Rules of spec.data.chatTemplate."""

from collections.abc import Iterator

from rljob_api.spec import RLJobSpec
from rljob_api.validation.result import Violation

_MESSAGES = {"conversation", "messages", "tools", "documents"}
_RENDERING = {"add_generation_prompt", "continue_final_message", "chat_template", "return_assistant_tokens_mask"}
_TOKENS = {
    "tokenize",
    "tokenizer_kwargs",
    "processor_kwargs",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
}
OWNED = _MESSAGES | _RENDERING | _TOKENS
"""Arguments that the trainer passes to apply_chat_template itself."""


def argument_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """Arguments of the template may not replace arguments of apply_chat_template."""
    for name in sorted(spec.data.chat_template.arguments.keys() & OWNED):
        rule = "the trainer says it whenever it applies the template"
        yield Violation(f"spec.data.chatTemplate.arguments.{name}", "set", rule, "remove it")


RULES = (argument_violations,)
