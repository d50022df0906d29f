"""The command line: run, status, drain, simulate."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import journal as journals
from . import prompts
from .cluster import FarmError, actors, cluster, require_libraries
from .workers import Worker, workers

DONE, SOME_NOT, CANNOT, CANCELLED = 0, 1, 2, 130
ENDS = ("SIGINT", "SIGTERM", "SIGHUP")  # the last where its terminal is closed; Windows has none
EXAMPLES = """examples:
  python3 -m farm run prompts/*.json --workers http://192.168.0.2:8188 http://192.168.0.3:8188
  python3 -m farm run big.json --workers "http://127.0.0.1:8188#gpu=rtx 3060 12gb,limit=0.8" --split batch
  python3 -m farm run prompts/*.json --start 2                 servers of its own, one a card of this machine
  python3 -m farm status farm_results                          how it stands, from anywhere, by the journal
  python3 -m farm drain farm_results                           finish what runs, give out no more

A run that ended in any way goes on by the same command: what is done stays done, each result once.
exit status: 0 all done, 1 some failed or were refused, 2 nothing could be run or the run broke off, 130 cancelled"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python3 -m farm",
        description="Runs prompts on several ComfyUI servers, each where it fits.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="command")
    run = commands.add_parser("run", help="run prompts", epilog=EXAMPLES, formatter_class=top.formatter_class)
    run.set_defaults(command=_run)
    run.add_argument("prompts", nargs="+", type=Path, metavar="PROMPT.json", help="as Export (API) writes them")
    run.add_argument("--workers", nargs="+", default=[], metavar="URL", help="servers; behind a #, what each counts as:"
                     " gpu=NAME, vram=GB, ram=GB, limit=0.85; node=IP of the Ray node that reaches it")  # fmt: skip
    run.add_argument("--start", type=int, default=0, metavar="N", help="start N servers here, one a card")
    run.add_argument("--comfyui", metavar="FOLDER", help="with --start: which ComfyUI")
    run.add_argument("--server-args", default="", metavar="'…'", help="with --start: more options for ComfyUI")
    run.add_argument("--out", type=Path, default=Path("farm_results"), metavar="FOLDER", help="results and journal")
    run.add_argument("--inputs", type=Path, metavar="FOLDER", help="pictures and videos that prompts name: sent along")
    run.add_argument("--split", choices=["batch"], help="each picture of a batch is a prompt of its own")
    run.add_argument("--seeds", type=int, default=1, metavar="N", help="each prompt N times, its seeds counted up")
    run.add_argument("--unpredicted", action="store_true", help="run what cannot be predicted wholly, too")
    run.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent with every request;"
                     " better in HEADROOM_FARM_HEADERS, a line each: others see command lines")  # fmt: skip
    run.add_argument("--ca", default="", metavar="FILE", help="certificates to trust, for https with one's own")
    run.add_argument("--ray", metavar="HOST:PORT", help="join this Ray cluster (default: one of its own, here)")
    run.add_argument(
        "--wait", type=float, default=300.0, metavar="S", help="end after S seconds (300) without a worker that fits"
    )
    status = commands.add_parser("status", help="how a run stands")
    status.set_defaults(command=_status)
    status.add_argument("out", nargs="?", type=Path, default=Path("farm_results"), metavar="FOLDER")
    drain = commands.add_parser("drain", help="have a run finish what runs and give out no more")
    drain.set_defaults(command=_drain)
    drain.add_argument("out", nargs="?", type=Path, default=Path("farm_results"), metavar="FOLDER")
    simulate = commands.add_parser("simulate", help="the schedule alone, at any size, without servers")
    simulate.set_defaults(command=_simulate)
    simulate.add_argument("--workers", type=int, default=1000)
    simulate.add_argument("--prompts", type=int, default=100_000)
    simulate.add_argument("--failures", type=float, default=float("inf"), metavar="H", help="hours between failures")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command, and returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return CANNOT
    except KeyboardInterrupt:  # before anything was sent
        return CANCELLED


def _ends() -> Iterator[int]:
    """Signals that end a program, but for that of a terminal which it was started to outlive (nohup)."""
    for name in ENDS:
        number = getattr(signal, name, None)
        if number is not None and (name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN):
            yield number


def _run(options: argparse.Namespace) -> int:
    jobs = _jobs(options)
    named = list(options.workers)
    if not named and options.start < 1:
        workers(named)
    require_libraries()
    for number in _ends():  # each as Ctrl-C does: what it has started ends with it
        signal.signal(number, signal.default_int_handler)
    journal = journals.Journal(options.out)
    try:
        with _servers(options) as own:
            found = workers([*named, *own], options.header, options.ca)
            with cluster(options.ray) as ray:
                return asyncio.run(_driven(options, jobs, found, actors(ray, found), journal))
    finally:
        journal.close()


async def _driven(
    options: argparse.Namespace, jobs: list[prompts.Job], found: list[Worker], by_name: Any, journal: journals.Journal
) -> int:
    from rich.console import Console

    from .driver import Driver, Settings
    from .view import shown, summary

    console = Console(highlight=False, soft_wrap=True)
    settings = Settings(options.out, options.unpredicted, options.wait)
    driver = Driver(jobs, found, by_name, journal, settings, lambda line: console.print(line, markup=False))
    run = asyncio.ensure_future(driver.run())
    for number in _ends():
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the program, and the journal knows
            asyncio.get_running_loop().add_signal_handler(number, run.cancel)
    try:
        with shown(console, driver):
            await run
    except asyncio.CancelledError:
        console.print(f"cancelled: {summary(driver.states)}; the same command goes on")
        return CANCELLED
    except FarmError as error:
        console.print(f"{summary(driver.states)}\n{error}", markup=False)
        return CANNOT
    console.print(f"{summary(driver.states)}; results in {options.out}", markup=False)
    return DONE if all(state.status == "done" for state in driver.states.values()) else SOME_NOT


def _jobs(options: argparse.Namespace) -> list[prompts.Job]:
    if options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds}: at least 1")
    if options.wait < 0:
        raise ValueError(f"--wait {options.wait:g}: seconds, 0 or more")
    if options.inputs is not None and not options.inputs.is_dir():
        raise ValueError(f"--inputs: {options.inputs} is no folder")
    jobs = prompts.with_seeds(prompts.read(options.prompts), options.seeds)
    if options.split:
        jobs = prompts.split(jobs)
    return prompts.with_inputs(jobs, options.inputs) if options.inputs else jobs


@contextlib.contextmanager
def _servers(options: argparse.Namespace) -> Iterator[list[str]]:
    if options.start < 1:
        yield []
        return
    import shlex

    from .starting import started

    print(f"starting {options.start} ComfyUI …", file=sys.stderr)
    with started(options.start, options.comfyui, options.out, shlex.split(options.server_args)) as addresses:
        yield addresses


def _status(options: argparse.Namespace) -> int:
    require_libraries()
    from rich.console import Console

    from .view import status

    Console().print(status(options.out))
    return DONE


def _drain(options: argparse.Namespace) -> int:
    require_libraries()
    if not journals.drain(options.out):
        print(f"no driver works on {options.out}", file=sys.stderr)
        return CANNOT
    print("it finishes what runs and gives out no more; the run's own command goes on with the rest later")
    return DONE


def _simulate(options: argparse.Namespace) -> int:
    from .simulate import simulate

    if options.workers < 1 or options.prompts < 1 or not options.failures > 0:
        raise ValueError("simulate: --workers and --prompts from 1, --failures above 0")
    found = simulate(options.workers, options.prompts, hours_between_failures=options.failures)
    print(
        f"{found.done} prompts in {found.seconds:.0f} s, {found.efficiency:.1%} of the shortest that can be;"
        f" workers busy {found.busy:.1%} of their time, {found.lost} prompts begun again, models loaded"
        f" {found.loads} times; waiting after each tenth: {', '.join(map(str, found.queue))}"
    )
    return DONE
