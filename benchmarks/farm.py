"""Forty prompts on three servers of unequal declared cards: the schedule, kills, refusals; and the simulation's table.

All on this machine: three real ComfyUI on the CPU, one thread each, over the loopback interface. Writes farm.md.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from _harness import ROOT, load_package, machine, markdown_table, publish

load_package()
_tools = importlib.import_module("headroom.tools.server.server")
_client = importlib.import_module("headroom.tools.server.client")
_environment = importlib.import_module("headroom.tools.setup.environment")
_journal = importlib.import_module("headroom.farm.journal")
_simulate = importlib.import_module("headroom.farm.simulate")

ENVIRONMENT = _environment.Environment.from_variables()
CARDS = (0.3, 0.6, 4.0)  # GB that the servers are declared to have
SIDES = (128, 256, 320)  # px, by how many of them they fit: three, two, one
PROMPTS, LONGEST = 40, 900
SIZES = ((3, 40), (10, 1_000), (100, 10_000), (1_000, 100_000))
FAILURES = (float("inf"), 10.0, 1.0)  # hours between a worker's failures
SCHEDULE = ("run", "prompts", "the shortest that can be", "first sent to last result", "", "from nothing, Ray too", "")
SIMULATION = ("workers", "prompts", "a worker fails", "efficiency", "busy", "begun again", "had to load models",
              "waiting after 10, 50, 90 % of the time")  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
REFUSED = """A picture of 1024 px, which fits none: seconds from the moment at which the servers are known to its
refusal, by those of one server's estimate alone and of all their estimates at once (asked for by hand before and behind
it, the mean). On two cores: the third server has none of its own."""


def graph(seed: int, side: int) -> dict[str, dict[str, Any]]:
    """A text to image of the small SD-type model."""

    def node(kind: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": kind, "inputs": inputs}

    sampler = {"seed": seed, "steps": 2, "cfg": 4.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name="tiny_sd15.safetensors"),
        "2": node("CLIPTextEncode", clip=["1", 1], text="a lighthouse at dusk"),
        "3": node("CLIPTextEncode", clip=["1", 1], text="blurry"),
        "4": node("EmptyLatentImage", width=side, height=side, batch_size=1),
        "5": node("KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0], latent_image=["4", 0], **sampler),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 2]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="farm"),
    }


def written(folder: Path, seed: int) -> tuple[list[str], list[int]]:
    """Forty prompts as files, their sides drawn."""
    draw = random.Random(seed)
    sides = [draw.choice(SIDES) for _ in range(PROMPTS)]
    paths = [folder / f"prompt-{number:02d}.json" for number in range(PROMPTS)]
    for number, (path, side) in enumerate(zip(paths, sides)):
        path.write_text(json.dumps(graph(seed * 1000 + number, side)))
    return [str(path) for path in paths], sides


def command(paths: Sequence[str], out: Path, urls: Sequence[str]) -> list[str]:
    """The farm on these servers."""
    named = [f"{url}#vram={gb}" for url, gb in zip(urls, CARDS)]
    return [sys.executable, "-m", "farm", "run", *paths, "--out", str(out), "--workers", *named]


def lines(out: Path, event: str) -> list[dict[str, Any]]:
    """What the journal says of one kind of event."""
    return [line for line in _journal.lines(out) if line["event"] == event]


def least_seconds(done: Sequence[dict[str, Any]], sides: Sequence[int]) -> float:
    """No schedule of these prompts, at the seconds that each took, is shorter: what fits k servers or fewer, shared
    among k, and the longest."""
    seconds = [(line["seconds"], sides[number_of(line)]) for line in done]
    shares = [
        sum(one for one, side in seconds if side >= least) / count for count, least in ((3, 128), (2, 256), (1, 320))
    ]
    return max(*shares, max(one for one, _ in seconds))


def number_of(line: dict[str, Any]) -> int:
    """Of the prompt that a line is about."""
    return int(re.findall(r"prompt-(\d+)", line["job"])[0])


def of_the_schedule(urls: Sequence[str], runs: int) -> list[list[object]]:
    """Rows: wall time by the shortest that can be."""
    rows: list[list[object]] = []
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as name:
            paths, sides = written(Path(name), seed)
            start = time.monotonic()
            subprocess.run(command(paths, Path(name) / "out", urls), cwd=ROOT, check=True, timeout=LONGEST)
            whole = time.monotonic() - start
            done, sent = lines(Path(name) / "out", "done"), lines(Path(name) / "out", "sent")
            least = least_seconds(done, sides)
            span = done[-1]["time"] - sent[0]["time"]
            times = (f"{least:.1f} s", f"{span:.1f} s", f"**{span / least:.2f}x**", f"{whole:.1f} s")
            rows.append([seed + 1, len(done), *times, f"{whole / least:.2f}x"])
            print(rows[-1], flush=True)
    return rows


def of_kills(urls: Sequence[str]) -> str:
    """A server killed in the middle, then the driver, then the same command."""
    with tempfile.TemporaryDirectory() as name, server() as victim:
        paths, sides = written(Path(name), 100)
        out, places = Path(name) / "out", [victim.url, *urls[1:]]
        driver = subprocess.Popen(command(paths, out, places), cwd=ROOT, start_new_session=True)
        while len(lines(out, "done")) < PROMPTS // 4:
            time.sleep(0.1)
        os.killpg(victim.pid, signal.SIGKILL)
        while len(lines(out, "done")) < PROMPTS // 2:
            time.sleep(0.1)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        before = len(lines(out, "done"))
        subprocess.run(command(paths, out, places), cwd=ROOT, check=True, timeout=LONGEST)
        done = lines(out, "done")
        fits = {128: set(places), 256: set(places[1:]), 320: set(places[2:])}
        wrong = [line for line in lines(out, "sent") if f"http://{line['worker']}" not in fits[sides[number_of(line)]]]
        equal = equal_pictures(_client.Client(urls[2]), out, paths)
        return (
            f"{PROMPTS} prompts; a server killed with SIGKILL after {PROMPTS // 4}, the driver after {before}, the same"
            f" command again: **{len({line['job'] for line in done})} results, {len(done)} lines of them in the"
            f" journal, {equal} of them the same pixels as one server makes of them by itself; {len(wrong)} sent where"
            f" they do not fit**; {len(lines(out, 'lost'))} begun again."
        )


def equal_pictures(client: Any, out: Path, paths: Sequence[str]) -> int:
    """How many results are what one server makes of the same prompts."""
    from PIL import Image, ImageChops

    equal = 0
    for number, path in enumerate(paths):
        entry = client.run(json.loads(Path(path).read_text()), timeout=LONGEST).outputs["7"]["images"][0]
        alone = Image.open(io.BytesIO(client.image(entry)))
        (folder,) = out.glob(f"prompt-{number:02d}-*")
        (file,) = folder.glob("*.png")
        equal += ImageChops.difference(alone, Image.open(file)).getbbox() is None
    return equal


def of_refusals(urls: Sequence[str], runs: int) -> str:
    """What fits nowhere: seconds from the question to the refusal, by those of one estimate; of one server, which has a
    core for itself, up to all of them."""
    rows: dict[int, list[tuple[float, float, float]]] = {}
    for seed in range(runs):
        for number in range(1, len(urls) + 1):
            with tempfile.TemporaryDirectory() as name:
                path, out, asked = Path(name) / "big.json", Path(name) / "out", urls[:number]
                path.write_text(json.dumps(graph(seed, 1024)))
                before = at_once(asked[:1], graph(1000 + seed, 1024)), at_once(asked, graph(2000 + seed, 1024))
                subprocess.run(command([str(path)], out, asked), cwd=ROOT, check=False, timeout=LONGEST)
                behind = at_once(asked[:1], graph(3000 + seed, 1024)), at_once(asked, graph(4000 + seed, 1024))
                (known,), (refused,) = lines(out, "greeted"), lines(out, "refused")
                one, of_all = map(statistics.mean, zip(before, behind))
                rows.setdefault(number, []).append((refused["time"] - known["time"], one, of_all))
                print(number, rows[number][-1], flush=True)
    columns = ("servers, asked at a time", "refused by one estimate alone", "median", "median, by theirs at once")
    table = [
        (number, ", ".join(f"{took:.2f} s by {one:.2f} s" for took, one, _ in found),
         f"{statistics.median(took / one for took, one, _ in found):.2f}x",
         f"{statistics.median(took / of_all for took, _, of_all in found):.2f}x")
        for number, found in rows.items()
    ]  # fmt: skip
    return f"{REFUSED}\n\n{markdown_table(columns, table)}"


def at_once(urls: Sequence[str], prompt: dict[str, Any]) -> float:
    """Seconds until all of these servers have given their estimate."""
    with ThreadPoolExecutor(len(urls)) as pool:
        return seconds(lambda: list(pool.map(partial(estimate, prompt=prompt), urls)))


def estimate(url: str, prompt: dict[str, Any]) -> None:
    """Asks one server."""
    _client.Client(url).post("/headroom/estimate", {"prompt": prompt, "vram_gb": CARDS[0]})


def seconds(work: Any) -> float:
    """That something takes."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def of_the_simulation() -> list[list[object]]:
    """Rows: the same policy, at any size."""
    rows: list[list[object]] = []
    for workers, prompts in SIZES:
        for hours in FAILURES:
            found = _simulate.simulate(workers, prompts, hours_between_failures=hours)
            between = "never" if hours == float("inf") else f"{hours:g} h"
            queue = ", ".join(f"{found.queue[place]:,}" for place in (0, 4, 8))
            numbers = (f"{workers:,}", f"{prompts:,}", between, f"{found.efficiency:.1%}", f"{found.busy:.1%}")
            rows.append([*numbers, f"{found.lost:,}", f"{found.loads / found.done:.1%}", queue])
            print(rows[-1], flush=True)
    return rows


def server() -> Any:
    """A ComfyUI of one thread."""
    return _tools.Server(ENVIRONMENT, cpu=True, variables=ONE_THREAD)


def refusals_anew() -> None:
    """Measures them, and leaves the rest of the page as it is."""
    page = Path(__file__).with_suffix(".md")
    with ExitStack() as stack:
        found = of_refusals([stack.enter_context(server()).url for _ in CARDS], 5)
    before, _, rest = page.read_text(encoding="utf-8").partition("## Refusals\n")
    _, title, after = rest.partition("## At any size")
    publish("farm", f"{before}## Refusals\n{found}\n\n{title}{after}".rstrip())


def main() -> None:
    """Measures all and writes the page."""
    command_line = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    command_line.add_argument("--only-refusals", action="store_true", help="leave the rest of the page as it is")
    if command_line.parse_args().only_refusals:
        refusals_anew()
        return
    with ExitStack() as stack:
        urls = [stack.enter_context(server()).url for _ in CARDS]
        schedule = of_the_schedule(urls, 3)
        kills = of_kills(urls)
        refusals = of_refusals(urls, 5)
    simulation = of_the_simulation()
    cards = ", ".join(f"{gb:g}" for gb in CARDS)
    text = f"""# The farm

Written by `python3 -m tools bench farm`. {machine()}; ComfyUI {ENVIRONMENT.version}. Three servers on the CPU, one
thread each, declared as cards of {cards} GB; small models of random weights; {PROMPTS} prompts of
{", ".join(map(str, SIDES))} px, of which the first fit all three, the second two and the last one server. No network
between them, no GPU.

## The schedule
The shortest that can be: no order of these prompts, at the seconds that each took on its server, is shorter. What the
servers' estimates take is in the farm's time; before the first prompt come Python, Ray and its processes.

{markdown_table(SCHEDULE, schedule)}

## Kills
{kills}

## Refusals
{refusals}

## At any size
The same policy without servers: prompts of 40 kinds, 5 to 200 s on the fastest card, each with one of ten sets of
models; cards of 6 GB (30 %, three times slower), 8 GB (30 %, two times), 12 GB (20 %, 1.5 times), 16 GB (10 %, 1.2
times) and 24 GB (10 %), kinds in need of them in the same shares. What a prompt takes varies by 10 % around what was
predicted; other models take 10 s to load; a worker that fails is back after 5 min. *Efficiency*: the shortest that can
be, without failures and loading, by the farm's time. *Busy*: share of the workers' time, while they were there, that
went into finished prompts: small cards have nothing to do while large ones do what they alone can.

{markdown_table(SIMULATION, simulation)}
"""
    publish("farm", text)


if __name__ == "__main__":
    main()
