"""Building blocks of several sections of the spec, and spec.podSecurity."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from rljob_api import quantity
from rljob_api.base import Model


def _amount(given: Any) -> Any:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\s]*$", max_length=1024)]
PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
"""A finite number: JSON has no others, and the API server takes none."""
PositiveFloat = Annotated[Number, Field(gt=0)]
NonNegativeFloat = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Quantity = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$", max_length=32),
    BeforeValidator(_amount),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True, "minimum": 0}),
]
"""A Kubernetes quantity: a text, or a whole number, as `cpu: 8`."""
FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
LibraryName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./@:-]*$", max_length=256)]
"""Name of an environment or a data set in a Python library."""
ImageName = Annotated[str, StringConstraints(pattern=r"^[^\s]+$", max_length=512)]
Verbatim = Annotated[
    dict[str, Any], Field(max_length=512, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
]
"""A Kubernetes, Megatron or vLLM object that passes through as it is. Megatron and vLLM have fewer than 300 keys."""
StringMap = Annotated[dict[str, str], Field(max_length=128)]
"""Labels, headers and the like."""
Quantities = Annotated[dict[str, Quantity], Field(max_length=64)]
"""Amounts by resource name."""
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253)]
"""Name of a Kubernetes object."""
DnsName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253)
]
"""Name of a RuntimeClass or a scheduler."""
ControllerName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-A-Za-z0-9._~/]+$", max_length=63)
]
"""A domain and a path, as in `spec.managedBy` of a Kubernetes Job."""
RowKey = Annotated[str, StringConstraints(max_length=256)]
"""Key of a row of data."""
MOST_NODES, MOST_SPARES, MOST_PROCESSES, MOST_PODS = 1024, 64, 64, 4096
"""Pods of a gang, its spares, processes in a pod, and pods of a job, at most. Status and control message name every pod and have to fit into one
object each."""
MOST_SERVER_PODS = 2048
"""Pods of servers of several pods, of which both say more."""
Nodes = Annotated[int, Field(ge=1, le=MOST_NODES)]
ProcessCount = Annotated[int, Field(ge=1, le=MOST_PROCESSES)]


class EnvVar(Model):
    """One environment variable, as in a Kubernetes container."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
    """Name of the variable. Names that rljob or torchrun set are refused."""
    value: Annotated[str, StringConstraints(max_length=131072)] | None = None
    """Value of the variable; `$(NAME)` stands for another variable, as in Kubernetes."""
    value_from: Verbatim | None = None
    """Source in place of a value, as in Kubernetes: secretKeyRef, configMapKeyRef or fieldRef."""


EnvVars = Annotated[list[EnvVar], Field(max_length=512)]
EnvironmentSources = Annotated[list[Verbatim], Field(max_length=64)]
PullSecrets = Annotated[list[Verbatim], Field(max_length=32)]
Tolerations = Annotated[list[Verbatim], Field(max_length=128)]
ResourceClaims = Annotated[list[Verbatim], Field(max_length=16)]


class Volume(Model):
    """A volume of all the job's pods and where it is mounted."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    """Name of the volume inside the pods."""
    mount_path: AbsolutePath
    """Path at which every container of the job sees the volume."""
    read_only: bool = False
    """Mount the volume without the right to write."""
    source: Verbatim
    """A Kubernetes volume source, for example `{persistentVolumeClaim: {claimName: data}}`."""

    @property
    def writable(self) -> bool:
        """Whether pods may write to it: some kinds are never written, and others may be read-only where they are mounted, or by their source."""
        kinds = self.source.keys() & {"configMap", "secret", "downwardAPI", "projected"}
        sources = (given for given in self.source.values() if isinstance(given, dict))
        return not (self.read_only or kinds or any(given.get("readOnly") is True for given in sources))

    @property
    def of_one_pod(self) -> bool:
        """Whether every pod gets a volume of its own, which is empty at first and ends with the pod."""
        return bool(self.source.keys() & {"emptyDir", "ephemeral"})


VolumeList = Annotated[list[Volume], Field(max_length=32)]


SourceUrl = Annotated[
    str,
    StringConstraints(
        pattern=r"^(hf|s3|gs)://[^\s/]+/[^\s]+$|^https?://[^\s/]+/[^\s]+$|^file:///[^\s]+$", max_length=1024
    ),
]

UploadUrl = Annotated[str, StringConstraints(pattern=r"^(s3|gs)://[^\s/]+/[^\s]+$|^file:///[^\s]+$", max_length=1024)]


class Source(Model):
    """Files that are copied to a volume before the job begins."""

    source: SourceUrl
    """Where the files come from: `hf://ORG/MODEL@REVISION`, `hf://datasets/ORG/SET@REVISION`, `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`,
    `https://HOST/FILE` or `file:///DIRECTORY`. A file on the web may be held to its digest: `https://HOST/FILE#sha256=HEX`."""
    path: AbsolutePath
    """Directory that the files are copied to, under their paths below the source. It holds nothing else."""
    files: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=64)] = []
    """Patterns of the files that are copied, for example `main/*.parquet`; a pattern that begins with `!` leaves files out. Empty: all files."""


class Resources(Model):
    """Requests and limits of a container, as in Kubernetes."""

    requests: Quantities = {}
    """Resources that the scheduler reserves, by name."""
    limits: Quantities = {}
    """Resources that the container may not exceed, by name."""


class Template(Model):
    """The small set of pod settings that a role may choose; everything else is the operator's."""

    image: ImageName | None = None
    """Image of this role; the job's `image` when unset."""
    resources: Resources = Resources()
    """Requests and limits of this role's container; the operator adds a GPU, by `trainer.resourceName`, for each process."""
    node_selector: StringMap = {}
    """Labels that a node must have to run such a pod."""
    tolerations: Tolerations = []
    """Tolerations of this role's pods."""
    affinity: Verbatim | None = None
    """Affinity of this role's pods."""
    env: EnvVars = []
    """Environment variables of this role; they win over the job's."""
    resource_claims: ResourceClaims = []
    """Devices of each pod: claims with a name and a resourceClaimTemplateName."""
    labels: StringMap = {}
    """Further labels of this role's pods; those that rljob sets cannot be replaced."""
    annotations: StringMap = {}
    """Further annotations of this role's pods."""
    priority_class_name: ObjectName | None = None
    """Name of the PriorityClass of this role's pods."""
    termination_grace_period_seconds: PositiveInt = 60
    """Seconds that a deleted pod has to finish its step and save."""

    @property
    def memory_limit(self) -> float:
        """Bytes of limits.memory; 0: there is no limit. Raises ValueError for what is no quantity."""
        limits = self.resources.limits
        return quantity.parse(limits["memory"]) / 1000 if "memory" in limits else 0.0


class Sampling(Model):
    """How responses are sampled. In training only the temperature may change the distribution, because the trainer computes its log-probabilities
    from it."""

    temperature: NonNegativeFloat = 1.0
    """Temperature of generation and of training's log-probabilities; 0 is greedy and only for evaluation."""
    max_tokens: PositiveInt = 1024
    """Longest response, in tokens."""
    stop: Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=16)] = []
    """Texts that end a response in addition to the end-of-sequence token. The response keeps the text: its tokens were generated, and count."""


MAX_ID = 2**31 - 1
"""Largest user or group id of Kubernetes."""
Id = Annotated[int, Field(ge=0, le=MAX_ID)]


class PodSecurity(Model):
    """User and groups of the job's pods, by which file systems decide who may read and write. A field that is not set has the administrator's
    default (`jobs.podSecurity` of the chart)."""

    run_as_user: Id | None = None
    """User id of all processes. 0, root, is refused."""
    run_as_group: Id | None = None
    """Primary group id of all processes; new files belong to it."""
    fs_group: Id | None = None
    """Group id that volumes are given to when they are mounted, where their driver supports it; all processes are in this group."""
    supplemental_groups: Annotated[list[Id], Field(max_length=32)] | None = None
    """Further group ids of all processes, for example of a shared directory on NFS."""
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    """When the files of a volume are given to `fsGroup`: at every mount, or only if the owner of the volume's root directory is wrong."""
