"""New models, as clients ask for them: what the service makes of that, and why it makes no such model."""

from rljob_trainer.gateway.registry import seed_of
from rljob_trainer.gateway.wire.requests import LoraConfig, ModelParams
from rljob_trainer.wire.service import CreateModel, WorkFailure

NOTICE = "adapters of the output layer are not served, since servers could not score prompts with them: train_unembed is taken as false"
"""What the SDK logs when a session begins, since it asks for these unless a script says otherwise."""
ADAPTERS_ALONE = (
    "lora_config.rank must be from 1 to {} (spec.service.maxRank): a service where that is 0 trains all parameters"
)
"""To a model without lora_config, or of rank 0, by which the SDK can ask for it, too."""
ALL_ALONE = "this service trains all parameters (spec.service.maxRank is 0), so it has no adapters: create the model with rank 0"
PART_OF_ALL = "lora_config.{0} is false, and all parameters are trained (spec.service.maxRank is 0): leave {0} out"
NOTHING = "nothing would be trained: set train_attn or train_mlp, since train_unembed is taken as false"


def why_not(params: ModelParams | WorkFailure, base: str, most: int) -> str:
    """Why no such model is made; empty: it is. `base`: what clients call the base model; `most`: spec.service.maxRank."""
    if isinstance(params, WorkFailure):
        return params.message
    lora = params.lora_config
    return other_base(params.base_model, base) or (_unfit_adapters(lora, most) if most else _unfit_of_all(lora))


def other_base(asked: str, base: str) -> str:
    """Why no model is made of a base model; empty: it is the one that is served."""
    return "" if asked == base else f"this service trains {base}, not {asked}"


def creation(model: str, params: ModelParams | WorkFailure) -> CreateModel:
    lora = None if isinstance(params, WorkFailure) else params.lora_config
    if lora is None or not lora.rank:
        return CreateModel(model=model, seq=0, rank=0, seed=0)
    seed = seed_of(model) if lora.seed is None else lora.seed % 2**31
    return CreateModel(model=model, seq=0, rank=lora.rank, seed=seed, mlp=lora.train_mlp, attention=lora.train_attn)


def _unfit_of_all(lora: LoraConfig | None) -> str:
    if lora is None:
        return ""
    if lora.rank:
        return ALL_ALONE
    left = [name for name in ("train_mlp", "train_attn", "train_unembed") if not getattr(lora, name)]
    return PART_OF_ALL.format(left[0]) if left else ""


def _unfit_adapters(lora: LoraConfig | None, most: int) -> str:
    if lora is None or not 0 < lora.rank <= most:
        return ADAPTERS_ALONE.format(most)
    return "" if lora.train_mlp or lora.train_attn else NOTHING
