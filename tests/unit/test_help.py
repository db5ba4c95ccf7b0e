"""``--help`` of every command."""

import pytest
from tests.unit.helpers.help_pages import check_help_page

from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS


@pytest.mark.parametrize("name", ["", *CORE_COMMANDS, *CORE_GROUPS])
def test_a_help_page_is_readable_and_its_examples_parse(name: str) -> None:
    check_help_page(name.replace(".", " "))
