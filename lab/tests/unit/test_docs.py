"""What the documentation shows works, and every type and option it names exists."""

import inspect
import pkgutil
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify, unique

from adjudge import RewardSpec, SpecRewardFunction
from adjudge.cli.graders import describe
from adjudge.cli.main import CORE_COMMANDS, LAB_COMMANDS
from adjudge.graders.registry import SHIPPED
from adjudge.judges.table import JudgeTable
from adjudge.rewards.spec import (
    GraderEntry,
    MissingSettings,
    PanelSettings,
    RewardSettings,
)
from adjudge.service.metrics import FAMILIES
from adjudge.trainers import scoring
from adjudge_lab.rl import trl_backend
from adjudge_lab.studies.cells import make_cells
from adjudge_lab.studies.study import Study

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "results").glob("*.md")),
]
SPECS = [
    (page.name, block)
    for page in PAGES
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    if "[[graders]]" in block  # other tools' files are TOML too
]
METRIC_KEYS = re.compile(r'^ {8}"(\w+)":', re.MULTILINE)


@pytest.mark.parametrize(("page", "block"), SPECS, ids=[page for page, _ in SPECS])
def test_specs_in_the_docs_are_valid(page: str, block: str) -> None:
    spec = RewardSpec.from_dict(tomllib.loads(block), where=page)
    SpecRewardFunction(spec, graders=spec.build_graders())


def test_the_study_in_the_docs_is_valid() -> None:
    page = (ROOT / "results" / "study.md").read_text()
    block = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0]
    study = Study.from_dict(tomllib.loads(block), where="study.md")
    assert [cell.judge for cell in make_cells(study)] == ["small", "small", "large", "large"]


def test_every_grader_type_is_documented() -> None:
    text = (ROOT / "docs" / "graders.md").read_text()
    assert [name for name in SHIPPED if f"`{name}`" not in text] == []


def test_every_page_of_evidence_is_listed() -> None:
    listed = (ROOT / "results" / "README.md").read_text()
    linked = (ROOT / "docs" / "design.md").read_text()
    for page in {one.name for one in (ROOT / "results").glob("*.md")} - {"README.md"}:
        assert f"]({page})" in listed, page
        assert f"](../results/{page}" in linked, page


def test_the_python_api_names_what_there_is() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    entries = re.findall(r"^::: (\S+)(?:\n +options: \{ members: \[(.*)\] \})?", page, re.MULTILINE)
    assert len(entries) > 20
    for path, members in entries:
        owner = pkgutil.resolve_name(path)
        assert [one for one in members.split(", ") if one and not hasattr(owner, one)] == [], path


def test_every_grader_says_what_it_reads() -> None:
    sections = (ROOT / "docs" / "grader-reference.md").read_text().split("\n### ")[1:]
    assert {section.partition("\n")[0] for section in sections} == set(SHIPPED)
    lacking = [one.partition("\n")[0] for one in sections if not re.search(r"\bFields?[:,]", one)]
    assert lacking == []


def test_every_parameter_of_a_grader_has_a_meaning_with_its_choices() -> None:
    for name in SHIPPED:
        for one in describe(name)["parameters"]:
            assert one.get("meaning"), f"{name}: {one['name']}"
            said = f"{one['meaning']} {describe(name)['doc']} {one.get('default')}"
            choices = re.findall(r"'(\w+)'", one["type"])
            assert [word for word in choices if word not in said] == [], f"{name}: {one['name']}"


def test_every_metric_is_documented_and_every_documented_one_is_logged() -> None:
    sources = [
        path.read_text() for folder in ("src", "lab/src") for path in (ROOT / folder).rglob("*.py")
    ]
    code = "\n".join(sources)
    in_code = set(re.findall(r'"((?:judge|rollout|scaffold|train)/[a-z_0-9]+)"', code))
    in_code |= {f"judge/{name}" for name in METRIC_KEYS.findall(inspect.getsource(scoring))}
    in_code |= {f"judge_{name}" for _, _, family in FAMILIES for name in family}
    in_code |= set(trl_backend._TRAINER_METRICS.values())
    in_code -= {"rollout/reward_mean", "train/global_step", "judge/right_score_mean"}  # of others
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if re.match(r"\| ?`", line)]
    documented = {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}
    assert in_code - documented == set()
    plain = {name for name in documented if "NAME" not in name and "KIND" not in name}
    parts = {"judge/outcome_mean", "judge/events_mean", "judge/env_reward_mean"}  # {part}_mean
    unknown = [name for name in plain - in_code - parts if f'"{name}"' not in code]
    assert unknown == []


def test_the_readme_counts_the_types_there_are() -> None:
    assert f"lists {len(SHIPPED)} types" in PAGES[0].read_text()


def test_the_readme_says_of_each_trainer_what_its_page_says() -> None:
    readme = re.sub(r"<!--.*?-->\n", "", PAGES[0].read_text(), flags=re.DOTALL)
    told = dict(
        re.findall(r"^\| \W*(unbiased|drops|wrong|stops)\b[^|]*\| (.*) \|$", readme, re.MULTILINE)
    )
    page = (ROOT / "results" / "conformance.md").read_text()
    rows = page.partition("<!-- results -->")[2].partition("<!-- end of results -->")[0]
    for row in rows.strip().splitlines()[2:]:
        trainer, version, _, verdict = (cell.strip() for cell in row.split("|")[1:5])
        released = re.match(r"\d+\.[\d.]+", version)
        name = f"{trainer} {released[0]}" if released else trainer
        name = {"verl 0.6.1": "0.6.1", "verl 0.9.1": "verl 0.9.1"}.get(name, name)
        [first] = re.findall(r"^\W*(\w+)", verdict)
        assert name in told[first], f"{name}: {first}"


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "spec.md").read_text()
    tables = (RewardSettings, MissingSettings, GraderEntry, PanelSettings, JudgeTable)
    keys = [key for table in tables for key in table.model_fields if key != "options"]
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_the_page_of_what_is_stable_names_every_command() -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    names = {name.partition(".")[0] for name in (*CORE_COMMANDS, *LAB_COMMANDS)}
    assert [name for name in names if not re.search(rf"`{name}[ `]", text)] == []


def test_a_page_has_the_title_of_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    titles = dict(re.findall(r"- \"?(.+?)\"?: (\S+\.md)$", nav, re.MULTILINE))
    wrong = {
        path: title
        for title, path in titles.items()
        if f"\n# {title}\n" not in "\n" + (ROOT / "docs" / path).read_text()
    }
    assert wrong == {}


def test_links_inside_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name} links to {target}"
            if anchor and found.suffix == ".md" and "." not in anchor:  # with one: a Python name
                assert anchor in _anchors(found), f"{page.name} links to {target}#{anchor}"


@cache
def _anchors(page: Path) -> set[str]:
    """What the site's headings can be linked by."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#{1,6} +(.+?)\s*$", text, re.MULTILINE)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one).replace("`", "") for one in headings]
    found: set[str] = set()
    for one in shown:
        unique(slugify(one, "-"), found)
    return found
