"""spec.environments: pods in which agents run what nobody has read, such as the programs that the policy writes."""

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import Model
from rljob_api.spec.common import DnsName, PositiveInt, Template

MOST_SANDBOXES = 256
"""Pods of one environment. The control message names those that are free, and an object of Kubernetes has 1 MiB at most."""
USUAL = {"cpu": ("100m", "1"), "memory": ("256Mi", "1Gi"), "ephemeral-storage": ("256Mi", "2Gi")}
"""Request and limit of a sandbox for a resource of which the spec says nothing: what runs there is not trusted to be modest."""


class EnvironmentPool(Model):
    """Pods that wait for an agent, a *sandbox* each. An agent claims one, runs programs in it and gives it back; it is then replaced by a new one.
    A sandbox has no network but connections from the job's own pods, no token of the cluster, and none of the job's volumes and variables."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """Name of the environment, by which agents claim a sandbox of it: `policy.sandbox(NAME)`."""
    replicas: Annotated[int, Field(ge=1, le=MOST_SANDBOXES)] = 1
    """Number of pods, and of sandboxes that agents have at a time. Further claims wait for one that is free. A trajectory
    has at most as many of them."""
    claim_seconds: Annotated[PositiveInt, Field(le=86400)] = 1800
    """Longest time for which an agent keeps a sandbox, in seconds, its waiting for the policy included. Then the sandbox is taken away."""
    runtime_class_name: DnsName | None = None
    """Kubernetes RuntimeClass of these pods, for example of gVisor or Kata Containers, which keep programs from the node's kernel. That of the job's
    other pods does not apply; unset: the default of the nodes."""
    template: Template = Template()
    """Pod settings of the environment. Its image may be any for Linux on the nodes' processors; unset: the job's `image`. Of CPU, memory and
    ephemeral storage, what the spec leaves open is requested as 100m, 256Mi and 256Mi, with limits of 1 CPU, 1Gi and 2Gi."""

    @property
    def resources(self) -> dict[str, dict[str, str]]:
        """Requests and limits of the container. A resource that the spec requests without a limit may not exceed that."""
        given = self.template.resources
        left_open = [name for name in USUAL if name not in given.requests and name not in given.limits]
        requests = given.requests | {name: USUAL[name][0] for name in left_open}
        limits = {name: given.requests[name] for name in USUAL.keys() & given.requests.keys()}
        return {"requests": requests, "limits": limits | {name: USUAL[name][1] for name in left_open} | given.limits}
