"""`python -m rljob_operator.reconcile.check_spec SECONDS BYTES`: validates one spec within limits of processor time and memory, whose excess ends it.

Reads a pickled (JobPolicy, raw spec, name) from its standard input, and writes a pickled ValidationResult.
"""

import pickle
import resource
import signal
import sys

from rljob_api.policy import JobPolicy


def main() -> None:
    signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]), int(sys.argv[2])))
    policy, raw, name = pickle.load(sys.stdin.buffer)
    assert isinstance(policy, JobPolicy)
    pickle.dump(policy.admit(raw, name).result, sys.stdout.buffer)


if __name__ == "__main__":
    main()
