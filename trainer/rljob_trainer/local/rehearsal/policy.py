"""What stands in for the policy and its servers: texts that are written down beforehand, turn after turn, and a process that imports vLLM and
says what they say, once a turn has to be read."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rljob_api.spec import RLJobSpec
from rljob_api.spec.common import Sampling
from rljob_api.spec.model import ChatTemplate, ModelSpec
from rljob_trainer.agents.api import PolicyError
from rljob_trainer.agents.conversations import ASKED, FIELD, MARK, SAID, written
from rljob_trainer.data.prompts import Prompt
from rljob_trainer.data.tokenizer import OffsetTokenizer, Tokenizer, turn_end
from rljob_trainer.driver.slots import Home
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.server.parser_process import TurnReader
from rljob_trainer.wire.rollout_client import Generation, GenerationRequest, RequestRefusedError
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, ToolCall
from rljob_trainer.workers.process import WorkerLost

UNRELATED = "I do not know."
OTHER = "another row's answer"
"""The script of a wrong answer in the form of a right one."""
ANSWER = "{answer}"
"""In a text that the user gives: stands for the row's answer."""
EXAMPLES: Mapping[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}
"""Arguments of a call, by their JSON type."""


class LocalParser:
    """Reads turns as rollout servers do. Call `stop` after the last."""

    def __init__(self, model: ModelSpec):
        self._reader = TurnReader.of(model.path, model.trust_remote_code)

    async def parse(self, request: ParseRequest) -> Parsed:
        """Raises ParserUnusableError, UnreadError, RequestRefusedError, and ConfigurationError where vLLM is missing."""
        try:
            answer = await self._reader.read(request.body())
        except WorkerLost as error:
            rule = f"vLLM has to read what the policy writes, and cannot: {error}"
            shown = request.parsers.tools or request.parsers.reasoning
            raise ConfigurationError(
                FIELD, shown, rule, "try the job in the trainer's image, which has vLLM"
            ) from error
        if "refused" in answer:
            raise RequestRefusedError(answer["refused"])
        return Parsed.of(answer)

    async def stop(self) -> None:
        await self._reader.stop()


@dataclass(frozen=True, slots=True)
class Script:
    """What a policy says to one prompt."""

    name: str
    turns: tuple[str, ...]
    """The last one is repeated."""
    is_right: bool = False
    """It is the row's own answer."""


def scripts(prompt: Prompt, others: Sequence[Prompt], said: Sequence[str], calls: str) -> list[Script]:
    """What is tried on a prompt.

    Args:
        others: prompts whose answers may be wrong ones
        said: the user's own turns in place of the row's answer; empty: the answer as it is
        calls: a turn of its own before the answer; empty: none
    """
    before = (calls,) if calls else ()

    def script(name: str, answer: str, is_right: bool = False) -> Script:
        turns = tuple(text.replace(ANSWER, answer) for text in said) or (*before, answer)
        return Script(name, turns, is_right)

    other = next((o.answer for o in others if o.answer and o.answer != prompt.answer), None)
    return [
        *([script("its answer", prompt.answer, is_right=True)] if prompt.answer else []),
        *([script(OTHER, other)] if other else []),
        Script("an unrelated text", (UNRELATED,)),
        Script("nothing", ("",)),
    ]


def calling(tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, template: ChatTemplate) -> str:
    """A turn that calls each function once, as the chat template writes it, or in Hermes' format where the template does not; empty: no functions.

    Args:
        tools: JSON schemas of functions that the policy may call
    """
    if not tools:
        return ""
    calls = [_call(tool, i) for i, tool in enumerate(tools)]
    try:
        before = written([ASKED], tokenizer, template)
        whole = written([ASKED, SAID | {"content": "", "tool_calls": calls}], tokenizer, template, goes_on=False)
        end = written([ASKED, SAID], tokenizer, template, goes_on=False).partition(MARK)[2]
    except PolicyError:
        return _hermes(calls)
    turn = whole.removeprefix(before).removesuffix(end)
    is_written = whole.startswith(before) and all(call["function"]["name"] in turn for call in calls)
    return turn if is_written else _hermes(calls)


def _hermes(calls: Sequence[ToolCall]) -> str:
    return " ".join(f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls)


def _call(tool: Mapping[str, Any], number: int) -> ToolCall:
    """Its id has nine letters and digits, as some templates want."""
    function = tool["function"]
    properties = function["parameters"]["properties"]
    arguments = {name: _example(properties[name]) for name in function["parameters"]["required"]}
    said = {"name": function["name"], "arguments": arguments}
    return {"id": f"call{number:05}", "type": "function", "function": said}


def _example(schema: Mapping[str, Any]) -> Any:
    return schema["enum"][0] if "enum" in schema else EXAMPLES[schema["type"]]


def end_of(spec: RLJobSpec, tokenizer: Tokenizer) -> list[int]:
    """The token with which a policy ends a turn; empty where there is none."""
    written = turn_end(spec, tokenizer)
    end = written[1] if written else cast(OffsetTokenizer, tokenizer).eos_token_id
    return [] if end is None else [end]


class ScriptedPolicy:
    """In place of the pool of rollout servers, for one sample."""

    def __init__(
        self,
        script: Script,
        tokenizer: Tokenizer,
        end: Sequence[int],
        parse: Callable[[ParseRequest], Awaitable[Parsed]],
    ):
        """`end`: of a turn."""
        self._parse = parse
        self._turns, self._tokenizer, self._end = script.turns, tokenizer, list(end)
        self._asked: dict[int, int] = {}
        """The numbers of turns, by their seeds: one whose agent was lost is asked for again."""

    async def generate(self, request: GenerationRequest, home: Home | None = None) -> list[Generation]:
        """As a server that follows the limits of the request."""
        turn = self._asked.setdefault(request.seed, len(self._asked))
        text = self._turns[min(turn, len(self._turns) - 1)]
        tokens, complete = self._tokens(text, request.sampling)
        log_probs = np.zeros(len(tokens), np.float32)
        written = Generation(np.array(tokens, np.int32), log_probs, "stop" if complete else "length", policy_step=0)
        return [written] * request.n

    async def parse(self, request: ParseRequest) -> Parsed:
        return await self._parse(request)

    async def resumed(self) -> None: ...

    async def interrupt(self) -> None: ...

    def _tokens(self, text: str, sampling: Sampling) -> tuple[list[int], bool]:
        """The text up to its first stop, or with the end of a turn, as far as maxTokens reaches, and whether that is all."""
        ends = [text.find(stop) + len(stop) for stop in sampling.stop if stop in text]
        tokens = self._tokenizer.encode(text[: min(ends, default=None)], add_special_tokens=False)
        tokens += [] if ends else self._end
        tokens = tokens or self._tokenizer.encode(" ", add_special_tokens=False)  # a server writes one at least
        return tokens[: sampling.max_tokens], len(tokens) <= sampling.max_tokens
