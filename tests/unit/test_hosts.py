"""A ComfyUI by its path: a folder as it stands, an archive unpacked into the cache."""

import argparse
import io
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from headroom.tools.server.server import Server, ends_with_its_parent
from headroom.tools.setup import hosts
from headroom.tools.setup.environment import PACK, Environment
from headroom.tools.setup.progress import SetupError

FILES = {"main.py": b"", "comfyui_version.py": b'__version__ = "9.9.9"\n', "comfy/sd.py": b"x"}


def archive(path: Path, files: dict[str, bytes], top: str = "ComfyUI-9.9.9") -> Path:
    with tarfile.open(path, "w:xz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADROOM_CACHE", str(tmp_path / "cache"))


def test_an_archive_is_unpacked_once(tmp_path: Path) -> None:
    source = archive(tmp_path / "new.tar.xz", FILES)
    found = hosts.fetch(hosts.named(str(source)))
    assert {name: (found / name).read_bytes() for name in FILES} == FILES
    assert found.is_relative_to(tmp_path / "cache")
    assert hosts.read_version(found) == "9.9.9"
    assert hosts.fetch(str(source)) == found


def test_a_folder_is_used_as_it_stands(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert hosts.fetch(str(tmp_path)) == tmp_path


def test_what_holds_no_comfyui(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with pytest.raises(SetupError, match="cannot be unpacked"):
        hosts.fetch(str(tmp_path / "x.tar.gz"))
    with pytest.raises(SetupError, match="holds no ComfyUI"):
        hosts.fetch(str(archive(tmp_path / "y.tar.xz", {"readme": b""})))
    with pytest.raises(SetupError, match="holds no ComfyUI"):
        hosts.fetch(str(tmp_path))
    with pytest.raises(argparse.ArgumentTypeError, match="is neither of"):
        hosts.named("0.0.1")


def test_an_entry_that_leads_out_of_it(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="an unsafe entry: not used"):
        hosts.fetch(str(archive(tmp_path / "x.tar.xz", FILES | {"../../../outside": b""})))
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("frontend", [None, Path("/pages")])
def test_another_frontend_reaches_the_server(frontend: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADROOM_FRONTEND", raising=False)
    given = Environment(Path(sys.executable), Path("/comfyui"), "9.9.9", Path("/models"), PACK, frontend)
    for name, value in given.variables().items():
        monkeypatch.setenv(name, value)
    told = Environment.from_variables()
    assert told == given
    command = Server(told, cpu=True)._command()
    assert command[-2:] == ["--front-end-root", "/pages"] if frontend else "--front-end-root" not in command


@pytest.mark.skipif(not ends_with_its_parent(), reason="this system has no setpriv that could")
def test_a_server_ends_with_what_began_it_even_if_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Environment(Path(sys.executable), Path("/comfyui"), "9.9.9", Path("/models"), PACK, None)
    assert Server(given, cpu=True)._command()[: len(ends_with_its_parent()) + 1] == [
        *ends_with_its_parent(), sys.executable,
    ]  # fmt: skip
    child = [*ends_with_its_parent(), sys.executable, "-c", "import time; time.sleep(600)"]
    code = f"import subprocess, time; print(subprocess.Popen({child}, start_new_session=True).pid, flush=True)"
    parent = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(600)"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    running = Path("/proc", parent.stdout.readline().strip(), "cmdline")
    deadline = time.monotonic() + 30
    while b"sleep" not in running.read_bytes() or b"setpriv" in running.read_bytes():
        assert time.monotonic() < deadline
    parent.kill()
    parent.wait()
    while running.exists() and running.read_bytes():  # empty: ended, and nobody has asked for its status
        assert time.monotonic() < deadline
        time.sleep(0.05)
