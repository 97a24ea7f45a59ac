"""The manifest for a krew index, of a release.

python images/plugin/krew.py CHECKSUMS VERSION URL      # of sha256sum; v1.2.3; where the release's files are
"""

import sys
from pathlib import Path

import yaml

MANIFEST = Path(__file__).with_name("krew.yaml")


def manifest(checksums: str, version: str, url: str) -> str:
    """krew.yaml with the release's version, addresses and digests. Raises KeyError for an archive without a digest."""
    digests = {line.split()[1].removeprefix("./"): line.split()[0] for line in checksums.splitlines()}
    document = yaml.safe_load(MANIFEST.read_text())
    document["spec"]["version"] = version
    for platform in document["spec"]["platforms"]:
        archive = platform["uri"].rpartition("/")[2]
        platform |= {"uri": f"{url}/{archive}", "sha256": digests[archive]}
    return str(yaml.safe_dump(document, sort_keys=False, width=120))


if __name__ == "__main__":
    print(manifest(Path(sys.argv[1]).read_text(), sys.argv[2], sys.argv[3]), end="")
