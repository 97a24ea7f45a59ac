"""Who calls: keys of clients, from a directory of files."""

import hashlib
import hmac
from pathlib import Path

ANYBODY = "anybody"
"""The client, where there are no keys."""
LARGEST = 4096
"""Most bytes of a key's file."""


class Keys:
    """The keys of a directory: a file for each client, with its name. They are read again whenever somebody calls, so that a Secret can change."""

    def __init__(self, directory: Path | None) -> None:
        """None: everybody may call."""
        self._directory = directory

    def client(self, key: str) -> str | None:
        """The client that has this key; None: nobody has. Takes as long for every wrong key."""
        if self._directory is None:
            return ANYBODY
        offered, found = hashlib.sha256(key.encode()).digest(), None
        for file in sorted(self._directory.iterdir()):
            if file.is_file() and not file.name.startswith("."):
                known = file.read_bytes()[:LARGEST].strip()
                same = hmac.compare_digest(hashlib.sha256(known).digest(), offered)
                found = file.name if same and known else found
        return found
