"""The version of this package, where every room can read it without the package's root."""

__all__ = ["__version__"]

__version__ = "0.1.0"
