"""Configurations of other systems, read by the package itself and by the plugin's verb `import`."""

from cli.conftest import api, rljob

__all__ = ["api", "rljob"]
