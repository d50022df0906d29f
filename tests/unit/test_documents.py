"""README and docs: short where somebody arrives, and links that lead somewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
MOST_WORDS = 700


DIFF = re.compile(r"```diff\n--- a/(\S+)\n.*?@@ \w+\n(.*?)```", re.DOTALL)
EXAMPLES = DIFF.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def test_the_readme_is_read_in_three_minutes() -> None:
    """Its prose; tables and commands are looked up."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    prose = "\n".join(line for line in lines if not line.startswith("|"))
    words = re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", prose, flags=re.DOTALL)).split()
    assert 200 < len(words) <= MOST_WORDS


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text(encoding="utf-8")))
    files = [link.partition("#")[0] for link in links if not link.startswith(("http://", "https://", "#"))]
    assert [name for name in files if not (document.parent / name).exists()] == []


def test_every_document_is_reached_from_the_readme() -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/nodes.md"))
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"{path.name})" not in text] == []


def test_the_site_is_built_and_has_every_page(tmp_path: Path) -> None:
    """Strictly: a link or an anchor that leads nowhere ends it."""
    command = [sys.executable, "-m", "tools.site", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads((tmp_path / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"].partition("#")[0] for entry in entries}
    folders = (ROOT / name for name in ("docs", "benchmarks", "web/docs"))
    pages = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.md")]
    missing = [page for page in pages if page.name != "README.md" and f"{page.with_suffix('')}/" not in places]
    assert missing == []
    assert (tmp_path / "index.html").exists()
    assert not re.search(r"(?:src|href)=\"https?://[^\"]*\.(?:js|css|woff2?)", (tmp_path / "index.html").read_text())


@pytest.mark.parametrize(("file", "change"), EXAMPLES, ids=[file for file, _ in EXAMPLES])
def test_an_example_of_a_new_entry_comes_last_in_its_table(file: str, change: str) -> None:
    """Choices are saved by position. What stays is the end of the table as it is, and what is new is not in it yet."""
    source = (ROOT / file).read_text(encoding="utf-8")
    stays = "".join(f"{line[1:]}\n" for line in change.splitlines() if line.startswith(" "))
    (new,) = (line[1:] for line in change.splitlines() if line.startswith("+"))
    assert source.count(stays) == 1
    assert source.partition(stays)[2].lstrip().startswith(")")
    assert new.partition(",")[0].strip() not in source


def test_the_examples_are_found() -> None:
    assert len(EXAMPLES) == 3
