"""What the registry is given: the archive's contents, as comfy-cli packs them, and the pack's metadata."""

import io
import re
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pathspec import PathSpec
from PIL import Image, ImageChops, ImageStat

from headroom.tools.pictures.artwork import colours, draw_banner, draw_icon
from headroom.tools.setup.hosts import CARRIERS

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
# Everything that is packed lies below one of these or is one of the files.
FOLDERS = {
    "attention",
    "vae",
    "offload",
    "memory",
    "training",
    "video",
    "graph",
    "host",
    "nodes",
    "cli",
    "web",
    "locales",
    "workflows",
    "docs",
}
FILES = {"__init__.py", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"}
LEFT_OUT = {"tests", "tools", "benchmarks", "farm"}
MOST_BYTES = 3_000_000


def tracked() -> list[str]:
    """The files that git tracks; the archive is made of these and of no others."""
    # A checkout may belong to another user than the one that runs the tests, as it does in containers.
    command = ("git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files")
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.fail("git is missing: install it, the archive's contents are what it tracks")
    if done.returncode or not done.stdout:
        pytest.fail(f"{ROOT} is no git checkout: run this test in a clone. {done.stderr}")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def packed() -> list[str]:
    """What `comfy node pack` puts into its archive: what is tracked and not left out by .comfyignore."""
    lines = [line.strip() for line in (ROOT / ".comfyignore").read_text().splitlines()]
    ignored = PathSpec.from_lines("gitwildmatch", [line for line in lines if line and not line.startswith("#")])
    return [name for name in tracked() if not ignored.match_file(name) and (ROOT / name).exists()]


def metadata() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_archive_holds_the_pack_and_nothing_else(packed: list[str]) -> None:
    assert {name.partition("/")[0] for name in packed if "/" in name} == FOLDERS
    assert {name for name in packed if "/" not in name} == FILES


def test_no_file_of_the_pack_is_left_out(packed: list[str]) -> None:
    """A pattern such as `tools` without its slash would take a folder of that name anywhere."""
    parts = [name for name in tracked() if name.partition("/")[0] in FOLDERS - {"docs"}]
    assert not [name for name in parts if (ROOT / name).exists() and name not in packed]


def test_what_is_left_out_is_for_those_who_work_on_it() -> None:
    """A new folder is shipped or not by decision."""
    folders = {name.partition("/")[0] for name in tracked() if "/" in name}
    assert {folder for folder in folders if not folder.startswith(".")} == FOLDERS | LEFT_OUT


def test_the_archive_is_small(packed: list[str]) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in packed:
            file.write(ROOT / name, name)
    size = archive.tell()
    assert 0 < size < MOST_BYTES


def test_the_name_is_one_that_the_registry_takes() -> None:
    name = metadata()["project"]["name"]
    assert re.fullmatch(r"[a-z](?:[-_.]?[a-z0-9])*", name)
    assert len(name) < 100
    assert "comfyui" not in name


def test_versions_are_in_the_registry_s_form() -> None:
    project, comfy = metadata()["project"], metadata()["tool"]["comfy"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    assert re.fullmatch(r">=\d+\.\d+\.\d+", comfy["requires-comfyui"])


def test_the_changelog_begins_with_this_version() -> None:
    """But for what is not released yet."""
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == metadata()["project"]["version"]


def test_nothing_is_installed_beside_comfyui() -> None:
    assert metadata()["project"]["dependencies"] == []
    assert not (ROOT / "requirements.txt").exists()
    assert not (ROOT / "install.py").exists()


@pytest.mark.parametrize(("key", "file"), [("Icon", "icon.png"), ("Banner", "banner.png")])
def test_the_pictures_have_the_registry_s_shape(key: str, file: str) -> None:
    assert metadata()["tool"]["comfy"][key].endswith(f"docs/{file}")
    assert f"docs/{file}" in tracked()
    with Image.open(ROOT / "docs" / file) as picture:
        width, height = picture.size
    assert (width, height) == (400, 400) if key == "Icon" else width * 9 == height * 21


@pytest.mark.parametrize(("draw", "file"), [(draw_icon, "icon.png"), (draw_banner, "banner.png")])
def test_the_pictures_are_as_drawn(draw: Callable[[dict[str, str]], Image.Image], file: str) -> None:
    """Up to what versions of Pillow make of an edge: `python3 -m tools artwork` was run after the last change."""
    with Image.open(ROOT / "docs" / file) as picture:
        difference = ImageChops.difference(picture.convert("RGB"), draw(colours()))
    assert max(ImageStat.Stat(difference).mean) < 0.5


def test_what_is_tested_at_night_can_be_had_and_is_said() -> None:
    matrix = re.search(r"host: \[(.+,.+)\]", (ROOT / ".github" / "workflows" / "hosts.yml").read_text())
    table = re.search(
        r"^## Which ComfyUI$(.+?)^## ", (ROOT / "docs" / "hosts.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert matrix is not None
    assert table is not None
    versions = re.findall(r'"(.+?)"', matrix[1])
    internals = (ROOT / "host" / "core" / "internals.py").read_text()
    oldest, newest = re.findall(r'^OLDEST_TESTED, NEWEST_TESTED = "(.+)", "(.+)"$', internals, re.MULTILINE)[0]
    assert (versions[0], versions[-1]) == (oldest, newest)
    assert set(versions) <= {*CARRIERS, newest}  # the newest is on no package index yet
    assert all(version in table[1] for version in versions)
