"""Compares the catalogue of public files with what ComfyUI's templates say that their downloads take.

    python3 -m tools catalogue [--write]

An entry is confirmed if it has the size that a template's note says of the file; where no note does, if the total of a
template is met by it and the entries of all its other files.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CATALOGUE = Path(__file__).resolve().parents[1] / "host" / "catalogue" / "catalogue.json"
TEMPLATES = "comfyui_workflow_templates_json"
NEAR = 0.01  # of a total, or of a size
GB = 2**30
# A link to a file, and behind it how large that is, as notes have it.
SAID = re.compile(r"/([^/\s)]+\.(?:safetensors|pth|pt|bin))\)\s*\(\**([\d.]+ [MG]B)\**\)")


class Total(NamedTuple):
    """What a template says of its downloads.

    Attributes:
        template: its name.
        nbytes: of all its files.
        files: their names.
    """

    template: str
    nbytes: int
    files: frozenset[str]


def totals(folder: Path) -> Iterator[Total]:
    """Of the templates in a folder that give one and name files."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    for entry in (one for category in index for one in category["templates"]):
        workflow = folder / f"{entry['name']}.json"
        if entry.get("size") and workflow.is_file():
            files = frozenset(_files(json.loads(workflow.read_text(encoding="utf-8"))))
            if files:
                yield Total(entry["name"], entry["size"], files)


def _files(graph: dict[str, Any]) -> Iterator[str]:
    """Names; after its folder where the catalogue has two files of one name."""
    known = json.loads(CATALOGUE.read_text(encoding="utf-8"))["files"]
    for node in graph.get("nodes", ()):
        for model in (node.get("properties") or {}).get("models") or ():
            placed = f"{model['directory']}/{model['name']}"
            yield placed if placed in known else model["name"]
    for inner in (graph.get("definitions") or {}).get("subgraphs") or ():
        yield from _files(inner)


def said_sizes(folder: Path) -> dict[str, str]:
    """What the notes of the templates in a folder say of files, such as "2.33 GB", by their names."""
    known = json.loads(CATALOGUE.read_text(encoding="utf-8"))["files"]
    ambiguous = {name.rpartition("/")[2] for name in known if "/" in name}
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json")))
    return {name: size for text in texts for name, size in SAID.findall(text) if name not in ambiguous}


def confirmed(found: Sequence[Total], sizes: dict[str, int], said: dict[str, int]) -> set[str]:
    """The files of the size that is said of them, and those of totals that are met, of which none is said.

    Args:
        found: the totals.
        sizes: bytes of entries by their names.
        said: bytes of files that are said of them.
    """
    of_totals = {
        name
        for total in found
        if total.files <= sizes.keys() and abs(_sum(total, sizes) / total.nbytes - 1) <= NEAR
        for name in total.files
    }
    of_their_own = {name for name in said.keys() & sizes.keys() if abs(sizes[name] / said[name] - 1) <= NEAR}
    return of_their_own | of_totals - said.keys()


def _sum(total: Total, sizes: dict[str, int]) -> int:
    return sum(sizes[name] for name in total.files)


def _sizes(files: dict[str, Any]) -> Iterator[tuple[str, int]]:
    networks = importlib.import_module("headroom.host.catalogue.networks")
    for name, file in files.items():
        try:
            yield name, file.nbytes
        except networks.NoSuchNetwork as error:
            print(f"{name}: {error}", file=sys.stderr)


def write(names: set[str], said: dict[str, str]) -> None:
    """Marks the confirmed entries in the catalogue, and no others, and writes what is said of each."""
    lines = []
    for line in CATALOGUE.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.strip().partition(": ")
        if '"stored"' in line:
            entry = json.loads(rest.rstrip(","))
            entry.pop("confirmed", None)
            if json.loads(name) in said:
                entry["said"] = said[json.loads(name)]
            if json.loads(name) in names:
                entry["confirmed"] = True
            line = f"    {name}: {json.dumps(entry)}{',' if line.endswith(',') else ''}"
        lines.append(line)
    CATALOGUE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="mark the confirmed entries in the catalogue")
    options = parser.parse_args(arguments)
    spec = importlib.util.find_spec(TEMPLATES)
    if spec is None or spec.origin is None:
        parser.error(f"{TEMPLATES} is not installed")
    host = importlib.import_module("cli.host")
    host.enter(host.find_comfyui(), extras=False)
    entries = importlib.import_module("headroom.host.catalogue.entries")
    files = entries.public_files()
    sizes, folder = dict(_sizes(files)), Path(spec.origin).parent / "templates"
    found = list(totals(folder))
    known = [total for total in found if total.files <= sizes.keys()]
    for total in known:
        off = _sum(total, sizes) / total.nbytes - 1
        print(f"{off:+8.1%}  {_sum(total, sizes) / GB:7.2f} of {total.nbytes / GB:7.2f} GB  {total.template}")
    noted = said_sizes(folder)
    sayings = {name: noted.get(name, files[name].said) for name in sizes if name in noted or files[name].said}
    said = {name: entries.bytes_said(size) for name, size in sayings.items()}
    for name, size in said.items():
        print(f"{sizes[name] / size - 1:+8.1%}  {sizes[name] / GB:7.2f} GB, said are {sayings[name]}  {name}")
    met = confirmed(known, sizes, said) - {name for name, file in files.items() if file.fitted}
    near = sum(abs(_sum(total, sizes) / total.nbytes - 1) <= NEAR for total in known)
    alike = sum(abs(sizes[name] / size - 1) <= NEAR for name, size in said.items())
    print(f"{near} of {len(known)} totals met ({len(found)} given), {alike} of {len(said)} sizes that notes say")
    print(f"{len(met)} of {len(sizes)} entries confirmed; notes name {len(noted.keys() - sizes.keys())} other files")
    if options.write:
        write(met, sayings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
