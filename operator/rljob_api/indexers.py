"""Which layers of a model with sparse attention choose tokens with an indexer of their own, and which take the choice of an earlier layer, as in
GLM-5.2 (arXiv 2603.12201)."""

from collections.abc import Mapping
from typing import Any

FULL, SHARED = "full", "shared"
LETTERS = {"F": FULL, "S": SHARED}
"""In `index_topk_pattern`."""
OFFSET = 2
"""The default of `index_skip_topk_offset`, in vLLM and in transformers."""


def indexers_of(config: Mapping[str, Any]) -> list[str]:
    """FULL or SHARED for each layer of a config.json's model: its `indexer_types`, or else what `scheduled_indexers` says."""
    return list(config.get("indexer_types") or scheduled_indexers(config))


def scheduled_indexers(config: Mapping[str, Any]) -> list[str]:
    """The same by `index_topk_pattern`, or by `index_topk_freq` and `index_skip_topk_offset`: all that vLLM reads."""
    if pattern := config.get("index_topk_pattern"):
        return [LETTERS[letter] for letter in pattern]
    every, offset = config.get("index_topk_freq") or 1, config.get("index_skip_topk_offset")
    offset = OFFSET if offset is None else offset
    return [SHARED if max(i - offset + 1, 0) % every else FULL for i in range(config["num_hidden_layers"])]
