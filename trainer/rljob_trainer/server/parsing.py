"""What a response says, as vLLM's own parsers read it (vllm/parser). Nothing is rendered or tokenised here. It runs in parser_process.py, for the
parse route (front.py) and for rehearsals.

What a policy writes may be anything. A call that is malformed gives what vLLM gives, and where a parser raises, the whole text is content.
"""

import secrets
from functools import cache
from typing import Any

from rljob_api.families import ParserNames
from rljob_trainer.wire.parsing import Parsed, ParseRequest, ParserUnusableError, ToolCall
from rljob_trainer.wire.weights.protocol import SERVED_MODEL

HARMONY = {"openai", "openai_gptoss"}
"""Parsers of gpt-oss, whose messages vLLM reads from token ids."""


def answer(tokenizer: Any, body: dict[str, Any], model_config: Any = None) -> dict[str, Any]:
    """The answer to a request's body. Raises KeyError, TypeError, ValueError for one that is not valid."""
    try:
        return parsed(tokenizer, ParseRequest.of(body), model_config).body()
    except ParserUnusableError as error:
        return {"unusable": str(error)}


def parsed(tokenizer: Any, asked: ParseRequest, model_config: Any = None) -> Parsed:
    """What a response says. Raises ParserUnusableError, and ValueError for tools that are no JSON schemas in OpenAI's form.

    Args:
        model_config: vLLM's, by which it knows how a family numbers its calls
    """
    # imported here, because it takes seconds and the front alone does not need it
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.logger import init_logger

    tools = {"tools": asked.tools, "tool_choice": "auto"} if asked.tools else {}
    request = ChatCompletionRequest.model_validate({"messages": [], "model": SERVED_MODEL, **tools})
    text = tokenizer.decode(asked.tokens[:-1] if asked.ended else asked.tokens, skip_special_tokens=False)
    parser = _parser(tokenizer, asked, request.tools, model_config)
    try:
        parser.set_prompt_token_ids(asked.prompt)
        reasoning, content, calls = parser.parse(
            text, request, enable_auto_tools=True, model_output_token_ids=asked.tokens
        )
    except Exception:  # parsers are many, and none was written for a policy in training
        init_logger(__name__).exception("the parsers %s raised", asked.parsers)
        return Parsed(tokenizer.decode(asked.tokens, skip_special_tokens=True))
    return Parsed(content or "", reasoning or "", [_call(call) for call in calls or ()])


def _parser(tokenizer: Any, asked: ParseRequest, tools: Any, model_config: Any) -> Any:
    """A new one: parsers have state. Raises ParserUnusableError."""
    try:
        kind = _kind(asked.parsers)
        return kind(tokenizer, tools, model_config=model_config, chat_template_kwargs=dict(asked.template))
    except Exception as error:
        raise ParserUnusableError(str(error)) from error


@cache
def _kind(parsers: ParserNames) -> Any:
    """vLLM's class of both. Raises TypeError for a name that it does not know."""
    from vllm.parser import ParserManager

    harmony = bool(HARMONY & {*parsers})
    return ParserManager.get_parser(
        parsers.tools or None, parsers.reasoning or None, enable_auto_tools=True, is_harmony=harmony
    )


def _call(call: Any) -> ToolCall:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id or f"call_{secrets.token_hex(8)}", "type": "function", "function": function}
