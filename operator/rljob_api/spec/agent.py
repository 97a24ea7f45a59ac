"""spec.rollout.agent: who makes a sample that is more than one response; and spec.environments: pods in which agents run what nobody has read,
such as the programs that the policy writes.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from rljob_api.base import Model
from rljob_api.spec.common import (
    AbsolutePath,
    DnsName,
    FunctionName,
    LibraryName,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StringMap,
    Template,
    Verbatim,
)
from rljob_api.spec.processes import Workers

VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
VariableValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=16384)]
"""The kernel takes 128 KiB with the name, and no NUL; a character may have four bytes."""
ParserName = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class PythonAgent(Model):
    """A Python function that makes one trajectory: `async def rollout(prompt, policy, row)`, run in a process of its own."""

    path: AbsolutePath
    """A Python file that the trainer pods can read, or those of `workers`, for example from a ConfigMap volume."""
    function: FunctionName = "rollout"
    """Name of the async function. It returns a Trajectory, or None for a sample that is left out."""


class Tools(Model):
    """Functions that the policy may call. The chat template shows them and says what they return; `toolParser` reads the calls."""

    path: AbsolutePath
    """A Python file that the trainer pods can read, or those of `workers`. Types of parameters and docstrings become the JSON schemas that the
    template shows."""
    functions: Annotated[list[FunctionName], Field(min_length=1, max_length=64)]
    """Names of the functions, async or not."""


class Environment(Model):
    """An HTTP service in which the policy acts: `reset`, `step` and `close`, as docs/environment.openapi.yaml says. It gives the rewards."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)]
    """Base address: trajectories begin with a POST to `/reset` below it."""
    headers: StringMap = {}
    """Further headers. `$NAME` in a value is replaced by the trainer's environment variable: for Secrets."""
    retries: NonNegativeInt = 2
    """How often a `reset` is repeated after a connection error, a 429 or a 5xx. A `step` never is: it may have had its effect."""


class EnvironmentLibrary(Model):
    """An environment of a Python library, run in the agent's processes. The trainer image does not hold the library: install it in an image of yours,
    for all pods or for those of `workers`, or in a directory of a volume that `agent.env` names in PYTHONPATH."""

    environment: LibraryName
    """Its name in the library: a task set of verifiers, an environment that skyrl-gym has registered, or a data set of reasoning-gym. An environment
    of your own is the name of an importable package."""
    arguments: Verbatim = {}
    """Its configuration, in the library's own words."""


class OpenEnv(Model):
    """A server of OpenEnv. A trajectory is one session: a WebSocket at `/ws` below the address."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)]
    """Base address of the server."""
    action_key: Annotated[str, StringConstraints(min_length=1, max_length=256)] = "message"
    """Field of the environment's action that holds the policy's turn."""
    observation_key: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    """Field of the environment's observation that the policy reads: a text, or chat messages. A field that a step leaves out says nothing."""
    headers: StringMap = {}
    """Further headers. `$NAME` in a value is replaced by the trainer's environment variable: for Secrets."""
    arguments: Verbatim = {}
    """Arguments of the environment's `reset`, in addition to the columns of the row, of which the server takes those that it knows."""
    sessions: PositiveInt = 1
    """Trajectories at a time: at most the server's `max_concurrent_envs`, which is 1 unless its author says otherwise."""


class NemoGym(Model):
    """A resources server of NeMo Gym. A trajectory is a session: `/seed_session` with the row, the address of each tool that the policy calls, and
    `/verify`, which gives the reward."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s]+$", max_length=2048)]
    """Base address of the server."""
    headers: StringMap = {}
    """Further headers. `$NAME` in a value is replaced by the trainer's environment variable: for Secrets."""
    sessions: PositiveInt = 256
    """Trajectories at a time."""


class AgentSpec(Model):
    """How a sample comes into being when it is more than one response: turns of the policy, with what tools, users or an environment say in between.
    Only tokens that the policy generated are learnt from."""

    python: PythonAgent | None = None
    """A function of your own makes the trajectory. Exactly one of `python`, `tools`, `environment`, `verifiers`, `skyrlGym`, `reasoningGym`,
    `openEnv` and `nemoGym`."""
    tools: Tools | None = None
    """The policy calls functions, until a turn calls none."""
    environment: Environment | None = None
    """A service answers each turn, until it says that the episode is over."""
    verifiers: EnvironmentLibrary | None = None
    """An environment of the library verifiers plays the trajectory through the policy's OpenAI-compatible endpoint."""
    skyrl_gym: EnvironmentLibrary | None = None
    """An environment of the library skyrl-gym answers each turn."""
    reasoning_gym: EnvironmentLibrary | None = None
    """A data set of the library reasoning-gym judges one turn. `data.generated` writes its questions."""
    open_env: OpenEnv | None = None
    """A server of the library OpenEnv answers each turn."""
    nemo_gym: NemoGym | None = None
    """A resources server of the library NeMo Gym answers what the policy calls, and judges the trajectory."""
    tool_parser: ParserName | None = None
    """How the policy writes the calls of tools: the name of a tool-call parser of vLLM, which reads them on the rollout servers. Unset: that of the
    model's family (docs/reference/models.md)."""
    reasoning_parser: ParserName | None = None
    """The reasoning parser of vLLM that separates what the policy thinks from the content of a message. Unset: that of gpt-oss for its models, and
    none for all others. Set it only for a policy that always reasons: without the end of reasoning, these parsers take a whole answer for it."""
    max_turns: PositiveInt
    """Most responses that one trajectory may ask of the policy. Each has at most `sampling.maxTokens` tokens."""
    max_tokens: PositiveInt
    """Longest trajectory, in tokens: all turns and what is said in between, without the prompt of the data."""
    timeout_seconds: PositiveFloat = 60.0
    """Longest time that the agent takes for one trajectory; its waiting for the policy does not count. A trajectory that takes longer has failed: it
    is counted and reported, and leaves the batch; it is never a silent 0."""
    env: Annotated[dict[VariableName, VariableValue], Field(max_length=512)] = {}
    """Environment variables of the agent's processes, in addition to those of the pod; values of at most 16384 characters. Secrets belong into
    `trainer.template.env`, or into `workers.template.env`."""
    workers: Workers | None = None
    """Run the agent in pods of its own. Unset: in processes next to the trainer's rank 0, at most 8. For `python`, `tools`, `verifiers`, `skyrlGym`
    and `reasoningGym`."""


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
