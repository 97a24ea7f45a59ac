"""Every rule of a spec that can be checked before a pod exists. A file has all rules about one subject.

task data evaluation              what is learnt, from what or whom, and how it is measured
algorithm rollout rewards         how it is learnt: losses, generation, rewards, teachers, workers
servers environments              the pods and GPUs of a vLLM server; sandboxes of agents
layout keys lora vision model     ranks, which rules judge by their settings, and models; `model` needs the model's config.json
served_model widths               what of a model its servers compute, and what divides it
gangs                             the rules of ranks for models on gangs of their own
pods references volumes scheduling pods, what they read, and where they run
advice                            what is allowed, and almost surely a mistake
validator                         all of them at once
engine                            what rules are made of
fields words extent               what a spec may look like before it has the schema of one

In a file, OBJECT_RULES need nothing but the object: they are declared once, and the CRD has them as CEL, so that the API server answers at once.
RULES are these and what needs Python, since it reads more than CEL can, or too much of it.
"""

from rljob_api.rules.engine import ValidationResult, Violation
from rljob_api.rules.validator import readable, validate

__all__ = ["ValidationResult", "Violation", "readable", "validate"]
