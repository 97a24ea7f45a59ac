"""Rules that need nothing but the object: the CRD has them as CEL, so that the API server answers at once, and `validate` has them in Python.

One module for each part of the spec; common has the expressions that they share.
"""

from rljob_api.validation.object_rules.algorithm import ALGORITHM_RULES, DISTILLATION_RULES
from rljob_api.validation.object_rules.batches import BATCH_RULES, IMAGE_RULES
from rljob_api.validation.object_rules.layout import LAYOUT_RULES
from rljob_api.validation.object_rules.lora import LORA_RULES
from rljob_api.validation.object_rules.rewards import REWARD_RULES
from rljob_api.validation.object_rules.rollout import ROLLOUT_RULES
from rljob_api.validation.object_rules.scheduling import POD_RULES, SCHEDULING_RULES
from rljob_api.validation.object_rules.task import TASK_RULES

OBJECT_RULES = (
    *TASK_RULES,
    *IMAGE_RULES,
    *LORA_RULES,
    *LAYOUT_RULES,
    *BATCH_RULES,
    *ROLLOUT_RULES,
    *ALGORITHM_RULES,
    *REWARD_RULES,
    *DISTILLATION_RULES,
    *SCHEDULING_RULES,
    *POD_RULES,
)
