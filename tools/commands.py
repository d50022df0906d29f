"""The commands of `python3 -m tools`."""

from __future__ import annotations

import argparse
import ast
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from .card import cards, emulator
from .check import checks, faults, suite
from .server.server import Server, ServerError, unwind_on_terminate
from .setup import cache, hosts
from .setup.environment import PACK, Environment, prepare
from .setup.progress import SetupError
from .setup.run import run

BENCHMARKS = PACK / "benchmarks"


def main(arguments: Sequence[str]) -> int:
    """Run one command; its exit status, 2 if the set-up failed."""
    unwind_on_terminate()
    options = parser().parse_args(arguments or ["--help"])
    try:
        return int(options.command(options))
    except (SetupError, ServerError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    """The command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--host",
        type=hosts.named,
        metavar="HOST",
        help=f"use this ComfyUI rather than one found on this machine (where there is none: {hosts.DEFAULT}):"
        f" {', '.join(hosts.CARRIERS)}, or a folder or archive (.tar.gz, .tar.xz) of its source",
    )
    on_card = argparse.ArgumentParser(add_help=False)
    on_card.add_argument(
        "--card",
        metavar="CARD",
        type=cards.parse,
        help=f"run on an emulated card: {', '.join(cards.CARDS)}, with other memory as 8GB-rtx3060",
    )
    in_browser = argparse.ArgumentParser(add_help=False)
    in_browser.add_argument(
        "--frontend", metavar="VERSION", help="with this comfyui-frontend-package, not the one that ComfyUI names"
    )
    top = argparse.ArgumentParser(prog="python3 -m tools", description="Try, test and measure Headroom.")
    commands = top.add_subparsers(required=True, metavar="command")

    def add(name: str, function: object, text: str, *more: argparse.ArgumentParser) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, parents=[common, *more])
        command.set_defaults(command=function)
        return command

    command = add("demo", demo, "run the example workflows headlessly and compare them with stock nodes", on_card)
    command.add_argument("--out", type=Path, default=PACK / "output/demo", help="folder for the pictures")
    command = add("test", test, "run the test suite", on_card, in_browser)
    command.add_argument("--fast", action="store_true", help="a slice of everything, about two minutes")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ...", help="arguments for pytest")
    command = add("mutations", mutations, "put faults into copies of the checkout, and look which test notices: hours")
    command.add_argument(
        "--only", nargs="+", metavar="NAME", help="these faults; default: all that have no verdict yet"
    )
    command.add_argument("--again", action="store_true", help="those with a verdict too")
    command.add_argument("--survivors-only", action="store_true", help="those that no test has noticed so far")
    add("check", check, "style, types, arrows between parts, words and contract: seconds")
    command = add("serve", serve, "start ComfyUI with the pack, for a browser", on_card, in_browser)
    command.add_argument("--port", type=int, default=8188)
    command.add_argument("--cpu", action=argparse.BooleanOptionalAction, help="default: if nothing else is there")
    command = add("bench", bench, "run a benchmark, or list them", on_card)
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="name ...", help="and its arguments")
    command = add(
        "campaign",
        campaign,
        "try to break it: fuzzed prompts, interrupts, hostile files and requests, full disks",
        on_card,
    )
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="PART", help="and its options; --help lists")
    command = add("estimate", estimate, "predict the memory of a workflow file, without running it and without a GPU")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="WORKFLOW.json ...", help="and its options")
    command = add("templates-table", templates_table, "predict ComfyUI's official templates for every card: hours")
    command.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these templates; default: all")
    command.add_argument("--minutes", default="inf", metavar="M", help="end after as many, and go on another time")
    command.add_argument("--page", type=Path, metavar="FILE.md", help="write the table of what there is so far")
    command = add("catalogue", catalogue, "compare the catalogue of public files with what the official templates say")
    command.add_argument("--write", action="store_true", help="mark the confirmed entries in it")
    command = add("fit", fit, "put Headroom's nodes into a workflow file, so that it fits, and change nothing else")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="IN.json -o OUT.json ...", help="and options")
    command = add("screenshots", screenshots, "take the pictures of the README, the help pages and the templates anew")
    command.add_argument(
        "--only", metavar="PART", help="thumbnails, browser, help, runs or film; survey: all to look at, into output/"
    )
    add("templates", templates, "write the browser's templates anew")
    add("locales", locales, "write the English of the nodes anew")
    add("artwork", artwork, "draw icon and banner anew")
    command = add("site", site, "build the documentation as a site that can be searched")
    command.add_argument("--out", type=Path, default=PACK / "output/site", help="its folder")
    command = add("train-decoder", train_decoder, "train the decoder of the small Stable Diffusion autoencoder")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its options")
    command = add("train-painter", train_painter, "train the small Stable Diffusion that paints coloured shapes")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its options")
    command = add("train-flux-painter", train_flux_painter, "train the small Flux that does too")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its options")
    command = add("env", env, "make the environment and say where it is")
    command.add_argument("--json", action="store_true", help="one JSON object, the last line of the output")
    return top


def env(options: argparse.Namespace) -> int:
    """Print where everything is."""
    environment = prepare(options.host)
    table = "\n".join(f"{name:<8} {value}" for name, value in asdict(environment).items())
    print(environment.json() if options.json else table)
    return 0


def serve(options: argparse.Namespace) -> int:
    """Run the host in the foreground; pictures and workflows stay in the cache between runs."""
    environment = prepare(options.host, frontend_version=options.frontend)
    base = cache.root() / "serve"
    card = _card(options, environment)
    cpu = False if card else options.cpu
    with Server(environment, port=options.port, base=base, cpu=cpu, variables=card) as server:
        where = f"on {server.url}, its files in {base}"
        print(f"ComfyUI with Headroom is {where}; Ctrl-C ends it.", file=sys.stderr)
        return server.follow(sys.stdout)


def test(options: argparse.Namespace) -> int:
    """Run the tests by pytest's own script: `python -m` would put the pack's `nodes` before the host's."""
    environment = prepare(options.host, with_tools=True, frontend_version=options.frontend)
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    if options.fast:
        return suite.fast(environment, arguments)
    if suite.paths_in(arguments):
        return suite.named(environment, arguments, _card(options, environment))
    return suite.everything(environment, arguments)


def mutations(options: argparse.Namespace) -> int:
    """Look whether the tests notice the faults of `tests/mutations.py`."""
    environment = prepare(options.host, with_tools=True)
    return faults.look(environment, options.only or (), again=options.again, survivors=options.survivors_only)


def check(options: argparse.Namespace) -> int:
    """Look at style, types, arrows, words and contract."""
    return checks.check(prepare(options.host, with_tools=True))


def demo(options: argparse.Namespace) -> int:
    """Run the demo in the environment; it talks to the host over HTTP and never imports it."""
    environment = prepare(options.host, with_tools=True)
    command = (environment.python, "-m", "tools.demo", "--out", options.out.absolute())
    return run(environment, *command, variables=_card(options, environment))


def screenshots(options: argparse.Namespace) -> int:
    """Take the pictures in the environment, by the system's Chromium."""
    return _module(options, "tools.pictures.screenshots", *(("--only", options.only) if options.only else ()))


def templates(options: argparse.Namespace) -> int:
    """Write the browser's templates."""
    return _module(options, "tools.templates")


def locales(options: argparse.Namespace) -> int:
    """Write the English of the nodes."""
    return _module(options, "tools.templates.locales")


def artwork(options: argparse.Namespace) -> int:
    """Draw icon and banner."""
    return _module(options, "tools.pictures.artwork")


def site(options: argparse.Namespace) -> int:
    """Build the documentation's site."""
    return _module(options, "tools.site", "--out", str(options.out.absolute()))


def train_decoder(options: argparse.Namespace) -> int:
    """Train it in the environment."""
    return _module(options, "tools.models.training.train_decoder", *options.arguments)


def train_painter(options: argparse.Namespace) -> int:
    """Train it in the environment."""
    return _module(options, "tools.models.training.train_painter", *options.arguments)


def train_flux_painter(options: argparse.Namespace) -> int:
    """Train it in the environment."""
    return _module(options, "tools.models.training.train_flux_painter", *options.arguments)


def bench(options: argparse.Namespace) -> int:
    """Run one benchmark, or list them."""
    scripts = {path.stem: path for path in sorted(BENCHMARKS.glob("[!_]*.py"))}
    if not options.arguments:
        print("\n".join(f"{name:<16} {_summary(path)}" for name, path in scripts.items()))
        return 0
    name, *arguments = options.arguments
    if name not in scripts:
        known = ", ".join(scripts) or "nothing yet"
        raise SetupError(f"There is no benchmark {name!r}: there is {known}.")
    environment = prepare(options.host, with_tools=True)
    return run(environment, environment.python, scripts[name], *arguments, variables=_card(options, environment))


def campaign(options: argparse.Namespace) -> int:
    """Run a part of the reliability campaign."""
    environment = prepare(options.host, with_tools=True)
    script = PACK / "tests" / "campaign" / "__main__.py"
    return run(environment, environment.python, script, *options.arguments, variables=_card(options, environment))


def estimate(options: argparse.Namespace) -> int:
    """Ask the command line that ships with the pack, with the demo's models unless others are named."""
    environment = prepare(options.host)
    folders = () if "--base-directory" in options.arguments else ("--base-directory", environment.models)
    script = PACK / "cli" / "estimate.py"
    return run(environment, environment.python, script, "--comfyui", environment.comfyui, *folders, *options.arguments)


def templates_table(options: argparse.Namespace) -> int:
    """Go through the templates of the environment's ComfyUI."""
    only = ("--only", *options.only) if options.only else ()
    page = ("--page", str(options.page.absolute())) if options.page else ()
    return _module(options, "tools.templates_table", "--minutes", options.minutes, *only, *page)


def catalogue(options: argparse.Namespace) -> int:
    """Compare it with the templates of the environment's ComfyUI."""
    return _module(options, "tools.catalogue", *(("--write",) if options.write else ()))


def fit(options: argparse.Namespace) -> int:
    """Ask the command line that ships with the pack; it needs neither the environment nor a ComfyUI."""
    return subprocess.run([sys.executable, PACK / "cli" / "fit.py", *options.arguments], check=False).returncode


def _summary(script: Path) -> str:
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _card(options: argparse.Namespace, environment: Environment) -> dict[str, str] | None:
    """The variables of the emulated card that was asked for with --card."""
    return emulator.variables(environment, options.card) if options.card else None


def _module(options: argparse.Namespace, name: str, *arguments: str) -> int:
    """Run a module of the tools in the environment."""
    environment = prepare(options.host, with_tools=True)
    return run(environment, environment.python, "-m", name, *arguments)
