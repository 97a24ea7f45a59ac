"""A row's prompt as the model reads it: plain text with the tokenizer's special tokens, or a conversation through its chat template."""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import sha256

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.conversations import (
    require_no_system_column,
    require_no_system_prompt,
    spoken,
    with_system,
    with_system_prompt,
)
from rljob_trainer.data.pictures import require_no_images, with_parts
from rljob_trainer.data.rows import Row
from rljob_trainer.data.tokenizer import Tokenizer, ToolTokenizer, text_tokens
from rljob_trainer.failure import ConfigurationError


def encode_prompt(row: Row, spec: DataSpec, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """Text and token ids. A template writes its special tokens itself, so none are added to what it returns.

    Raises ConfigurationError when the tokenizer has no chat template or cannot encode the text, and when the template refuses the messages.
    """
    template, messages = spec.chat_template, row.prompt
    if isinstance(messages, str):
        if not template.texts:
            require_no_system_prompt(template, row.place)
            require_no_system_column(row.system, row.place)
            _require_no_tools(tokenizer, row)
            require_no_images(row.images, row.place)
            return messages, _tokens(messages, row, partial(text_tokens, tokenizer))
        messages = with_system((spoken("user", messages),), row.system, row.place)
    if not tokenizer.chat_template:
        raise _no_template(row)
    if spec.image_key:
        messages = with_parts(messages, len(row.images), row.place)
    _require_one_set_of_tools(tokenizer, row)
    try:
        said = list(with_system_prompt(messages, template))
        how = {"add_generation_prompt": True, "tokenize": False, **template.arguments}
        text = tokenizer.apply_chat_template(said, tools=row.tools, **how)
    except Exception as error:  # templates are programs, and raise what they like
        rule = f"the model's chat template refuses the messages: {type(error).__name__}: {error}"
        raise row.place.error(rule, "fix the messages (many templates know no system role and want turns)") from error
    return text, _tokens(text, row, partial(tokenizer.encode, add_special_tokens=False))


def identity_of(row: Row, spec: DataSpec, tokenizer: Tokenizer) -> str:
    """What the prompt is made of: the row and, where it goes through the template, the template. Templates may write the date, so that their output
    identifies nothing."""
    template = spec.chat_template
    if isinstance(row.prompt, str) and not template.texts:
        return row.prompt
    made_of = [row.prompt, row.system, row.tools, template.arguments, template.system_prompt]
    return json.dumps([_template_digest(str(tokenizer.chat_template)), *made_of], sort_keys=True, default=str)


@lru_cache(maxsize=8)
def _template_digest(template: str) -> str:
    return sha256(template.encode(errors="surrogatepass")).hexdigest()


def _tokens(text: str, row: Row, encode: Callable[[str], list[int]]) -> list[int]:
    try:
        tokens = encode(text)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        rule = f"the tokenizer in spec.model.path cannot encode its prompt: {error}"
        raise row.place.error(rule, "see that it is the model's, or correct the row") from error
    if tokens:
        return tokens
    fix = "see that tokenizer.json fits the tokenizer class of the model's type, or correct the row"
    raise row.place.error("the tokenizer in spec.model.path makes no token of its prompt", fix)


def _require_no_tools(tokenizer: Tokenizer, row: Row) -> None:
    """Raises ConfigurationError: only a template shows the policy what it may call."""
    if isinstance(tokenizer, ToolTokenizer) or row.tools:
        whose = "its column 'tools'" if row.tools else "spec.rollout.agent.tools"
        rule = f"holds a text, which is taken as it stands: the policy would not see the functions of {whose}"
        raise row.place.error(rule, "set spec.data.chatTemplate.texts: true, or write the row as messages")


def _require_one_set_of_tools(tokenizer: Tokenizer, row: Row) -> None:
    """Raises ConfigurationError: the agent answers calls of its own functions only."""
    if isinstance(tokenizer, ToolTokenizer) and row.tools:
        rule = "has functions in its column 'tools', and spec.rollout.agent.tools has others, which alone can be called"
        raise row.place.error(rule, "remove the column, or set spec.rollout.agent.python, which gets the row")


def _no_template(row: Row) -> ConfigurationError:
    rule = "the tokenizer in spec.model.path has no chat template"
    fix = "put one (chat_template.jinja) next to the tokenizer's files, name one in spec.data.chatTemplate.path, or write the prompts as plain texts"
    if isinstance(row.prompt, str):
        return ConfigurationError("spec.data.chatTemplate.texts", "true", rule, fix)
    return row.place.error(f"holds chat messages, and {rule}", fix)
