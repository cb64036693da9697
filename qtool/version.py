"""The version of the installed package."""

from __future__ import annotations


def package_version() -> str:
    """Version of the distribution, or ``0+source`` for a source tree that nobody installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("qtool")
    except PackageNotFoundError:
        return "0+source"
