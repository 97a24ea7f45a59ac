"""A row's prompt as the model reads it: plain text with the tokenizer's special tokens, or a conversation through its chat template."""

from rljob_api.spec.model import DataSpec
from rljob_trainer.data.conversations import require_no_system_prompt, spoken, with_system_prompt
from rljob_trainer.data.pictures import require_no_images, with_parts
from rljob_trainer.data.rows import Row
from rljob_trainer.data.tokenizer import Tokenizer, ToolTokenizer
from rljob_trainer.failure import ConfigurationError


def encode_prompt(row: Row, spec: DataSpec, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """Text and token ids. A template writes its special tokens itself, so none are added to what it returns.

    Raises ConfigurationError when the tokenizer has no chat template or cannot encode the text, and when the template refuses the messages.
    """
    template, messages = spec.chat_template, row.prompt
    if isinstance(messages, str):
        if not template.texts:
            require_no_system_prompt(template, row.place)
            _require_no_tools(tokenizer, row)
            require_no_images(row.images, row.place)
            return messages, _tokens(messages, row, tokenizer, add_special_tokens=True)
        messages = (spoken("user", messages),)
    if not tokenizer.chat_template:
        raise _no_template(row)
    if spec.image_key:
        messages = with_parts(messages, len(row.images), row.place)
    try:
        said = list(with_system_prompt(messages, template))
        text = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False, **template.arguments)
    except Exception as error:  # templates are programs, and raise what they like
        rule = f"the model's chat template refuses the messages: {type(error).__name__}: {error}"
        raise row.place.error(rule, "fix the messages (many templates know no system role and want turns)") from error
    return text, _tokens(text, row, tokenizer, add_special_tokens=False)


def _tokens(text: str, row: Row, tokenizer: Tokenizer, *, add_special_tokens: bool) -> list[int]:
    try:
        tokens = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except Exception as error:  # the tokenizers library raises plain Exceptions
        rule = f"the tokenizer in spec.model.path cannot encode its prompt: {error}"
        raise row.place.error(rule, "see that it is the model's, or correct the row") from error
    if tokens:
        return tokens
    fix = "see that tokenizer.json fits the tokenizer class of the model's type, or correct the row"
    raise row.place.error("the tokenizer in spec.model.path makes no token of its prompt", fix)


def _require_no_tools(tokenizer: Tokenizer, row: Row) -> None:
    """Raises ConfigurationError: only a template shows the policy what it may call."""
    if isinstance(tokenizer, ToolTokenizer):
        rule = "holds a text, which is taken as it stands: the policy would not see the functions of spec.rollout.agent.tools"
        raise row.place.error(rule, "set spec.data.chatTemplate.texts: true, or write the row as messages")


def _no_template(row: Row) -> ConfigurationError:
    rule = "the tokenizer in spec.model.path has no chat template"
    fix = "put one (chat_template.jinja) next to the tokenizer's files, name one in spec.data.chatTemplate.path, or write the prompts as plain texts"
    if isinstance(row.prompt, str):
        return ConfigurationError("spec.data.chatTemplate.texts", "true", rule, fix)
    return row.place.error(f"holds chat messages, and {rule}", fix)
