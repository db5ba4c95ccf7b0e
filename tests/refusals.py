"""What a test asks of a refusal: the key that it names, not its wording."""

from __future__ import annotations

import pytest

from adjudge.errors import ConfigError, ErrorKind, GradingFailure


def refuses(key: str, where: str | None = None) -> pytest.RaisesExc[ConfigError]:
    """The block raises a `ConfigError` that names `key`, and `where` if that is given."""

    def names_it(error: ConfigError) -> bool:
        return error.key == key and where in (None, error.where)

    return pytest.raises(ConfigError, check=names_it)


def fails(kind: ErrorKind, match: str | None = None) -> pytest.RaisesExc[GradingFailure]:
    """The block raises a `GradingFailure` of that kind, whose message `match` is found in."""
    return pytest.raises(GradingFailure, match=match, check=lambda error: error.kind is kind)
