"""README and docs: short where somebody arrives, and links that lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
MOST_WORDS = 700


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
