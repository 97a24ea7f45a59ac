"""One API server for all tests of this directory; each has a namespace and an operator process of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.control_plane import ControlPlane, available


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if not available():
        pytest.skip("etcd and kube-apiserver are not built: `make cluster-up` builds them")
    directory: Path = tmp_path_factory.mktemp("plane")
    with ControlPlane(directory) as found:
        found.install_crd()
        yield found
