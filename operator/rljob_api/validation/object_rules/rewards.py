"""Rules of the items of `spec.rewards`."""

from rljob_api.validation.expression import count, present
from rljob_api.validation.rule import Rule

REWARD_KINDS = ("rule", "python", "http", "vllm", "model")
KINDS = count(tuple(present(kind) for kind in REWARD_KINDS))

REWARD_RULES = (
    Rule(
        "",
        KINDS.equals(1),
        f"needs exactly one of {', '.join(REWARD_KINDS)}",
        "keep one of them",
        value=lambda reward: " and ".join(kind for kind in REWARD_KINDS if present(kind).of(reward)) or "none",
        items="rewards",
    ),
    Rule(
        "vllm",
        present("vllm").implies(count((present("vllm.pool"), present("vllm.url"))).equals(1)),
        "needs exactly one of pool and url",
        "name one of spec.pools, or give the address of a server outside the job",
        value=lambda reward: "both" if reward.vllm.pool else "none",
        items="rewards",
    ),
)
