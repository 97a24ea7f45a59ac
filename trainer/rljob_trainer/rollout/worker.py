"""Mixed into vLLM's worker (`--worker-extension-cls`): what its weight-transfer API lacks. Importing this registers our engines."""

from rljob_trainer.weights.engine import StagedEngine


class WorkerExtension:
    """Called through the engine's collective_rpc. `self` is the vLLM worker."""

    weight_transfer_engine: StagedEngine
    _weight_update_active: bool

    def rljob_seal(self, attempt: int, digest: str) -> None:
        """Verify the whole staged update."""
        self.weight_transfer_engine.seal(attempt, digest)

    def rljob_discard(self) -> None:
        """Forget an update at any point before it was applied. vLLM 0.26 has no way to leave one."""
        self.weight_transfer_engine.discard()
        self._weight_update_active = False
