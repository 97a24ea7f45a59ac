"""What a job's processes have reported of their work, in its status: progress, checkpoints, and the clients of a service."""

from rljob_api.base import Wire
from rljob_api.protocol import Checkpoint, Point


class ProgressStatus(Wire):
    """Progress as rank 0 reports it, refreshed at most every 30 s while nothing else changes."""

    attempt: int = 0
    """Number of the attempt that this progress is of: the last one that has chosen its checkpoint."""
    step: int = 0
    """Steps that are done."""
    steps: int = 0
    """Steps of the whole job; 0: not known yet."""
    text: str = ""
    """Steps that are done and steps of the whole job, such as `120/500`, for a column of `kubectl get`."""
    phase: str = ""
    """What the trainer is doing: fetching, loading, waiting, generating, scoring, training, syncing, saving, evaluating or
    finishing."""
    policy_step: int = 0
    """Step of the policy that rollout servers received last."""
    metric: str = ""
    """Main metric of the last step, for a column of `kubectl get`: `reward 0.612` (the mean), or `loss 1.234` for tasks without rewards."""
    metrics: dict[str, float] = {}
    """Metrics of the last step, by name."""
    history: list[Point] = []
    """Main metrics of earlier steps, thinned out over the run."""
    pace: float | None = None
    """Median duration of the last ten steps, in seconds; unset: no step is done yet."""
    saving: float | None = None
    """Seconds that the last checkpoint took until it was complete; unset: none was saved yet."""
    evaluation: dict[str, float] = {}
    """`first` and `last` mean reward on the held-out prompts; without rewards, mean loss on the held-out examples."""
    export: str = ""
    """Directory of the exported Hugging Face model, once it is written."""
    started_from: int | None = None
    """Step of the checkpoint that the attempt started from; 0: the model itself; unset: it has not chosen one yet."""
    backend: str = ""
    """Layers and kernels that the trainer uses."""
    warnings: list[str] = []
    """What the trainer warns of while it continues, such as rewards from which nothing is learnt."""
    updated_at: str = ""
    """When the trainer last reported progress."""


class ServiceStatus(Wire):
    """What the gateway of a service reports."""

    clients: int = 0
    """Sessions of clients that live."""
    models: int = 0
    """Models that clients train."""
    waiting: int = 0
    """Requests that wait for trainers or rollouts."""
    trained_tokens: int = 0
    """Tokens of training that the gateway has answered since its process began."""
    sampled_tokens: int = 0
    """Tokens that were sampled since then."""
    address: str = ""
    """Where clients in the cluster find it."""


class CheckpointStatus(Wire):
    latest: Checkpoint | None = None
    """The newest complete checkpoint."""
    kept: list[Checkpoint] = []
    """All complete checkpoints that the job can go back to, oldest first."""
