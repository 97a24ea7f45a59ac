"""What the policy's turns say, where no rollout server reads them: a process that imports vLLM, once a turn has to be read."""

from rljob_api.spec import RLJobSpec
from rljob_trainer.agents.parsing import FIELD
from rljob_trainer.failure import ConfigurationError
from rljob_trainer.server.parser_process import TurnReader
from rljob_trainer.wire.rollout_client import RequestRefusedError
from rljob_trainer.wire.rollout_server import Parsed, ParseRequest
from rljob_trainer.workers.process import WorkerLost


class LocalParser:
    """Reads turns as rollout servers do. Call `stop` after the last."""

    def __init__(self, spec: RLJobSpec):
        self._reader = TurnReader.of(spec.model.path, spec.model.trust_remote_code)

    async def parse(self, request: ParseRequest) -> Parsed:
        """Raises ParserUnusableError, UnreadError, RequestRefusedError, and ConfigurationError where vLLM is missing."""
        try:
            found = await self._reader.read(request.body())
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
        await self._reader.stop()
