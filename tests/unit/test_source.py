"""The tree itself: style, types, and which part may import which."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINES = ("attention", "vae", "offload", "memory")
PARTS = (*ENGINES, "host", "nodes")
# The design's arrows: nodes -> host -> engines -> torch.
MAY_IMPORT = {
    "attention": set(),
    "vae": set(),
    "offload": set(),
    "memory": set(),
    "host": set(ENGINES),
    "nodes": {*ENGINES, "host"},
}


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports, relative ones with their dots."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def reached(path: Path, name: str) -> str:
    """The part of the pack that a relative import of a file leads to."""
    dots = len(name) - len(name.lstrip("."))
    folders = path.relative_to(ROOT).parent.parts
    return (*folders[: len(folders) - dots + 1], *name.lstrip(".").split("."))[0]


@pytest.mark.parametrize("part", PARTS)
def test_arrows_point_one_way(part: str) -> None:
    for path in (ROOT / part).rglob("*.py"):
        for name in imports(path):
            if name.startswith("."):
                assert reached(path, name) in {part, *MAY_IMPORT[part]}, f"{path.name} imports {name}"
            if part in ENGINES:
                assert name.split(".")[0] not in ("comfy", "comfy_api", "comfy_execution", "nodes"), path


def test_the_pack_runs_no_text_and_installs_nothing() -> None:
    """What the registry refuses, and what a node must never do."""
    for path in [ROOT / "__init__.py", *(p for part in (*PARTS, "cli") for p in (ROOT / part).rglob("*.py"))]:
        tree = ast.parse(path.read_text())
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"eval", "exec", "compile", "__import__"}, path
        assert not [name for name in called if name.startswith(("os.system", "os.popen", "os.exec", "os.spawn"))], path
        refused = {"subprocess", "socket", "urllib.request", "requests", "aiohttp", "pip"}
        if path == ROOT / "host" / "server.py":
            refused.remove("aiohttp")  # it answers in the host's own server, and asks nobody
            assert "ClientSession" not in path.read_text()
        assert not set(imports(path)) & refused, path


def run(*command: str, cwd: Path = ROOT) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_style() -> None:
    run("ruff", "check", "--no-cache", ".")
    run("ruff", "format", "--no-cache", "--check", ".")


def test_types(tmp_path: Path) -> None:
    """Through a link called `headroom`: a checkout's folder need not be a name that Python can import."""
    (tmp_path / "headroom").symlink_to(ROOT, target_is_directory=True)
    packages = [argument for part in (*PARTS, "tools", "cli") for argument in ("-p", f"headroom.{part}")]
    run(
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(tmp_path / "cache"),
        *packages,
        cwd=tmp_path,
    )
