"""The commands of the README, the docs and the templates' notes, as they are written there.

What takes seconds is run. What takes minutes (the suite itself, a server for a browser, the demo) is read by the very
parser that would run it, and the files that it names are there; `test_long_commands.py` and `test_demo.py` run it at
night. Cloning is left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headroom.farm.command import parser as farm_parser
from headroom.tools.commands import parser as tools_parser
from headroom.tools.server.server import Server

from .conftest import ENVIRONMENT
from .ui_workflows import text_to_image as as_saved
from .workflows import text_to_image as as_exported

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "cards" / "README.md",
    ROOT / "tests" / "emulator" / "README.md",
]
NOTES = sorted((ROOT / "workflows").glob("*.json"))  # of the templates, where commands are in italics
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(python3 [^`\n]+)`")
NOTED = re.compile(r"\*(python3 [^*\n]+)\*")
CLONING = re.compile(r"git clone <")
PLACE = re.compile(r"\b[A-Z]{3,}\b")  # stands for a name that the reader puts there
RUN = ("estimate", "fit")  # of cli/: they answer in seconds
PORTABLE = ".\\python_embeded\\python.exe ComfyUI\\custom_nodes\\ComfyUI-Headroom\\"


def commands(language: str) -> Iterator[str]:
    """Lines of the blocks of a language, and for sh those between words."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for kind, block in BLOCK.findall(text):
            if kind == language:
                yield from filter(str.strip, block.splitlines())
        if language == "sh":
            yield from INLINE.findall(text)
    if language == "sh":
        yield from (line for note in NOTES for line in NOTED.findall(note.read_text(encoding="utf-8")))


SHELL = list(dict.fromkeys(line for line in commands("sh") if not CLONING.search(line)))


def read_as_tools(arguments: list[str]) -> None:
    """By the parser of ``python3 -m tools``."""
    if not arguments:
        return  # it lists them
    options = tools_parser().parse_args(arguments)
    named = [argument for argument in getattr(options, "arguments", ()) if argument.startswith("tests/")]
    assert [name for name in named if not (ROOT / name).exists()] == []
    if arguments[0] == "bench" and options.arguments:
        assert (ROOT / "benchmarks" / f"{options.arguments[0]}.py").is_file()


def extra(name: str) -> list[str]:
    """What an extra of the pack's metadata asks for."""
    (found,) = re.findall(rf"^{name} = (\[.*\])$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return list(json.loads(found))


def read_as_script(script: str, arguments: list[str]) -> argparse.Namespace:
    """By the parser of a command of cli/."""
    module = importlib.import_module(f"headroom.cli.{Path(script).stem}")
    found: argparse.Namespace = module.parser().parse_args(arguments)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where somebody has a workflow as the browser saves it, and one as it exports it."""
    (tmp_path / "workflow.json").write_text(json.dumps(as_saved()))
    (tmp_path / "workflow_api.json").write_text(json.dumps(as_exported(save_latent=False)))
    return tmp_path


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("python3 ")])
def test_a_command_is_one(line: str, folder: Path, server: Server) -> None:
    _, script, *arguments = shlex.split(PLACE.sub("x", line), comments=True)
    if script == "-m":
        module, *rest = arguments
        if module == "tools":
            read_as_tools(rest)
        elif module == "farm":
            assert farm_parser().parse_args(rest).command
        elif module == "pip":
            assert rest in (["install", *extra("farm")], ["install", *extra("workers")])
        else:
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
        return
    assert (ROOT / script).is_file()
    if Path(script).stem not in RUN or not arguments:
        read_as_script(script, arguments)
        return
    places = ["--comfyui", str(ENVIRONMENT.comfyui)]
    if "--server" in arguments:
        arguments, places = [server.url if "://" in one else one for one in arguments], []
    elif script.endswith("estimate.py"):
        places += ["--base-directory", str(server.base)]
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments, *places],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("name", ["calibrate", "check", "estimate", "fit"])
def test_the_examples_of_the_help_are_commands(name: str) -> None:
    """Read: what is told beside each begins after two blanks."""
    examples: str = importlib.import_module(f"headroom.cli.{name}").EXAMPLES
    lines = [line.strip().partition("  ")[0] for line in examples.splitlines() if line.startswith("  python3 ")]
    assert lines
    for line in lines:
        _, script, *arguments = shlex.split(line)
        assert Path(script).stem == name
        read_as_script(script, arguments)


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("curl ")])
def test_a_request_is_answered(line: str, folder: Path, server: Server) -> None:
    """By the server of these tests in the place of the reader's."""
    assert "localhost:8188" in line
    here = line.replace("localhost:8188", server.url)
    done = subprocess.run(
        ["bash", "-c", here],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "no_proxy": "*"},
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert not answer.get("error"), answer


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("ray ")])
def test_a_command_of_ray_s_has_its_options(line: str) -> None:
    """Read, not run: test_workers.py starts a cluster by the same ones."""
    words = shlex.split(line, comments=True)
    ray = Path(sys.executable).with_name("ray")
    told = subprocess.run([ray, words[1], "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert all(re.search(rf"{word}\b", told) for word in words if word.startswith("--"))


def test_variables_are_read_by_somebody() -> None:
    """What is exported before Ray starts: two names of Ray's, two that its workers look for."""
    (line,) = (line for line in SHELL if line.startswith("export "))
    names = {word.partition("=")[0] for word in shlex.split(line)[1:]}
    carried = (ROOT / "host" / "bands" / "carried.py").read_text(encoding="utf-8")
    assert names == {"RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", *re.findall(r'"(HEADROOM_[A-Z]+)"\) or', carried)}


def test_there_are_no_others() -> None:
    others = [line for line in SHELL if not line.startswith(("python3 ", "curl ", "ray ", "export ", "# "))]
    assert others == []
    assert len(SHELL) > 20


@pytest.mark.parametrize("line", list(commands("powershell")))
def test_the_portable_versions_lines(line: str) -> None:
    """Read, not run: this is no Windows."""
    assert line.startswith(PORTABLE)
    script, *arguments = shlex.split(line.removeprefix(PORTABLE).replace("\\", "/"))
    assert (ROOT / script).is_file()
    read_as_script(script, arguments)


def test_the_engine_without_a_host() -> None:
    """The page on local attention has the one piece of Python."""
    (code,) = (block for page in PAGES for kind, block in BLOCK.findall(page.read_text("utf-8")) if kind == "python")
    q, k, v = torch.randn(3, 1, 2, 64 * 64 + 77, 8).unbind()
    names = {"q": q, "k": k, "v": v, "scale": 8**-0.5}
    exec(compile(code, "docs/local_attention.md", "exec"), names)
    assert names["out"].shape == (1, 64 * 64 + 77, 2, 8)
