"""`python -m rljob_trainer` without the rule that a family generates only where it is proven: for the benchmarks that are to prove it on a GPU.

python -m benchmarks.unproven run MANIFEST
"""

import sys
from dataclasses import replace

from rljob_api.families import FAMILIES
from rljob_trainer.__main__ import main

FAMILIES.update({name: replace(family, servers=("cpu", "gpu")) for name, family in FAMILIES.items()})

if __name__ == "__main__":
    sys.exit(main())
