"""Settings of the launcher, from its environment. Pure, except that it looks up the interface of the pod's address."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api import names
from rljob_trainer.machine import interface_of

RANK = "rljob_trainer.rank.main"
DRIVER = "rljob_trainer.driver.__main__"


@dataclass(frozen=True)
class Settings:
    """Settings that stay the same for the lifetime of the launcher."""

    pod: str
    pod_uid: str
    work: Path
    """Holds one directory per attempt."""
    environment: Mapping[str, str]
    """Of the processes of every attempt."""
    rank: str = RANK
    """Module of a rank: `prepare()` imports what it needs, `main()` runs it."""
    driver: str = DRIVER
    """Module of the driver, with the same two functions."""

    @staticmethod
    def of(environment: Mapping[str, str], rank: str = RANK, driver: str = DRIVER) -> "Settings":
        work = Path(environment.get(names.ENV_WORK, names.WORK_DIR))
        inherited = process_environment(environment, work)
        return Settings(environment[names.ENV_POD_NAME], environment[names.ENV_POD_UID], work, inherited, rank, driver)

    def directory(self, attempt: int) -> Path:
        return self.work / f"attempt-{attempt}"


def process_environment(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """The inherited environment, with defaults under which torch works as an unknown user on a read-only file system."""
    interface = interface_of(environment[names.ENV_POD_IP])
    defaults = {
        "USER": "rljob",  # torch asks getpass, which without a passwd entry needs it
        "HOME": tempfile.gettempdir(),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "TRITON_CACHE_DIR": str(work / "triton"),
        "OMP_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # the other check initializes CUDA, which does not survive a fork
    } | ({"GLOO_SOCKET_IFNAME": interface} if interface else {})
    return defaults | dict(environment)
