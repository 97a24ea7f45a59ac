"""What the operator says of a vLLM server that consists of several pods: in the control object, and in the job's status."""

from rljob_api.base import Wire


class ServerPart(Wire):
    """One pod of a server that consists of several."""

    pod: str
    """Name of the pod."""
    pod_uid: str
    """UID of the pod."""
    boot_id: str
    """Identifier of this life of the pod's launcher process."""
    address: str
    """Pod IP."""
    node_rank: int
    """Rank of the pod in its server. The head has 0: it alone answers requests."""


class ServerGroup(Wire):
    """The pods of one server that consists of several. A pod runs its part only while its own boot is listed."""

    name: str
    """Name of the server, such as `demo-rollout-2`, for the third one."""
    generation: int
    """Grows whenever the server has to start again as a whole: all parts then end, and start in the new one."""
    parts: list[ServerPart]
    """In the order of their ranks."""
    master_port: int
    """Port at which the head's workers meet those of the other pods; of a generation's own, so that a stale part cannot join its successor."""
    rpc_port: int
    """Port at which the engines of data-parallel copies find the head's API server when they start; of a generation's own, too."""
