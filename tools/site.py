"""The documentation as a site that can be searched: README, `docs`, the help of the nodes, measurements.

By MkDocs and its theme Material, as ``mkdocs.yml`` says. Pages keep their places in the checkout, so that links between
them are what they are there.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from .setup.environment import PACK

CONFIGURATION, OUT = PACK / "mkdocs.yml", PACK / "output/site"
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)|(?:src|href)=\"([^\"#]+)\"")
WORDED = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)\)")
TRANSLATED = ("zh.md", "ja.md")  # of a node's help; ComfyUI looks for its pictures where those of the English page lie


def main() -> int:
    """Builds it; a link that leads nowhere ends it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the site (default output/site)")
    out: Path = parser.parse_args().out.absolute()
    with tempfile.TemporaryDirectory() as name:
        pages, own = Path(name) / "pages", Path(name) / "mkdocs.yml"
        said = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
        gather(pages, said["nav"])
        _write(pages / said["theme"]["logo"], (PACK / said["theme"]["logo"]).read_bytes())
        own.write_text(yaml.safe_dump({"INHERIT": str(CONFIGURATION), "docs_dir": str(pages)}), encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(own), "-d", str(out)]
        return subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False).returncode


def gather(folder: Path, nav: object) -> None:
    """Copies the pages of a navigation into a folder, and the files that they link to."""
    for page in _pages(nav):
        text = _page(page)
        _write(folder / page, text.encode("utf-8"))
        for pair in LINK.findall(text):
            linked = (PACK / page.parent / "".join(pair)).resolve()
            if linked.is_file() and linked.suffix != ".md":
                _write(folder / linked.relative_to(PACK), linked.read_bytes())


def _page(page: Path) -> str:
    """Its text, with links to folders, which a site has not, made into words."""
    text = (PACK / page).read_text(encoding="utf-8")
    if page.name in TRANSLATED:
        text = text.replace("](pictures/", "](../pictures/")

    def worded(found: re.Match[str]) -> str:
        return found[1] if (PACK / page.parent / found[2]).is_dir() else found[0]

    return WORDED.sub(worded, text)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _pages(nav: object) -> Iterator[Path]:
    if isinstance(nav, str):
        yield Path(nav)
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from _pages(value)
    elif isinstance(nav, list):
        for value in nav:
            yield from _pages(value)


if __name__ == "__main__":
    sys.exit(main())
