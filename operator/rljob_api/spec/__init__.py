"""The spec of an RLJob. These models are the only source: CRD, documentation and the chart's schema are generated from them."""

from rljob_api.spec.job import RLJobSpec

__all__ = ["RLJobSpec"]
