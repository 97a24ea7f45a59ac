"""Every rule of a spec that can be checked before a pod exists.

object_rules                                 rules that need nothing but the object, declared once for CEL and Python
layout algorithm scheduling pods passthrough rules in Python only: they read more than CEL can, or too much of it
owned_keys                                   keys of Megatron and vLLM that may not pass through
tasks                                        which task reads which field
model                                        the spec against a model's config.json
validator                                    all of them at once
"""

from rljob_api.validation.result import ValidationResult, Violation
from rljob_api.validation.validator import validate

__all__ = ["ValidationResult", "Violation", "validate"]
