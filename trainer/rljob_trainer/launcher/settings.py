"""Who this launcher is and where it works, from its environment. Pure but for asking which interface has our address."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rljob_api import names
from rljob_trainer.machine import interface_of

RANK = "rljob_trainer.rank"
DRIVER = "rljob_trainer.driver.__main__"


@dataclass(frozen=True)
class Settings:
    """What does not change while the launcher lives."""

    pod: str
    pod_uid: str
    work: Path
    """Holds one directory per attempt."""
    environment: Mapping[str, str]
    """Of the processes of every attempt."""
    rank: str = RANK
    """Module of a rank: `prepare()` imports what it needs, `main()` is its life."""
    driver: str = DRIVER
    """Module of the driver, likewise."""

    @staticmethod
    def of(environment: Mapping[str, str], rank: str = RANK, driver: str = DRIVER) -> "Settings":
        work = Path(environment.get(names.ENV_WORK, names.WORK_DIR))
        inherited = process_environment(environment, work)
        return Settings(environment[names.ENV_POD_NAME], environment[names.ENV_POD_UID], work, inherited, rank, driver)

    def directory(self, attempt: int) -> Path:
        return self.work / f"attempt-{attempt}"


def process_environment(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """The inherited environment and, where it says nothing, what makes torch work as nobody in particular on a read-only disk."""
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
