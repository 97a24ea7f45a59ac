"""What the policy's responses say, read by the rollout servers with vLLM's parsers: the driver has no vLLM."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rljob_api.families import ParserNames, parsers_of
from rljob_api.spec import RLJobSpec
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.model_files import model_config
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest, ParserUnusableError, UnreadError
from rljob_trainer.wire.trajectory import Ints

FIELD = "spec.rollout.agent.toolParser"
FIX = "name the parser of vLLM that reads what this model writes"
log = logging.getLogger(__name__)
AskServer = Callable[[ParseRequest], Awaitable[Parsed]]


class ResponseParser:
    """Of one job."""

    def __init__(self, names: ParserNames, template: Mapping[str, Any], ask: AskServer):
        """`template`: arguments of the chat template."""
        self._names, self._template, self._ask = names, template, ask

    @staticmethod
    def of(spec: RLJobSpec, ask: AskServer) -> "ResponseParser":
        agent, names = spec.rollout.agent, ParserNames("", "")
        if agent:
            names = parsers_of(agent.tool_parser, agent.reasoning_parser, model_config(spec.model.path)[0])
        return ResponseParser(names, spec.data.chat_template.arguments, ask)

    async def parsed(
        self, prompt: Ints, tokens: Sequence[int], ended: bool, tools: Sequence[Mapping[str, Any]]
    ) -> Parsed | None:
        """What a response says; None where there is nothing but its text: no functions to call, and no parser of reasoning, or the parser took
        too long.

        Raises ConfigurationError for parsers that do not fit the model, and what the rollouts raise.
        """
        if tools and not self._names.tools:
            raise ConfigurationError(FIELD, "unset", "the agent has tools, and the model's family has no parser", FIX)
        names = self._names if tools else ParserNames("", self._names.reasoning)
        if not any(names):
            return None
        try:
            return await self._ask(ParseRequest(prompt, tokens, ended, names, tools, self._template))
        except ParserUnusableError as error:
            shown = " and ".join(filter(None, names))
            rule = f"vLLM cannot read what this model writes with it: {error}"
            raise ConfigurationError(FIELD, shown, rule, FIX) from error
        except UnreadError as error:
            log.warning("a turn of %d tokens stays plain text, as if it called nothing: %s", len(tokens), error)
            return None
