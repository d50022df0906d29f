"""Shows in a few minutes, on your own card and ComfyUI, that the pack does what it says there.

    python3 cli/check.py

It makes models with random weights in memory, and compares every attention backend, cast weights, the VAE in strips and
Block Offload with what ComfyUI itself computes; budgets, predictions and seconds with what is measured. It needs no
model file and no network, and writes nothing but the file of `--json`. At the end comes a short text for an issue.
Exit status: 0 everything held, 1 something did not, or was not looked at, 2 it could not start.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from . import host
else:  # as a script
    import host

HELD, NOT_HELD, CANNOT_START = 0, 1, 2
PARTS = ("attention", "casting", "decode", "encode", "offload", "prefetch", "prediction", "speed")
SECONDS = 150.0
EXAMPLES = """examples:
  python3 cli/check.py                         everything, on this machine's card
  python3 cli/check.py --only decode --cpu     the VAE's decode alone, on the CPU
  python3 cli/check.py --json check.json       all numbers into a file too

exit status: 0 everything holds, 1 something does not or was not looked at, 2 it could not start"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="check",
        description=(__doc__ or "").partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--only", action="append", choices=PARTS, metavar="PART", help=f"one of {', '.join(PARTS)}")
    top.add_argument("--seconds", type=seconds, default=SECONDS, help=f"it may take (default {SECONDS:.0f})")
    top.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    top.add_argument("--cpu", action="store_true", help="leave the card alone")
    top.add_argument("--comfyui", metavar="FOLDER", help="where ComfyUI is, if the pack is not in it")
    return top


def seconds(text: str) -> float:
    """A number above 0.

    Raises:
        ValueError: anything else, which argparse puts into a sentence.
    """
    found = float(text)
    if not found > 0:
        raise ValueError
    return found


class Screen:
    """The terminal: rows as they come, and beneath them what is being done, where it is a terminal."""

    def __init__(self) -> None:
        self._shows = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # consoles that lack a character

    def line(self, text: str = "") -> None:
        self.clear()
        print(text, flush=True)

    def doing(self, text: str) -> None:
        if self._shows:
            print(f"\r\x1b[K  … {text}", end="", flush=True)

    def clear(self) -> None:
        if self._shows:
            print("\r\x1b[K", end="", flush=True)


def has_card() -> bool:
    """Whether torch finds an accelerator; hosts of older torch ask for CUDA's by name."""
    torch = importlib.import_module("torch")
    if hasattr(torch, "accelerator"):
        return bool(torch.accelerator.is_available())
    return bool(torch.cuda.is_available() or torch.backends.mps.is_available())


def start(options: argparse.Namespace, base: str, screen: Screen) -> tuple[Any, dict[str, Any]]:
    """Imports the host and the pack; what the checks share, and what they run on.

    Args:
        base: a folder for what the host would write.

    Raises:
        Exception: of any kind, if there is no ComfyUI or it does not start.
    """
    if options.json is not None and not options.json.resolve().parent.is_dir():
        raise NotADirectoryError(f"{options.json} cannot be written: there is no folder {options.json.parent}")
    comfyui = host.find_comfyui(options.comfyui)
    host.enter(comfyui, base, cpu=options.cpu or not has_card(), extras=False)
    importlib.import_module("headroom.cli.checks.parts")
    bench = importlib.import_module("headroom.cli.checks.bench").Bench(options.seconds, screen.doing)
    machine = importlib.import_module("headroom.cli.checks.machine")
    return bench, machine.describe(bench.device)


def run(options: argparse.Namespace, screen: Screen, bench: Any, ran_on: dict[str, Any]) -> int:
    """Looks at the parts that were asked for. Returns the exit status."""
    parts, machine, text = (
        importlib.import_module(f"headroom.cli.checks.{name}") for name in ("parts", "machine", "text")
    )
    head, interrupted = machine.head(ran_on), False
    found: dict[str, list[Any]] = {}
    for line in head:
        screen.line(line)
    try:
        screen.line(bench.sizes_line())
        for part in parts.PARTS:
            if not options.only or part.name in options.only:
                screen.line(f"\n{part.title}")
                found[part.name] = []
                for row in parts.rows(part, bench):
                    found[part.name].append(row)
                    screen.line(text.table_row(row))
    except KeyboardInterrupt:
        interrupted = True
        screen.line("\nStopped; this is what is known so far.")
    so_far = found, bench.elapsed, interrupted
    screen.line(f"\n{text.verdict(*so_far)}")
    screen.line(f"\nTo paste into an issue:\n\n{text.to_paste(head, *so_far)}")
    result = text.as_json(ran_on, bench.known_sizes, *so_far)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return HELD if result["held"] else NOT_HELD


@contextmanager
def leaving_nothing() -> Iterator[str]:
    """A folder that is gone afterwards, for what the host writes when it starts; no bytecode beside the sources."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with tempfile.TemporaryDirectory(prefix="headroom-check-", ignore_cleanup_errors=True) as base:
            yield base
    finally:
        sys.dont_write_bytecode = before


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks, and returns the exit status."""
    options = parser().parse_args(arguments)
    screen = Screen()
    with leaving_nothing() as base:
        try:
            screen.doing("ComfyUI starts")
            bench, ran_on = start(options, base, screen)
        except KeyboardInterrupt:
            screen.line("Stopped before anything was looked at.")
            return CANNOT_START
        except Exception as error:
            screen.clear()
            print(f"It could not start: {host.why(error)}", file=sys.stderr)
            return CANNOT_START
        with importlib.import_module("torch").inference_mode():
            return run(options, screen, bench, ran_on)


if __name__ == "__main__":
    sys.exit(main())
