"""An EAGLE-3 draft that is trained with the policy: the names of its tensors in an update."""

DRAFT = "draft."
"""In an update the names of a draft's files begin with it: both models have a `norm.weight`."""
CONTAINED = "t2d"
"""Which tokens of the policy's vocabulary the draft has; servers read the other direction only, `d2t`."""
LEARNS = "RLJOB_DRAFT_LEARNS"
"""Environment variable of a server, `1` where every policy brings a draft."""
