"""What guesses tokens next to the policy, and may be trained with it: the layer for multi-token prediction, and an EAGLE-3 draft.

The layer is like the last one of the model, with a matrix that joins a hidden state and an embedding; it shares the policy's embedding and output
layer. A draft is one dense layer that reads two vectors, a matrix that joins three hidden states, and an output layer. Every rank has all of it, in
float32, and servers and exports get it in the type of the policy, with the number of each of its tokens in the policy's vocabulary.
"""

from rljob_api.sizing.shape import BYTES, Shape
from rljob_api.spec import RLJobSpec
from rljob_api.spec.roles import RolloutSpec

DRAFT_VOCABULARY = 32_000
"""Tokens of many published drafts, which have the most frequent ones. The number in their directory is not read here."""
NUMBER = 8
"""Bytes of the number of a draft's token in the policy's vocabulary."""


def multi_token(spec: RLJobSpec, shape: Shape) -> float:
    """Parameters of the layer for multi-token prediction; 0: it is not trained."""
    return further_layer(shape) if spec.model.multi_token_prediction else 0.0


def further_layer(shape: Shape) -> float:
    """Parameters of such a layer."""
    like_others = shape.outside(1, 0) + shape.mixed if shape.experts else shape.outside(0, 1)
    return like_others + joining(shape)


def joining(shape: Shape) -> float:
    """Parameters of the matrix that joins the two vectors which the layer for multi-token prediction reads."""
    return 2 * shape.hidden**2


def draft(spec: RLJobSpec, shape: Shape) -> float:
    """Parameters of the draft that is trained; 0: none is."""
    return eagle(shape) if spec.rollout.speculation and spec.rollout.speculation.learns else 0.0


def eagle(shape: Shape) -> float:
    """Parameters of an EAGLE-3 draft for a policy of this shape."""
    attention = shape.hidden * shape.head * (3 * shape.heads + 4 * shape.groups)
    feed_forward = 3 * shape.hidden * (shape.feed_forward or 4 * shape.hidden)
    return attention + feed_forward + 3 * shape.hidden**2 + _tokens(shape) * shape.hidden


def draft_bytes(spec: RLJobSpec, shape: Shape) -> float:
    """Bytes of the draft in an update of the servers and in an export; 0: none is trained."""
    parameters = draft(spec, shape)
    numbers = NUMBER * _tokens(shape) if _tokens(shape) < shape.vocabulary else 0
    return BYTES[spec.model.dtype] * parameters + numbers if parameters else 0.0


def of_server(rollout: RolloutSpec, shape: Shape) -> float:
    """Parameters with which a server guesses. Each kind has one layer, with keys and values of its own; n-grams have none."""
    method = rollout.speculation.method if rollout.speculation else "ngram"
    return {"mtp": further_layer(shape), "eagle3": eagle(shape), "ngram": 0.0}[method]


def _tokens(shape: Shape) -> int:
    """Of a draft."""
    return min(shape.vocabulary, DRAFT_VOCABULARY)
