"""What a response says, as vLLM's own parsers read it (vllm/parser), and the process that reads: some parsers take hours for a text that a policy
in training may well write, and only a process can be ended then. Nothing is rendered or tokenised here. The parse route (front.py) and rehearsals
ask it.

    python -m rljob_trainer.server.parser_process MODEL TRUST_REMOTE_CODE TOKENIZER_MODE

What a policy writes may be anything. A call that is malformed gives what vLLM gives, and where a parser raises, the whole text is content.
"""

import asyncio
import pickle
import secrets
import sys
from collections.abc import Awaitable, Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Self

from rljob_api.families import ParserNames
from rljob_trainer.model_files import model_config
from rljob_trainer.rewards.worker import channel, die_with_parent, say
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, ParserUnusableError, ToolCall
from rljob_trainer.wire.weights.protocol import SERVED_MODEL
from rljob_trainer.workers.process import WorkerLost, WorkerProcess
from rljob_trainer.workers.respawning import Respawning

HARMONY = {"openai", "openai_gptoss"}
"""Parsers of gpt-oss, whose messages vLLM reads from token ids."""
SECONDS = 10.0
"""Time limit of one turn, which takes milliseconds."""


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


class ParserProcess(WorkerProcess):
    """One life of it, from `start` to `stop`."""

    MODULE = "rljob_trainer.server.parser_process"
    START_SECONDS = 600.0
    """A machine that is busy takes minutes to import vLLM."""


class TurnReader:
    """Reads one turn after another in a process, which starts with the first and anew after one that took too long. Call `stop` after the last."""

    def __init__(self, start: Callable[[], Awaitable[WorkerProcess]]):
        self._process, self._turn = Respawning(start), asyncio.Lock()

    @classmethod
    def of(cls, model: str, trust_remote_code: bool, tokenizer_mode: str = "auto") -> Self:
        """`model`: its directory. `tokenizer_mode`: vLLM's."""
        arguments = (model, str(trust_remote_code), tokenizer_mode)
        return cls(partial(ParserProcess.start, arguments, SECONDS))

    async def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """What `answer` gives for a request's body, {"refused": why} for one that is not valid, or {"unread": why} where that took too long or ended
        the process. Raises WorkerLost where the process cannot be started."""
        async with self._turn:
            process = await self._process.running()
            try:
                return await process.call(body)
            except BaseException as error:
                await self._process.end(process)  # it may be busy with this turn for hours
                if isinstance(error, WorkerLost):
                    return {"unread": f"its parser: {error}"}
                raise

    async def stop(self) -> None:
        await self._process.stop()


def main() -> None:
    model, trusts, mode = sys.argv[1:]
    die_with_parent()
    questions, answers = channel()
    try:
        tokenizer, config = _tokenizer(model, trusts == str(True), mode), _config(model)
    except Exception as error:
        say(answers, error=f"{type(error).__name__}: {error}")
        return
    say(answers, takes=(), concurrent=False)
    while True:
        try:
            number, body = pickle.load(questions)
        except EOFError:
            return
        try:
            say(answers, number=number, **answer(tokenizer, body, config))
        except (KeyError, TypeError, ValueError) as error:
            say(answers, number=number, refused=f"{type(error).__name__}: {error}")


def _tokenizer(model: str, trust_remote_code: bool, mode: str) -> Any:
    """That of a server. Imports all that reading takes, which is seconds. Raises ImportError, and what vLLM raises for a model without one."""
    import vllm.entrypoints.openai.chat_completion.protocol  # the first turn has to keep to its limit as well
    import vllm.parser  # noqa: F401
    from vllm.tokenizers import cached_get_tokenizer

    return cached_get_tokenizer(model, tokenizer_mode=mode, trust_remote_code=trust_remote_code)


def _config(model: str) -> Any:
    """What parsers look up in vLLM's ModelConfig (0.32): the model's type, by which they know how a family numbers its calls."""
    config, _ = model_config(model)
    kinds = [SimpleNamespace(model_type=c.get("model_type", "")) for c in (config, config.get("text_config") or config)]
    return SimpleNamespace(hf_config=kinds[0], hf_text_config=kinds[1], architecture="")


if __name__ == "__main__":
    main()
