"""The browser of the core's tests, used here too."""

from tests.e2e.conftest import browser

__all__ = ["browser"]
