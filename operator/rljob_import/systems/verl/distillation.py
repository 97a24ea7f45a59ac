"""verl's on-policy distillation: the teacher becomes a pool, and its divergence a part of the reward or of the loss."""

from collections.abc import Iterator

from rljob_import.settings import Settings, show
from rljob_import.shared.values import place
from rljob_import.table import Problem, Said, implied, lacks, read

D = "distillation."
TEACHER, LOSS = f"{D}teacher_models.teacher_model.", f"{D}distillation_loss."
SERVED = f"{TEACHER}inference."
ARGUMENTS = (
    *("gpu_memory_utilization", "max_model_len", "enforce_eager", "max_num_seqs", "max_num_batched_tokens"),
    *("enable_chunked_prefill", "enable_prefix_caching"),
)
"""Of the teacher's servers, which vLLM has under the same names."""
ONE = "a job has one teacher: name it teacher_model, and give the rows of the others jobs of their own"
MOST_TOKENS, SHOWN = 128, 20
"""The teacher's likeliest tokens that a job compares, and those that vLLM gives without max-logprobs."""
TAUGHT = "the policy learns from the teacher alone"
REVERSE = "KL(policy || teacher) over these tokens, and all others as one event, in place of KL(teacher || policy)"

DISTILLATION = (
    read(f"{D}enabled", "algorithm.distillation", False),
    read(f"{TEACHER}model_path", "pools"),
    read(f"{SERVED}tensor_model_parallel_size", "pools", 2),
    read(f"{D}n_gpus_per_node", "pools", 8, text="x nnodes / GPUs of a server: replicas"),
    read(f"{D}nnodes", "pools", 0),
    *(read(f"{SERVED}{key}", "pools", text="vllmArgs of the pool") for key in ARGUMENTS),
    read(f"{LOSS}loss_mode", "algorithm.distillation.where", "k3"),
    read(f"{LOSS}topk", "algorithm.distillation.topK", 32, text="of forward_kl_topk"),
    read(f"{LOSS}use_policy_gradient", "algorithm.distillation.where", False),
    read(f"{LOSS}use_task_rewards", "rewards", True),
    read(f"{LOSS}distillation_loss_coef", "algorithm.distillation.coefficient", 1.0, text="next to task rewards"),
    read(f"{LOSS}loss_max_clamp", "algorithm.advantageClip", text="with use_policy_gradient"),
    lacks(f"{LOSS}log_prob_min_clamp", "log-probabilities are not clamped"),
    *(implied(f"{LOSS}{key}") for key in ("policy_loss_mode", "use_chunked_topk", "chunked_topk_chunk_size")),
    *(implied(f"{LOSS}clip_ratio{side}", "is the policy's: algorithm.clip") for side in ("", "_low", "_high")),
    *(implied(f"{TEACHER}{key}", "there is one teacher") for key in ("key", "num_replicas")),
    implied(f"{SERVED}*"),
    read(f"{D}teacher_models.*", "", text="one teacher, teacher_model"),
    implied(f"{D}teacher_key", "there is one teacher"),
)


def alone(settings: Settings) -> bool:
    """Whether the policy learns from the teacher only, without rewards."""
    return bool(settings[f"{D}enabled"]) and not settings[f"{LOSS}use_task_rewards"]


def distillation(settings: Settings) -> Iterator[Said]:
    if not settings[f"{D}enabled"]:
        return
    if others := settings.below(f"{D}teacher_models"):
        names = tuple(given.name for given in others.values())
        yield Problem(names[0], ONE, names)
    elif not settings[f"{TEACHER}model_path"]:
        yield settings.problem("is missing: it names the teacher", f"{TEACHER}model_path")
    else:
        yield from _pool(settings)
        yield settings.field("algorithm.distillation.pool", "teacher", f"{D}enabled")
        weight = f"{LOSS}distillation_loss_coef"
        if not alone(settings):
            yield settings.field("algorithm.distillation.coefficient", float(settings.number(weight)), weight)
        yield from _divergence(settings)


def _pool(settings: Settings) -> Iterator[Said]:
    model, size = f"{TEACHER}model_path", f"{SERVED}tensor_model_parallel_size"
    gpus = (f"{D}n_gpus_per_node", f"{D}nnodes")
    replicas = max(1, settings.integer(gpus[0]) * settings.integer(gpus[1]) // max(1, settings.integer(size)))
    arguments = [f"{SERVED}{key}" for key in ARGUMENTS if f"{SERVED}{key}" in settings]
    given = {key.removeprefix(SERVED).replace("_", "-"): settings[key] for key in arguments}
    if settings[f"{LOSS}loss_mode"] == "forward_kl_topk" and settings.integer(f"{LOSS}topk") > SHOWN:
        given["max-logprobs"] = _tokens(settings)
    path = place(settings[model], settings.options.root)
    pool = {"name": "teacher", "model": path, "replicas": replicas, "tensorParallel": settings.integer(size)}
    yield settings.field("pools", [pool | ({"vllmArgs": given} if given else {})], model, size, *gpus, *arguments)
    if path != settings[model]:
        yield settings.changed(model, f"put it on the volume, at {path}")


def _tokens(settings: Settings) -> int:
    return min(MOST_TOKENS, settings.integer(f"{LOSS}topk"))


def _divergence(settings: Settings) -> Iterator[Said]:
    """In the reward, as the sampled token's; else in the loss, as that of a token or of the teacher's likeliest tokens."""
    mode, gradient, bound = f"{LOSS}loss_mode", f"{LOSS}use_policy_gradient", f"{LOSS}loss_max_clamp"
    kind, where = settings[mode], "algorithm.distillation.where"
    if kind == "forward_kl_topk":
        yield settings.field(where, "loss", mode)
        yield settings.field("algorithm.distillation.topK", _tokens(settings), f"{LOSS}topk")
        yield settings.changed(mode, REVERSE)
        if settings.integer(f"{LOSS}topk") > MOST_TOKENS:
            yield settings.changed(f"{LOSS}topk", f"{MOST_TOKENS}, the most that a job compares")
    elif kind not in ("k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs"):
        yield settings.problem(f"{show(kind)} is no divergence that is read", mode)
    elif settings[gradient]:
        yield settings.field(where, "reward", gradient)
        if kind not in ("k1", "kl"):
            yield settings.changed(mode, "log policy - log teacher of the sampled token, as with k1")
    else:
        yield settings.field(where, "loss", gradient)
        if kind not in ("k2", "mse"):
            yield settings.changed(mode, "k2 in its place, whose expected gradient is that of KL(policy || teacher)")
    if bound in settings and kind != "forward_kl_topk" and settings[gradient]:
        yield settings.field("algorithm.advantageClip", float(settings.number(bound)), bound)
        if not alone(settings):
            yield settings.changed(bound, "bounds the sum of the advantages of rewards and teacher")
    elif bound in settings:
        yield settings.lacking(bound, "the loss of a token is not bounded")
