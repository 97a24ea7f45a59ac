"""Every name that two parts have to agree on: the API group, labels, child objects, environment, ports, paths, limits.

One function per name. Nothing else in the tree spells any of these.
"""

from functools import lru_cache
from pathlib import Path

GROUP = "rljob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RLJob"
PLURAL = "rljobs"

PROTOCOL = 1
"""Version of the runtime protocol (control and report). Operator and trainer refuse another number."""

MAX_JOB_NAME = 42
"""A StatefulSet's name may have 52 characters (its revision label adds 11 to reach 63); our longest suffix is that of a pool, a `-` and its name."""
MAX_POOL_NAME = 9
"""With the job's name, a pool's name makes the name of a StatefulSet. No role has a `-`: what precedes the last one is the job, so that no two jobs
have children of the same name."""

UNPUBLISHED = "registry.invalid/"
"""Registry of the images in manifests, as long as none is published: nobody can own this name (RFC 2606)."""
PUBLISH = (
    "no image of RLJob is published yet: build the image and push it (docs/quickstart.md), "
    f"then put your registry in place of {UNPUBLISHED[:-1]}"
)
"""What to do about it."""

# Labels and annotations
LABEL_JOB = f"{GROUP}/job"
LABEL_ROLE = f"{GROUP}/role"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "rljob"
CONTROLLER = f"{GROUP}/operator"
"""Value of spec.managedBy that names the operator, as no value does."""
ANNOTATION_REQUEST = f"{GROUP}/request"
ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"
ANNOTATION_CLAIM = f"{GROUP}/claim"
"""On pods of environments that agent-sandbox has made: the ordinal of their SandboxClaim, which writes it into the pod that it gets."""
LABEL_SANDBOX = f"{GROUP}/sandbox"
"""On pods of environments, whose programs nobody trusts: by it NetworkPolicies tell them from the job's other pods."""
LABEL_HEAD = f"{GROUP}/head"
"""On the heads of servers of several pods, for the selector of the scale subresource."""
ANNOTATION_NODES = f"{GROUP}/nodes"
"""How many pods the pod's server has, if more than one."""
ANNOTATION_UNGATED = f"{GROUP}/ungated"
"""When a pod's scheduling gate was removed, after a node was chosen for it."""
GATE = f"{GROUP}/placement"
"""Scheduling gate of pods that the `builtin` backend places."""
FIELD_MANAGER = "rljob-operator"
JOB_POLICY = "rljob-job-policy"
"""ConfigMap of the chart: what the administrator sets for all jobs."""
JOB_POLICY_KEY = "policy.json"
OPERATOR_NAMESPACE = "rljob-system"
"""Where the operator is, unless a user says otherwise."""

ROLE_TRAINER = "trainer"
ROLE_ROLLOUT = "rollout"
ROLES = (ROLE_TRAINER, ROLE_ROLLOUT)
"""Roles of every job's pods. Others are the gangs of other models, workers of agents and rewards, the gateway of a service, and pools, by their
names."""
ROLE_CRITIC = "critic"
ROLE_REFERENCE = "reference"
ROLE_WORKER = "worker"
"""Role of pods that run agents."""
ROLE_SCORER = "scorer"
"""Prefix of the role of pods that run a reward function: its index in spec.rewards follows, see `scorer_role`."""
ROLE_REWARD = "reward"
"""Prefix of a reward model's role: its index in spec.rewards follows, see `reward_role`."""
ROLE_SANDBOX = "sandbox"
"""Prefix of the role of an environment's pods: its index in spec.environments follows, see `sandbox_role`."""
MODEL_ROLES = (ROLE_TRAINER, ROLE_CRITIC, ROLE_REFERENCE)
"""Roles of models that Megatron computes, besides those of `reward_role`; `trainer` is the policy."""
ROLE_GATEWAY = "gateway"
"""What clients of `task: service` talk to."""
RESERVED_ROLES = (*MODEL_ROLES, ROLE_REWARD, ROLE_SANDBOX, ROLE_ROLLOUT, ROLE_WORKER, ROLE_SCORER, ROLE_GATEWAY)
"""Names that no pool may have: its name is the role of its pods."""

# Keys inside child objects
CONTROL_KEY = "control.json"
REPORT_KEY = "report.json"
TOKEN_KEY = "token"

# Environment of our containers
ENV_JOB = "RLJOB_NAME"
ENV_NAMESPACE = "RLJOB_NAMESPACE"
ENV_POD_NAME = "RLJOB_POD_NAME"
ENV_POD_UID = "RLJOB_POD_UID"
ENV_POD_IP = "RLJOB_POD_IP"
ENV_WORK = "RLJOB_WORK"
ENV_ATTEMPT_DIR = "RLJOB_ATTEMPT_DIR"
"""The directory of the attempt that a rank or driver belongs to."""
ENV_ROLE = "RLJOB_ROLE"
"""The role of a rank, which its launcher sets; unset: the trainer."""
ENV_ROLLOUT_TOKEN = "RLJOB_ROLLOUT_TOKEN"
ENV_ATTEMPT = "RLJOB_ATTEMPT"
"""Attempt that was current when a rollout server started: it refuses lower ones from its first request."""
RESERVED_ENV_PREFIXES = ("RLJOB_", "PET_", "TORCHELASTIC_", "KUBERNETES_SERVICE_")
RESERVED_ENV = (
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("PATH", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "LD_AUDIT"),
)
"""Variables that torchrun sets, by which the images find python and their packages, and which put other code into every process."""

# Ports
ROLLOUT_PORT = 8000
MASTER_PORT_FIRST = 29500
MASTER_PORT_COUNT = 100
SERVICE_PORT_FIRST = 29600
SERVER_PORT_FIRST = 29700
SERVER_RPC_PORT_FIRST = 29800
GATEWAY_PORT = 8470
"""Where a service answers its clients."""
GATEWAY_WORK_PORT = 8471
"""Where it hands the driver what there is to do, and tells the kubelet that it serves."""
VIEW_PORT = 6007
"""Of `view`, on loopback, next to TensorBoard's 6006."""

# Containers
TRAINER_CONTAINER = "trainer"
ROLLOUT_CONTAINER = "rollout"
POOL_CONTAINER = "server"
WORKER_CONTAINER = "worker"
SANDBOX_CONTAINER = "sandbox"
GATEWAY_CONTAINER = "gateway"
WORK_DIR = "/run/rljob"
SANDBOX_DIR = "/sandbox"
"""Where programs in an environment's pod work."""
HELPER_DIR = "/run/rljob-helper"
"""Where such a pod has the helper that runs these programs, and the helper's token."""
USER_ID = 65532


def labels(job: str, role: str | None = None) -> dict[str, str]:
    """Labels of a job's children; with a role, those of that role's pods."""
    return {LABEL_JOB: job, LABEL_MANAGED_BY: MANAGED_BY} | ({LABEL_ROLE: role} if role else {})


def selector(job: str, role: str | None = None) -> str:
    return ",".join(f"{k}={v}" for k, v in labels(job, role).items())


def heads(job: str, role: str) -> str:
    """Selector of the pods that answer for servers of several pods: one for each server."""
    return f"{selector(job, role)},{LABEL_HEAD}=true"


def gang(job: str, role: str) -> str:
    """The StatefulSet of a role."""
    return f"{job}-{role}"


def reward_role(index: int) -> str:
    """Role of the model of spec.rewards[index]."""
    return f"{ROLE_REWARD}{index}"


def sandbox_role(index: int) -> str:
    """Role of the pods of spec.environments[index]."""
    return f"{ROLE_SANDBOX}{index}"


def scorer_role(index: int) -> str:
    """Role of the pods that run the function of spec.rewards[index]."""
    return f"{ROLE_SCORER}{index}"


def scorer_index(role: str) -> int:
    """Index in spec.rewards of the function that pods of this role run."""
    return int(role.removeprefix(ROLE_SCORER))


def is_model_role(role: str) -> bool:
    """Whether pods of the role are launchers of ranks, for the policy or for another model that Megatron computes."""
    return role in MODEL_ROLES or _is_numbered(role, ROLE_REWARD)


def is_sandbox_role(role: str) -> bool:
    """Whether pods of the role are those of an environment."""
    return _is_numbered(role, ROLE_SANDBOX)


def is_worker_role(role: str) -> bool:
    """Whether pods of the role run a user's code for the driver: an agent, or a reward function."""
    return role == ROLE_WORKER or _is_numbered(role, ROLE_SCORER)


def _is_numbered(role: str, prefix: str) -> bool:
    return role.startswith(prefix) and role.removeprefix(prefix).isdecimal()


@lru_cache(maxsize=1024)
def is_placed(role: str) -> bool:
    """Whether the job's placement is about pods of the role: not workers, sandboxes and gateways, which take no GPUs and may be anywhere."""
    return not (role == ROLE_GATEWAY or is_worker_role(role) or is_sandbox_role(role))


def stays(role: str) -> bool:
    """Whether pods of the role stay while the job is suspended or has no nodes: clients wait at the gateway."""
    return role == ROLE_GATEWAY


def container(role: str) -> str:
    """Our container in the pods of a role."""
    if is_model_role(role):
        return TRAINER_CONTAINER
    if is_sandbox_role(role):
        return SANDBOX_CONTAINER
    if is_worker_role(role):
        return WORKER_CONTAINER
    own = {ROLE_ROLLOUT: ROLLOUT_CONTAINER, ROLE_GATEWAY: GATEWAY_CONTAINER}
    return own.get(role, POOL_CONTAINER)


def pods(job: str) -> str:
    """ServiceAccount, Role, RoleBinding and NetworkPolicy of all the job's pods."""
    return f"{job}-pods"


def sandboxes(job: str) -> str:
    """ServiceAccount and NetworkPolicy of the pods of the job's environments."""
    return f"{job}-sandboxes"


def pod(job: str, role: str, ordinal: int) -> str:
    return f"{gang(job, role)}-{ordinal}"


def role_of(job: str, pod: str) -> str:
    """Role of one of the job's pods, by its name."""
    return pod.rpartition("-")[0].removeprefix(gang(job, ""))


def pod_group(job: str) -> str:
    """The group of all pods of a job, for Kueue, Volcano and KAI."""
    return f"{job}-gang"


def control(job: str) -> str:
    return f"{job}-control"


def report(pod_name: str) -> str:
    return f"{pod_name}-report"


def token(job: str, uid: str, number: int = 1) -> str:
    """The Secret that holds the token of the job's rollout servers. Its name has the job's uid, since the operator may not read it to see whose it
    is.

    `number`: status.token. Another value has another name, so that pods with different values can be told apart.
    """
    return f"{job}-token-{uid[:8]}-{number}"


def master_port(attempt: int) -> int:
    """Each attempt has a port of its own, so that a stale rank cannot join its successor's store."""
    return MASTER_PORT_FIRST + attempt % MASTER_PORT_COUNT


def service_port(attempt: int) -> int:
    """Where the trainer answers the gangs of other models, and workers; of an attempt's own for the same reason."""
    return SERVICE_PORT_FIRST + attempt % MASTER_PORT_COUNT


def server(job: str, role: str, index: int) -> str:
    """A server that consists of several pods, by its place among those of a role."""
    return f"{gang(job, role)}-{index}"


def server_port(generation: int) -> int:
    """Where the pods of such a server meet; of a generation's own for the same reason."""
    return SERVER_PORT_FIRST + generation % MASTER_PORT_COUNT


def server_rpc_port(generation: int) -> int:
    """Where engines of data-parallel copies find the API server of such a server; of a generation's own for the same reason."""
    return SERVER_RPC_PORT_FIRST + generation % MASTER_PORT_COUNT


# Files under spec.checkpoint.path, on the job's volume
def step_dir(root: Path, step: int) -> Path:
    return root / f"global_step_{step}"


def manifest_file(step_directory: Path) -> Path:
    return step_directory / "manifest.json"


def huggingface_dir(root: Path, step: int) -> Path:
    return step_dir(root, step) / "huggingface"


def adapter_dir(root: Path, step: int) -> Path:
    """Directory of the peft library's files."""
    return step_dir(root, step) / "adapter"


def exports_dir(root: Path) -> Path:
    """Directory of exports that are not part of a checkpoint."""
    return root / "exports"


def export_dir(root: Path, step: int) -> Path:
    return exports_dir(root) / f"step_{step}"


def fence_dir(root: Path) -> Path:
    return root / "fence"


def log_dir(root: Path, attempt: int) -> Path:
    return root / "logs" / f"attempt-{attempt}"


def rank_log(root: Path, attempt: int, rank: int, role: str = ROLE_TRAINER) -> Path:
    """`rank`: global in the role's gang, since it is what people read, and pods change their ranks between attempts."""
    prefix = "" if role == ROLE_TRAINER else f"{role}-"
    return log_dir(root, attempt) / f"{prefix}rank-{rank}.log"


def driver_log(root: Path, attempt: int) -> Path:
    return log_dir(root, attempt) / "driver.log"


def batch_file(root: Path, step: int) -> Path:
    return root / "batches" / f"step_{step}.safetensors"


def samples_file(root: Path, step: int) -> Path:
    return root / "samples" / f"step_{step}.jsonl"


def sample_image(root: Path, step: int, number: int) -> Path:
    return samples_file(root, step).with_name(f"step_{step}_{number}.png")


def spans_file(root: Path, step: int) -> Path:
    return root / "spans" / f"step_{step}.jsonl"


def metrics_file(root: Path) -> Path:
    return root / "metrics.jsonl"


def tensorboard_dir(root: Path) -> Path:
    return root / "tensorboard"
