"""In place of a server: it starts a process that leaves its session and keeps its output open, as some JIT compilers do."""

import subprocess
import sys
import time

if __name__ == "__main__":
    orphan = subprocess.Popen(["sleep", "600"], start_new_session=True)
    sys.stdout.write(f"orphan {orphan.pid}\n")
    sys.stdout.flush()
    time.sleep(600)
