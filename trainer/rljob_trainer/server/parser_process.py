"""The process that reads what policies write, with vLLM's parsers (parsing.py): some of them take hours for a text that a policy in training may
well write, and only a process can be ended then.

python -m rljob_trainer.server.parser_process MODEL TRUST_REMOTE_CODE TOKENIZER_MODE
"""

import asyncio
import pickle
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

from rljob_trainer.model_files import model_config
from rljob_trainer.rewards.worker import channel, die_with_parent, say
from rljob_trainer.server.parsing import answer
from rljob_trainer.workers.process import Respawning, WorkerLost, WorkerProcess

SECONDS = 10.0
"""Time limit of one turn, which takes milliseconds."""


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
