"""From losses of tokens to the loss of a mini-batch."""

from collections.abc import Sequence


def token_weights(lengths: Sequence[int], aggregation: str, longest: int = 0) -> list[float]:
    """The weight of every response token of each response: the loss of a mini-batch is sum(weight x loss) over its tokens, in any cut.

    Weights are made from the whole mini-batch, once. What is filtered or rejected later gives no loss but leaves them as they are: a
    denominator that shrinks would raise the learning rate of what stays.

    - tokenMean: 1 / sum_j l_j (DAPO, arXiv 2503.14476, section 3.3)
    - sequenceMeanTokenMean: 1 / (n l_i) (GRPO, arXiv 2402.03300, equation 3; GSPO, arXiv 2507.18071, equation 5)
    - sequenceMeanTokenSum: 1 / n (the policy gradient of whole responses; REINFORCE)
    - sequenceMeanTokenSumNorm: 1 / (n longest) (Dr. GRPO, arXiv 2503.20783, section 3.2)

    Args:
        lengths: [n], response tokens of all responses of the mini-batch, over all ranks
        aggregation: of spec.algorithm
        longest: maxTokens, for sequenceMeanTokenSumNorm

    Returns: [n]; 0 for a response without tokens
    """
    count, total = len(lengths), sum(lengths)
    denominators = {
        "tokenMean": [total] * count,
        "sequenceMeanTokenMean": [count * n for n in lengths],
        "sequenceMeanTokenSum": [count] * count,
        "sequenceMeanTokenSumNorm": [count * longest] * count,
    }[aggregation]
    return [1 / d if n else 0.0 for n, d in zip(lengths, denominators, strict=True)]
