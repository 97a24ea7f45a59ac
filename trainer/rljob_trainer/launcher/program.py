"""What a forked process does to become a rank or the driver."""

import faulthandler
import importlib
import os
import signal
import traceback
from typing import NoReturn

from setproctitle import setproctitle

from rljob_trainer.launcher.processes import die_with_parent


def live(module: str, log: str, title: str) -> NoReturn:
    """Run `module.main()` with its output appended to `log`. SIGTERM writes there where every thread stands, and ends the process."""
    code = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's handler is not ours
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.register(signal.SIGTERM, file=2, chain=True)
        setproctitle(title)
        importlib.import_module(module).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
