"""The version of this package, where every room can read it without the package's root."""

from datetime import UTC, datetime

__version__ = "0.2.0"


def describe_writer() -> dict[str, str]:
    """What writes a file now: the head of every summary.

    Returns:
        ``adjudge``, the version; ``created``, the time in UTC to the second (ISO 8601).
    """
    return {
        "adjudge": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
