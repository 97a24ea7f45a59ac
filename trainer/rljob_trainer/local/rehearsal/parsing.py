"""What the policy's turns say, where no rollout server reads them: a process that imports vLLM, once a turn has to be read.

python -m rljob_trainer.local.rehearsal.parsing MODEL TRUST_REMOTE_CODE
"""

import pickle
import sys
from functools import partial

from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.parsing import FIELD
from rljob_trainer.data.tokenizer import tokenizer_of
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.rewards.worker import channel, die_with_parent, say
from rljob_trainer.rewards.worker_process import Respawning, WorkerLost, WorkerProcess
from rljob_trainer.server.parsing import answer, load
from rljob_trainer.wire.parsing import Parsed, ParseRequest
from rljob_trainer.wire.rollout_client import RequestRefusedError

SECONDS = 60.0
"""Time limit of one turn, which takes milliseconds."""


class ParserProcess(WorkerProcess):
    """One life of it, from `start` to `stop`."""

    MODULE = "rljob_trainer.local.rehearsal.parsing"
    START_SECONDS = 600.0
    """A machine that is busy takes minutes to import vLLM."""


class LocalParser:
    """Reads turns as rollout servers do. Call `stop` after the last."""

    def __init__(self, spec: RLJobSpec):
        arguments = (spec.model.path, str(spec.model.trust_remote_code))
        self._process = Respawning(partial(ParserProcess.start, arguments, SECONDS))

    async def parse(self, request: ParseRequest) -> Parsed:
        """Raises ParserUnusableError, RequestRefusedError, and ConfigurationError where vLLM is missing."""
        try:
            process = await self._process.running()
            found = await process.call(request.body())
        except WorkerLost as error:
            rule = f"vLLM has to read what the policy writes, and cannot: {error}"
            shown = request.parsers.tools or request.parsers.reasoning
            raise ConfigurationError(
                FIELD, shown, rule, "try the job in the trainer's image, which has vLLM"
            ) from error
        if "refused" in found:
            raise RequestRefusedError(found["refused"])
        return Parsed.of(found)

    async def stop(self) -> None:
        await self._process.stop()


def main() -> None:
    path, trusts = sys.argv[1:]
    die_with_parent()
    questions, answers = channel()
    try:
        tokenizer = tokenizer_of("spec.model.path", path, trusts == str(True))
        load()
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
            say(answers, number=number, **answer(tokenizer, body))
        except (KeyError, TypeError, ValueError) as error:
            say(answers, number=number, refused=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
