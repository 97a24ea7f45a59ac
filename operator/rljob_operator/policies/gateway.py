"""Which pod is the gateway of a service. Each naming of another one has a number, in the status before the pod hears of it."""

from rljob_api.status import JobStatus
from rljob_operator.model.ordinals import gateway_pod
from rljob_operator.model.snapshot import Snapshot
from rljob_operator.policies.change import Change, set_


def name_gateway(s: Snapshot, status: JobStatus) -> Change:
    """A pod that is named again after another one has a new number, too."""
    pod = gateway_pod(s, status)
    if pod is None or pod.uid == status.gateway_pod:
        return Change(status)
    return Change(set_(status, gateway_pod=pod.uid, gateway_number=status.gateway_number + 1))
