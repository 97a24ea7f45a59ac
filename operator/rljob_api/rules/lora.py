"""Low-rank adapters: which targets go together, the models that they are proven for, and the directories that they begin from."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from rljob_api.families import FAMILIES, family_of, targets_of
from rljob_api.family import ADAPTED, MODULES, PARTS, Family
from rljob_api.rules.engine import COLOCATED, RL, SIZES, TENSOR, Check, Rule, Violation, field, present
from rljob_api.spec import RLJobSpec
from rljob_api.spec.model import LORA_RANKS, LoraSpec

LORA = present("model.lora")
ALONE = LORA & field("model.lora.sync").equals("adapters")
"""Rollouts receive adapters alone, without the model."""

OBJECT_RULES = (
    Rule(
        "model.lora.rank",
        LORA.implies(TENSOR.divides(field("model.lora.rank"))),
        "the columns of an adapter are shared by the tensor-parallel ranks, and {0} does not divide it",
        "choose a multiple of it",
        (TENSOR,),
    ),
    Rule(
        "model.megatronCheckpoint",
        LORA.implies(~present("model.megatronCheckpoint")),
        "adapters belong to the weights in spec.model.path, by whose name others find them",
        "export that checkpoint as a Hugging Face directory and name it in spec.model.path, or remove spec.model.lora",
    ),
    Rule(
        "reference.offload",
        LORA.implies(present("reference.path") | field("reference.offload")),
        "the reference is the policy without its adapters: there is no second copy that could stay on the device",
        "remove it, or name another model in spec.reference.path",
    ),
    Rule(
        "model.lora.sync",
        ALONE.implies(RL),
        "only task rl has rollouts that get the policy",
        "remove it, or set spec.task: rl",
    ),
    Rule(
        "model.lora.sync",
        ALONE.implies(~COLOCATED),
        "colocated servers drop their weights while the policy is trained, and get whole models only",
        "set merged, or spec.rollout.placement: separate",
    ),
    Rule(
        "model.lora.rank",
        ALONE.implies(field("model.lora.rank") <= LORA_RANKS[-1]),
        f"vLLM has room for adapters of rank {LORA_RANKS[-1]} or less",
        "lower it, or set spec.model.lora.sync: merged",
    ),
)

FIELD = "spec.model.lora"
MODULES_OF_FUSED: dict[str, tuple[str, ...]] = {"linear_qkv": ("qkv_proj",), "linear_fc1": ("gate_up_proj",)}
"""transformers' names, by target, in families whose files have these matrices as one tensor."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of a directory that `PeftModel.from_pretrained(base model, directory)` reads."""
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
"""How the names of an adapter's two tensors end, as the peft library has them."""
PLAIN = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "use_rslora": (False,),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "modules_to_save": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([],),
}
"""Values of an adapter_config.json that mean plain LoRA, W x + (alpha / rank) B A x with the same rank everywhere. None is allowed for each key."""


def _target_violations(spec: RLJobSpec) -> Iterator[Violation]:
    """megatron-bridge makes adapters of whole matrices or of parts in one model, not both."""
    lora = spec.model.lora
    targets = lora.targets or [] if lora else []
    fused = [t for t in targets if t in ("linear_qkv", "linear_fc1")] if lora and lora.of_parts else []
    if fused:
        rule = "adapters with one A for a whole matrix do not go together with adapters of parts"
        fix = f"name all its parts in place of {', '.join(fused)}"
        yield Violation(f"{FIELD}.targets", ", ".join(targets), rule, fix)


RULES: tuple[Check, ...] = (*OBJECT_RULES, _target_violations)


def settled(lora: LoraSpec, config: dict[str, Any]) -> LoraSpec:
    """The section with its targets filled in, for the model of a config.json."""
    return lora.model_copy(update={"targets": list(targets_of(lora.targets, config))})


def with_targets(spec: RLJobSpec, config: dict[str, Any]) -> RLJobSpec:
    """The spec with the targets of its adapters filled in, if it has adapters."""
    lora = spec.model.lora
    if not lora:
        return spec
    return spec.model_copy(update={"model": spec.model.model_copy(update={"lora": settled(lora, config)})})


def adapter_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Adapters where they are proven: of the matrices that the table of families names."""
    lora = spec.model.lora
    if not lora:
        return
    if family := family_of(config):
        yield from _family_violations(lora, family)
    tensor, groups = spec.trainer.parallelism.tensor, config.get("num_key_value_heads") or 0
    if groups % tensor and {"linear_q", "linear_k", "linear_v"} & set(lora.targets or ()):
        rule = (
            f"adapters of queries, keys or values alone need whole heads on every rank: the model has {groups} of keys"
        )
        yield Violation(
            f"spec.{SIZES}.tensor", str(tensor), rule, f"choose a divisor of {groups}, or target linear_qkv"
        )


def _family_violations(lora: LoraSpec, family: Family) -> Iterator[Violation]:
    targets = lora.targets or []
    parts = set(PARTS) if family.fused else set()
    refused = [target for target in targets if _matrix(target) not in family.adapters or target in parts]
    why = f"in models of the type {family.model_type}: {family.unadapted or 'one tensor of its files has all parts'}"
    if not family.adapters:
        rule = f"adapters are refused {why}"
        proven = ", ".join(f.model_type for f in FAMILIES.values() if f.adapters)
        yield Violation(FIELD, "set", rule, f"remove it, or use one of {proven}")
    elif refused:
        parted = not family.fused and {_matrix(part) for part in PARTS} & set(family.adapters)
        fix = f"name matrices among {', '.join(family.adapters)} only" + (", or their parts" if parted else "")
        yield Violation(f"{FIELD}.targets", ", ".join(targets), f"{', '.join(refused)}: refused {why}", fix)
    if lora.sync == "adapters" and family.adapters and "cpu" not in family.servers:
        rule = f"nothing shows that vLLM computes adapters alone in models of the type {family.model_type} as they are trained"
        yield Violation(f"{FIELD}.sync", lora.sync, rule, "set merged")


def _matrix(target: str) -> str:
    """megatron-core's matrix that a target is, or is a part of."""
    return next(m for m in ADAPTED if target == m or (target in PARTS and set(MODULES[target]) <= set(MODULES[m])))


def modules_of(targets: Iterable[str], model: dict[str, Any] | None = None) -> list[str]:
    """transformers' names of the modules that get an adapter. `model`: the model's config.json."""
    names = _modules(model)
    return sorted({module for target in targets for module in names[target]})


def _modules(model: dict[str, Any] | None) -> dict[str, tuple[str, ...]]:
    family = family_of(model or {})
    return MODULES | MODULES_OF_FUSED if family and family.fused else MODULES


def given_violations(
    lora: LoraSpec, model: dict[str, Any] | None, config: dict[str, Any], modules: Collection[str] | None
) -> Iterator[Violation]:
    """The adapters that a job starts from against its spec. `config`: their adapter_config.json; `modules`: the modules that they adapt (None: not
    known); `model`: the model's config.json, if it is known."""
    for key, values in PLAIN.items():
        value = config.get(key)
        if value is not None and value not in values:
            rule = f"its {key} = {value} is not supported"
            yield Violation(f"{FIELD}.path", str(lora.path), rule, "use plain LoRA, or merge it into the model first")
    for name, ours, key in (("rank", lora.rank, "r"), ("alpha", lora.alpha, "lora_alpha")):
        if config.get(key) != ours:
            rule = f"the adapters in {lora.path} have {key} = {config.get(key)}"
            yield Violation(f"{FIELD}.{name}", str(ours), rule, "set that, or remove spec.model.lora.path")
    targets = targets_of(lora.targets, model) if model else lora.targets
    if modules is not None and targets and set(modules) != set(modules_of(targets, model)):
        rule = f"the adapters in {lora.path} are of {', '.join(sorted(modules))}"
        value = ", ".join(targets)
        shown = value if lora.targets else f"unset (for this model: {value})"
        yield Violation(f"{FIELD}.targets", shown, rule, _fitting(modules, model))


def beginning_violations(
    spec: RLJobSpec | None, model: dict[str, Any] | None, config: dict[str, Any] | None
) -> Iterable[Violation]:
    """`given_violations` of a job, if it starts from adapters whose `config`, an adapter_config.json, is known."""
    lora = spec.model.lora if spec else None
    if not (lora and lora.path and config):
        return ()
    return given_violations(lora, model, config, named_modules(config))


def named_modules(config: dict[str, Any]) -> set[str] | None:
    """The modules that an adapter_config.json names; None when it has an expression, which the model's own names decide."""
    names = config.get("target_modules")
    return {str(name).split(".")[-1] for name in names} if isinstance(names, list) else None


def _fitting(modules: Collection[str], model: dict[str, Any] | None) -> str:
    """The fix: targets that name exactly these modules, if there are any."""
    targets = parts_of(modules, model)
    if modules_of(targets, model) != sorted(modules):
        return "merge them into the model first"
    return f"set [{', '.join(targets)}], or remove spec.model.lora.path"


def parts_of(modules: Collection[str], model: dict[str, Any] | None = None) -> list[str]:
    """Targets that give each of these modules an A of its own. `model`: the model's config.json."""
    names = _modules(model)
    return [t for t in (*PARTS, *ADAPTED) if len(names[t]) == 1 and set(names[t]) <= set(modules)]
