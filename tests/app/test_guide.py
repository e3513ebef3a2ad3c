"""The user guide: its manifests are valid, its links work, and its commands exist."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from podkeeper.app.cli import COMMANDS, main

GUIDE = Path(__file__).parent.parent.parent / "docs" / "user-guide.md"
TEXT = GUIDE.read_text()
MANIFESTS = {found[1]: found[0] for found in re.finditer(r"(?<=```yaml\n)# (\S+)\n.*?(?=```)", TEXT, re.DOTALL)}


def test_every_block_of_yaml_names_its_file() -> None:
    assert len(MANIFESTS) == TEXT.count("```yaml") >= 8


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_the_guide_is_valid(name: str, tmp_path: Path) -> None:
    (tmp_path / Path(name).name).write_text(MANIFESTS[name])
    result = CliRunner().invoke(main, ["validate", "--strict", str(tmp_path), "--node-name", "n1"])
    assert result.exit_code == 0, result.output


def test_all_manifests_of_the_guide_are_valid_together(tmp_path: Path) -> None:
    for name, text in MANIFESTS.items():
        (tmp_path / Path(name).name).write_text(text)
    result = CliRunner().invoke(main, ["validate", "--strict", str(tmp_path), "--node-name", "n1"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("line", sorted(set(re.findall(r"podkeeper ([a-z]+[^`\n]*)", TEXT))))
def test_a_command_of_the_guide_and_its_options_exist(line: str) -> None:
    name, *words = line.split("|")[0].split(" -- ")[0].split()
    if name not in COMMANDS:
        pytest.skip("not a command, but a sentence")
    known = CliRunner().invoke(main, [name, "--help"]).output
    for option in (word for word in words if re.fullmatch(r"--[a-z-]+", word)):
        assert option in known


def test_the_links_within_the_guide_exist() -> None:
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", TEXT, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) == headings
    for other in re.findall(r"\]\(([^#)]+)\)", TEXT):
        assert (GUIDE.parent / other).exists()
