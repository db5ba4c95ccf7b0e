"""The version of this package, where every room can read it without the package's root."""

__version__ = "0.2.0"
