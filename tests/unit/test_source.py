"""The tree itself: style, types, and which part may import which."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from headroom.tools.check import checks, suite

from ..nightly import night_tests

ROOT = Path(__file__).parents[2]
ENGINES = ("attention", "vae", "offload", "memory", "training", "video")
PARTS = ("graph", *ENGINES, "host", "nodes")
SHIPPED = (*PARTS, "cli")
BESIDE_THE_PACK = "farm"  # a program that is not shipped
OF_THE_HOST = {"comfy", "comfy_api", "comfy_execution", "comfy_extras", "folder_paths", "nodes", "server"}
# The rooms of host/, the lower first; those of one floor stand side by side.
FLOORS = (
    {"core"},
    {"measure", "chunks", "catalogue"},
    {"video"},
    {"sampling", "attention", "casting", "offload", "bands", "vae"},
    {"prediction"},
    {"planning", "streaming", "training"},
    {"following"},
    {"workflow", "video_files"},
    {"server"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
BESIDE = {
    ("casting", "sampling"),
    ("vae", "attention"),
    ("vae", "offload"),
    ("vae", "bands"),
    ("bands", "attention"),
    ("bands", "offload"),
}  # arrows between rooms of one floor
MOST_IN_A_ROOM = 10
MOST_LINES, MOST_METHODS = 300, 20


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere, relative ones with their dots."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            folder = path.parent.joinpath(*[".."] * (node.level - 1), *(node.module or "").split("."))
            for alias in node.names:
                is_module = node.level and any(
                    (folder / f"{alias.name}{end}").exists() for end in (".py", "/__init__.py")
                )
                yield f"{name}{'.' * bool(node.module)}{alias.name}" if is_module else name


def reached(path: Path, name: str) -> tuple[str, ...]:
    """Where an import of a file leads to, from the pack's root; nowhere if it is no relative one."""
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return ()
    folders = path.relative_to(ROOT).parent.parts
    return (*folders[: len(folders) - dots + 1], *filter(None, name.lstrip(".").split(".")))


def shipped() -> Iterator[Path]:
    for part in SHIPPED:
        yield from (ROOT / part).rglob("*.py")


def allowed(start: tuple[str, ...], end: tuple[str, ...]) -> bool:
    """Whether a file in a folder may import from another: nodes -> rooms of host, downwards -> engines -> torch."""
    if end == ("host",):
        return True  # `from . import room`, which is asked about by itself
    here, there = start[0], end[0]
    if here == there == "host":
        a, b = start[1], end[1]
        return a == b or FLOOR[b] < FLOOR[a] or (a, b) in BESIDE
    if here == there:
        return True
    if here == "host":
        return there in {*ENGINES, "graph"}
    if here in {"nodes", "cli"}:
        return there in {*ENGINES, "graph", "host"}
    return False


def test_arrows_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in shipped()
        for name in imports(path)
        if (end := reached(path, name)) and not allowed(path.relative_to(ROOT).parts[:-1], end)
    ]
    assert not wrong


def test_the_farm_needs_workflow_files_alone() -> None:
    """Nothing of the pack needs it, and what Ray carries to other machines needs nothing of the pack."""
    farm = list((ROOT / BESIDE_THE_PACK).glob("*.py"))
    assert {end[0] for path in farm for name in imports(path) if (end := reached(path, name))} == {"farm", "graph"}
    assert not [path for path in shipped() for name in imports(path) if reached(path, name)[:1] == (BESIDE_THE_PACK,)]
    carried = [ROOT / BESIDE_THE_PACK / f"{name}.py" for name in ("plain", "comfy", "actor")]
    ends = {end for path in carried for name in imports(path) if (end := reached(path, name))}
    assert ends <= {(BESIDE_THE_PACK, path.stem) for path in carried}
    assert not [path for path in farm if path.read_text(encoding="utf-8").count("\n") > MOST_LINES]


def test_engines_and_workflow_files_need_no_host() -> None:
    for part in ("graph", *ENGINES):
        for path in (ROOT / part).rglob("*.py"):
            assert not {name.split(".")[0] for name in imports(path)} & OF_THE_HOST, path


def test_workflow_files_need_the_standard_library_alone() -> None:
    for path in (ROOT / "graph").rglob("*.py"):
        others = {name.split(".")[0] for name in imports(path) if not name.startswith(".")}
        assert others <= sys.stdlib_module_names, path


def test_no_circles() -> None:
    """Of any kind: imports within functions and for types count too."""
    files = {path.relative_to(ROOT).with_suffix("").parts: path for path in shipped()}
    files = {name[:-1] if name[-1] == "__init__" else name: path for name, path in files.items()}
    leads = {
        path: {files[end] for name in imports(path) if (end := reached(path, name)) in files} for path in files.values()
    }
    while free := [
        path
        for path, others in leads.items()
        if not others & leads.keys() or not any(path in one for one in leads.values())
    ]:
        for path in free:
            del leads[path]
    assert not leads, sorted(str(path.relative_to(ROOT)) for path in leads)


def named(path: Path) -> Iterator[str]:
    """The classes of a module and its other names for types."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            names = (target.id for target in node.targets if isinstance(target, ast.Name))
            yield from (name for name in names if name[0].isupper() and not name.isupper())


def test_a_type_has_its_name_to_itself() -> None:
    """A class or a name for a type means one thing in what is shipped; those with an underscore are their file's."""
    found: dict[str, list[str]] = {}
    for path in shipped():
        for name in {name for name in named(path) if not name.startswith("_")}:
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in found.items() if len(files) > 1}


def test_rooms_stay_small() -> None:
    for room in [ROOT / "graph", *(ROOT / "host" / name for name in FLOOR)]:
        files = [path for path in room.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= MOST_IN_A_ROOM, room


def test_files_and_classes_are_short() -> None:
    long = [path for path in shipped() if path.read_text(encoding="utf-8").count("\n") > MOST_LINES]
    assert not long
    for path in shipped():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
                assert len(methods) <= MOST_METHODS, f"{path.relative_to(ROOT)}: {node.name}"


def test_the_map_is_of_this_tree() -> None:
    """CONTRIBUTING's table has a row for every part and every room of host/, and where it says to begin is there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `") and line.count("|") == 4]
    folders = {name.strip("`/"): begin for cell, _, begin in rows for name in cell.strip().split(", ")}
    rooms = {f"host/{room.name}" for room in (ROOT / "host").iterdir() if (room / "__init__.py").is_file()}
    assert rooms == {f"host/{room}" for room in FLOOR}
    assert {*SHIPPED, BESIDE_THE_PACK, *rooms} - {"host"} <= set(folders)
    for folder, begin in folders.items():
        for name in re.findall(r"`([^`]+)`", begin):
            assert (ROOT / folder / name).exists(), f"{folder}: {name}"


def test_the_lists_name_tests_that_there_are() -> None:
    """`tools test --fast` would end with pytest's usage error, and a test that has another name now run by day."""
    for entry in (*suite.fast_tests(), *night_tests()):
        file, *names = entry.removeprefix("--deselect=").partition("[")[0].split("::")
        place: ast.AST = ast.parse((ROOT / file).read_text(encoding="utf-8")) if names else ast.Module([], [])
        assert (ROOT / file).exists(), entry
        for name in names:
            inside = {getattr(node, "name", ""): node for node in ast.iter_child_nodes(place)}
            assert name in inside, entry
            place = inside[name]


def test_the_lists_name_parameters_that_there_are() -> None:
    """Which only pytest knows."""
    others, _ = suite.by_place([*suite.fast_tests(), *night_tests()])
    collected = subprocess.run(
        [str(Path(sys.executable).with_name("pytest")), "-q", "--collect-only", "-p", "no:cacheprovider", *others],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]


def test_every_part_says_what_lives_there() -> None:
    """A docstring of two sentences: what lives there, and what does not."""
    rooms = {path.parent for path in (*shipped(), *(ROOT / "tools").rglob("*.py"), ROOT / BESIDE_THE_PACK / "run.py")}
    for folder in rooms:
        said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert said.count(".") >= 2, f"{folder.relative_to(ROOT)}: {said}"


def test_the_pack_runs_no_text_and_installs_nothing() -> None:
    """What the registry refuses, and what a node must never do."""
    for path in [ROOT / "__init__.py", *shipped()]:
        tree = ast.parse(path.read_text())
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not called & {"eval", "exec", "compile", "__import__"}, path
        assert not [name for name in called if name.startswith(("os.system", "os.popen", "os.exec", "os.spawn"))], path
        refused = {"subprocess", "socket", "urllib.request", "http.client", "requests", "aiohttp", "pip"}
        if path == ROOT / "cli" / "asking.py":
            refused.remove("urllib.request")  # it asks the server that --server names
        if path.parent != ROOT / "host" / "bands":  # which joins a cluster that the server's owner has named
            refused |= {"ray", "grpc"}
        if path == ROOT / "host" / "server" / "routes.py":
            refused.remove("aiohttp")  # it answers in the host's own server, and asks nobody
            assert "ClientSession" not in path.read_text()
        assert not set(imports(path)) & refused, path


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_style() -> None:
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".")
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".")


def test_types(tmp_path: Path) -> None:
    run(*checks.mypy(Path(sys.executable), tmp_path), cwd=checks.linked(tmp_path))
