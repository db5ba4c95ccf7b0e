"""The tables of settings on the service's pages say of each what it is, and nothing else."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from adjudge.client import settings
from adjudge.client.settings import ClientSettings
from adjudge.service.settings import ServiceSettings

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str, table: str) -> dict[str, str]:
    """The first two cells of a table that is made from the code."""
    text = (DOCS / page).read_text().partition(f"<!-- made: {table} -->")[2]
    lines = text.partition(f"<!-- end of {table} -->")[0]
    return dict(re.findall(r"^\|`([\w-]+)`\|(.*?)\|", lines, re.MULTILINE))


def test_every_key_of_the_client_is_on_the_page() -> None:
    found = rows("judge-service.md", "client-settings")
    assert set(found) == set(ClientSettings.model_fields)
    page = (DOCS / "judge-service.md").read_text()
    assert [name for name in settings.VARIABLES.values() if f"`{name}`" not in page] == []
    assert float(found["timeout"]) == ClientSettings(judge_url="http://a").timeout


def test_every_setting_of_the_service_is_on_the_page() -> None:
    found = rows("many-machines.md", "service-settings")
    names = ["--" + name.replace("_", "-") for name in ServiceSettings.model_fields]
    assert list(found) == names
    assert float(found["--queue-size"]) == ServiceSettings().queue_size


@pytest.mark.parametrize("settings_class", [ClientSettings, ServiceSettings])
def test_each_setting_has_a_line_of_its_own(settings_class: type[BaseModel]) -> None:
    documented = re.findall(r"^    ``(\w+)``: ", settings_class.__doc__ or "", re.MULTILINE)
    assert documented == list(settings_class.model_fields)
