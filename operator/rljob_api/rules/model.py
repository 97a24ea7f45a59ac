"""The parallel layout against a model's config.json, and which models there are."""

from collections.abc import Iterator
from typing import Any

from rljob_api import names
from rljob_api.config_json import Unfit, contradictions, unfit
from rljob_api.families import FAMILIES, REFUSED, Refusal, family_of, has_delta_nets, language_of
from rljob_api.rules.engine import SIZES, Violation
from rljob_api.rules.exact import exact_violations
from rljob_api.rules.features import feature_violations
from rljob_api.rules.keys import TRANSFORMER
from rljob_api.rules.layout import JudgedRanks, unfit_module
from rljob_api.rules.lora import adapter_violations
from rljob_api.rules.rollout import tool_parser_violations
from rljob_api.rules.served_model import server_violations
from rljob_api.rules.sparse_attention import indexer_violations, schedule_violations
from rljob_api.rules.speculation import speculation_violations
from rljob_api.rules.vision import vision_violations
from rljob_api.rules.widths import feed_forward, heads_of, undivided
from rljob_api.sizing.shape import experts_of
from rljob_api.sizing.split import Unsplit, split
from rljob_api.spec import RLJobSpec
from rljob_api.type_errors import as_written

UNFIT = {
    "mlp": "the model has experts in its place: name moe",
    "moe": "the model has no experts",
    "moe_act": "the model has no experts",
    "layernorm": "the norms of a model without experts are parts of its matrices",
}
"""Modules that only models with, or without, experts have."""
DELTA_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
"""Keys of the heads of gated delta nets."""
REPLAYED_EXPERTS = 2**15
"""Largest number of experts for router replay: the index of an expert is stored in two bytes at most, with a sign."""


def _no_family(spec: RLJobSpec, kind: str) -> Violation:
    why, help_ = REFUSED.get(kind, Refusal(""))
    fixes = [fix for fix in (help_, f"use one of {', '.join(FAMILIES)}") if fix]
    rule = f"its model_type is {kind}" + (f": {why}" if why else "")
    return Violation("spec.model.path", spec.model.path, rule, ", or ".join(fixes))


def model_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """A Hugging Face config.json against what can be trained, and against the layout. An empty config is not known yet, and breaks no rule."""
    if not config:
        return
    kind = config.get("model_type")
    if isinstance(kind, str) and kind and kind not in FAMILIES:
        yield _no_family(spec, kind)
        return
    damaged = [*_value_violations(spec, unfit(config) or contradictions(config))]
    yield from damaged or fitting_violations(spec, config)


def fitting_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """The same, of a config.json of a family whose values fit."""
    whole, config = config, language_of(config)
    yield from feature_violations(spec, config)
    for check in (_width_violations, _depth_violations, _expert_violations, indexer_violations):
        for role in (names.ROLE_TRAINER, *_like_the_policy(spec)):
            yield from check(JudgedRanks.of(spec, role), config)
    yield from adapter_violations(spec, config)
    yield from _router_replay_violations(spec, config)
    yield from schedule_violations(spec, config)
    yield from vision_violations(spec, config)
    yield from tool_parser_violations(spec, config)
    yield from speculation_violations(spec, config)
    yield from exact_violations(spec, config)
    if not spec.train.batches.replay:
        yield from server_violations(spec, whole)


def _value_violations(spec: RLJobSpec, wrong: list[Unfit]) -> Iterator[Violation]:
    for key, value, rule in wrong:
        shown = "unset" if value is None else as_written(value)
        fix = "restore the file from where the model was published, or use another model"
        yield Violation("spec.model.path", spec.model.path, f"its config.json has {key} = {shown}, which {rule}", fix)


def _like_the_policy(spec: RLJobSpec) -> list[str]:
    """Gangs whose model has the policy's architecture."""
    same = {names.ROLE_REFERENCE} | ({names.ROLE_CRITIC} if spec.critic and not spec.critic.path else set())
    return [role for role in spec.gangs if role in same]


def _width_violations(ranks: JudgedRanks, config: dict[str, Any]) -> Iterator[Violation]:
    """Heads and matrices over tensor-parallel ranks. Vocabularies are padded, so they always divide."""
    layout = ranks.layout
    heads, groups = heads_of(config)
    delta = {key: config.get(key) or 0 for key in DELTA_HEADS} if has_delta_nets(config) else {}
    widths, experts = (
        {key: width for key, width, own in feed_forward(config) if own is kind} for kind in (False, True)
    )
    dense = {"num_attention_heads": heads or 0} | delta | widths
    yield from undivided(ranks.at(f"{SIZES}.tensor"), layout.tensor, dense, groups)
    yield from undivided(ranks.at(f"{SIZES}.expertTensor"), layout.expert_tensor, experts)
    for key, count in delta.items():
        yield from _uncut(ranks, key, count)


def _uncut(ranks: JudgedRanks, key: str, heads: int) -> Iterator[Violation]:
    """Heads of delta nets, which tensor-parallel ranks have divided, over context-parallel ones."""
    tensor, context = ranks.layout.tensor, ranks.layout.context
    if heads % tensor == 0 and heads // tensor % context:
        rule = f"{key} = {heads} of the model, {heads // tensor} on each of {tensor} tensor-parallel ranks, is not divisible by it"
        yield Violation(ranks.at(f"{SIZES}.context"), str(context), rule, f"choose a divisor of {heads // tensor}")


def _depth_violations(ranks: JudgedRanks, config: dict[str, Any]) -> Iterator[Violation]:
    """Layers over stages, pieces of stages, and recomputed blocks."""
    layout, layers, r = ranks.layout, config.get("num_hidden_layers"), ranks.settings.recompute
    if not layers:
        return
    given = ranks.settings.transformer_config if layout.pipeline > 1 else {}
    try:
        cut = split(layers, layout.pipeline, layout.virtual_pipeline, given)
    except Unsplit as error:
        yield _unsplit(ranks, error)
        return
    if r.granularity == "full" and r.layers > cut.largest_piece:
        rule = f"a piece of a stage has {cut.largest_piece} layers"
        yield Violation(ranks.at("trainer.recompute.layers"), str(r.layers), rule, "set at most that")


def _unsplit(ranks: JudgedRanks, error: Unsplit) -> Violation:
    given, sizes = ranks.settings.transformer_config, ranks.settings.parallelism
    if error.where in given:
        return Violation(
            ranks.at(f"{TRANSFORMER}.{error.where}"), as_written(given[error.where]), error.rule, error.fix
        )
    size = sizes.virtual_pipeline if error.where == "virtualPipeline" else sizes.pipeline
    return Violation(ranks.at(f"{SIZES}.{error.where}"), str(size), error.rule, error.fix)


def _expert_violations(ranks: JudgedRanks, config: dict[str, Any]) -> Iterator[Violation]:
    """Experts over expert-parallel ranks; nothing about experts in a model without."""
    layout, p, experts = ranks.layout, ranks.settings.parallelism, experts_of(config)
    if experts and experts % layout.expert:
        yield from undivided(ranks.at(f"{SIZES}.expert"), layout.expert, {"the number of experts": experts})
    if experts and layout.expert_tensor > 1 and _are_whole(config):
        rule = f"the experts of {config['model_type']} are not cut"
        yield Violation(ranks.at(f"{SIZES}.expertTensor"), str(layout.expert_tensor), rule, "set 1")
    if experts and layout.tensor > 1 and not p.sequence:
        yield Violation(
            ranks.at(f"{SIZES}.sequence"),
            "false",
            "with tensor parallelism a mixture-of-experts layer trains on sequence-parallel shares only",
            "set true",
        )
    unfit = ("mlp",) if experts else ("moe", "moe_act", "layernorm")
    for module in (m for m in ranks.settings.recompute.modules if m in unfit):
        yield unfit_module(ranks, module, UNFIT[module])
    if experts:
        return
    if layout.expert > 1:
        yield Violation(ranks.at(f"{SIZES}.expert"), str(layout.expert), "the model has no experts", "set 1")
    if p.expert_tensor:
        yield Violation(
            ranks.at(f"{SIZES}.expertTensor"), str(p.expert_tensor), "the model has no experts", "remove it"
        )


def _router_replay_violations(spec: RLJobSpec, config: dict[str, Any]) -> Iterator[Violation]:
    """Experts that fit into two bytes, and that vLLM 0.32 returns: it keeps them by the blocks of its prefix cache."""
    value, experts = spec.algorithm.rollout_correction.router_replay, experts_of(config)
    field = "spec.algorithm.rolloutCorrection.routerReplay"
    if value == "none":
        return
    if not experts:
        yield Violation(field, value, "the model has no experts", "remove it")
    elif experts > REPLAYED_EXPERTS:
        rule = f"the model has {experts} experts, and the number of one takes two bytes at most"
        yield Violation(field, value, rule, "remove it")
    caching = spec.rollout.vllm_args.get("enable-prefix-caching")
    if value == "rollout" and caching is False:
        rule = "vLLM keeps the experts of tokens by the blocks of its prefix cache"
        yield Violation(field, value, f"{rule}, and vllmArgs.enable-prefix-caching is false", "remove one of them")


def _are_whole(config: dict[str, Any]) -> bool:
    family = family_of(config)
    return family is not None and family.whole_experts
