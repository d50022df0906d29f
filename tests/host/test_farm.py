"""The farm over real servers and a real Ray: what fits goes where it fits, each once, whatever is killed meanwhile.

Three ComfyUI of one thread each, declared as cards of three sizes.
"""

import asyncio
import io
import json
import os
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from aiohttp import web
from PIL import Image

from headroom.farm import comfy, journal
from headroom.farm import driver as driver_module
from headroom.farm.actor import ComfyActor
from headroom.farm.cluster import NEEDED, SETTINGS
from headroom.farm.command import CANNOT
from headroom.farm.driver import Driver, Settings
from headroom.farm.prompts import read
from headroom.farm.workers import workers
from headroom.graph.version import pack_version
from headroom.tools.server.client import Client
from headroom.tools.server.server import Server, free_port
from headroom.tools.setup.environment import PACK

from ..nightly import NIGHTLY
from .conftest import ENVIRONMENT
from .workflows import ATTENTION, node, text_to_image

# GB that the servers are declared to have, and where an older host's tiny VAE is twice as wide.
CARDS, WIDE_CARDS = (0.3, 0.6, 4.0), (0.5, 0.7, 4.0)
SIDES = (128, 256, 320)  # px: the first fits all of them, the last the largest alone
PROMPTS = 40 if NIGHTLY else 6
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
LONGEST = 300  # seconds


@pytest.fixture(autouse=True, scope="module")
def loaded_as_by_the_farm() -> None:
    """Ray, by the tests that drive in this process: it keeps how it was loaded, and others here join clusters."""
    os.environ.update(SETTINGS)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server(ENVIRONMENT, cpu=True, variables=ONE_THREAD)) for _ in CARDS]


@cache
def cards(url: str) -> tuple[float, ...]:
    """What the servers are declared to have: by whether the smallest picture takes less than the smallest card."""
    answer = Client(url).post("/headroom/estimate", {"prompt": graph(0, SIDES[0]), "vram_gb": CARDS[-1]})
    return CARDS if max(stage["peak_gb"] for stage in answer["stages"]) < CARDS[0] else WIDE_CARDS


def named(servers: list[Server]) -> list[str]:
    return [f"{server.url}#vram={gb}" for server, gb in zip(servers, cards(servers[-1].url))]


def graph(seed: int, side: int, **sampler: Any) -> dict[str, Any]:
    made = text_to_image(side=side, seed=seed, save_latent=False)
    made["5"]["inputs"] |= sampler
    return made


def written(folder: Path, graphs: list[dict[str, Any]]) -> list[str]:
    paths = [folder / f"prompt-{number:02d}.json" for number in range(len(graphs))]
    for path, one in zip(paths, graphs):
        path.write_text(json.dumps(one))
    return [str(path) for path in paths]


def command(paths: list[str], out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "farm", "run", *paths, "--out", str(out), *more]


def farm(paths: list[str], out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(paths, out, *more), cwd=PACK, capture_output=True, text=True, timeout=LONGEST)


def lines(out: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in journal.lines(out) if line["event"] == event]


def until(true: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path))


def made_by(client: Client, one: dict[str, Any]) -> Any:
    """The picture that a server makes of a prompt by itself."""
    result = client.run(one, timeout=LONGEST)
    return np.asarray(Image.open(io.BytesIO(client.image(result.outputs["7"]["images"][0]))))


def fits(servers: list[Server], one: dict[str, Any]) -> set[str]:
    """The workers whose own estimate says that a prompt fits."""
    asked = {
        server.url.partition("//")[2]: Client(server.url).post("/headroom/estimate", {"prompt": one, "vram_gb": gb})
        for server, gb in zip(servers, cards(servers[-1].url))
    }
    return {name for name, answer in asked.items() if answer["verdict"] != "does_not_fit"}


def test_kills_lose_nothing_and_double_nothing(servers: list[Server], tmp_path: Path) -> None:
    """A server is killed in the middle and the driver too; the same command goes on."""
    sides = [SIDES[number % 3] for number in range(PROMPTS)]
    graphs = [graph(seed, side) for seed, side in enumerate(sides)]
    paths, out = written(tmp_path, graphs), tmp_path / "out"
    allowed = {side: fits(servers, graph(0, side)) for side in SIDES}
    assert [len(allowed[side]) for side in SIDES] == [3, 2, 1]
    with Server(ENVIRONMENT, cpu=True, variables=ONE_THREAD) as victim:
        killed = [victim, *servers[1:]]
        of_the_victim = {victim.url.partition("//")[2]}
        driver = subprocess.Popen(command(paths, out, "--workers", *named(killed)), cwd=PACK, start_new_session=True)
        try:
            until(lambda: any(line["worker"] in of_the_victim for line in lines(out, "sent")))
            os.killpg(victim.pid, signal.SIGKILL)
            until(lambda: lines(out, "lost") and len(lines(out, "done")) >= PROMPTS // 4)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        done_before = {line["job"] for line in lines(out, "done")}
        assert 0 < len(done_before) < PROMPTS
        again = farm(paths, out, "--workers", *named(killed))
    assert again.returncode == 0, again.stdout + again.stderr
    done = lines(out, "done")
    assert Counter(line["job"] for line in done) == Counter({path.name: 1 for path in out.iterdir() if path.is_dir()})
    assert len(done) == PROMPTS
    assert done_before <= {line["job"] for line in done}
    for line in lines(out, "sent"):
        side = sides[int(re.findall(r"prompt-(\d+)", line["job"])[0])]
        assert line["worker"] in allowed[side] or (line["worker"] in of_the_victim and side == SIDES[0]), line
    client = Client(servers[2].url)
    for number, one in enumerate(graphs):
        (folder,) = out.glob(f"prompt-{number:02d}-*")
        about = json.loads((folder / "result.json").read_text())
        assert about["prompt"] == one
        (file,) = about["files"]
        assert np.array_equal(pixels(folder / file["file"]), made_by(client, one))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the system limits no other process")
def test_a_full_disk_ends_a_run_that_goes_on_later(servers: list[Server], tmp_path: Path) -> None:
    """Of results that do not fit nothing stays, and what was made is fetched by the next run, each once."""
    graphs = [graph(seed, SIDES[0]) for seed in range(2)]
    paths, out = written(tmp_path, graphs), tmp_path / "out"
    with subprocess.Popen(
        command(paths, out, "--workers", *named(servers)), cwd=PACK, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as driver:  # fmt: skip
        until(lambda: lines(out, "sent"))
        room = (out / journal.FILE).stat().st_size + 4096  # for further lines, and not for a picture
        resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (room, room))
        told, error = driver.communicate(timeout=LONGEST)
    assert driver.returncode == CANNOT, told + error
    assert "File too large; make room" in told
    assert "Traceback" not in told + error
    assert not lines(out, "done")
    assert not [path for path in out.iterdir() if path.is_dir()]
    again = farm(paths, out, "--workers", *named(servers))
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(lines(out, "done")) == len(graphs) == len(list(out.glob("prompt-*/result.json")))
    client = Client(servers[0].url)
    for number, one in enumerate(graphs):
        (picture,) = out.glob(f"prompt-{number:02d}-*/*.png")
        assert np.array_equal(pixels(picture), made_by(client, one))


def test_what_fits_nowhere_is_refused_and_the_rest_runs(servers: list[Server], tmp_path: Path) -> None:
    nowhere = graph(1, 64)
    nowhere["1"]["inputs"]["ckpt_name"] = "nowhere.safetensors"
    wrong = graph(1, 64, sampler_name="nonsense")
    unknown = graph(1, 64) | {"20": {"class_type": "NobodysNode", "inputs": {}}}
    paths = written(tmp_path, [graph(5, 1024), nowhere, wrong, unknown, graph(5, 64)])
    out = tmp_path / "out"
    run = farm(paths, out, "--workers", *named(servers))
    assert run.returncode == 1, run.stdout + run.stderr
    assert [line["job"][:9] for line in lines(out, "done")] == ["prompt-04"]
    said = {line["job"][:9]: line["reason"] for line in lines(out, "refused")}
    assert re.search(r"needs [\d.]+ GB at least.*the least card that would do has \d+ GB$", said["prompt-00"])
    assert "lacks nowhere.safetensors (node 1, ckpt_name)" in said["prompt-01"]
    assert "sampler_name: 'nonsense' not in" in said["prompt-02"]
    assert "lacks the node NobodysNode" in said["prompt-03"]
    assert not [line for line in lines(out, "sent") if line["job"].startswith(("prompt-00", "prompt-01", "prompt-03"))]
    for reason in said.values():
        assert reason in run.stdout
    told = subprocess.run([sys.executable, "-m", "farm", "status", str(out)], cwd=PACK, capture_output=True, text=True)
    assert told.stdout.startswith("1 done, 4 refused")


def test_a_split_batch_is_the_same_on_any_machine(servers: list[Server], tmp_path: Path) -> None:
    """And its pictures are those of the batch in one piece up to rounding, where the sampler draws no noise."""
    one = graph(7, 64)
    one["4"]["inputs"]["batch_size"] = 3
    paths, out = written(tmp_path, [one]), tmp_path / "out"
    run = farm(paths, out, "--workers", *named(servers), "--split", "batch")
    assert run.returncode == 0, run.stdout + run.stderr
    abouts = [json.loads(path.read_text()) for path in sorted(out.glob("*/result.json"))]
    abouts.sort(key=lambda about: max(node["inputs"].get("batch_index", 0) for node in about["prompt"].values()))
    assert len(abouts) == 3
    client = Client(servers[0].url)
    result = client.run(one, timeout=LONGEST)
    for about, entry in zip(abouts, result.outputs["7"]["images"]):
        assert "the same first noise" in about["notes"][0]
        picture = pixels(out / about["job"] / about["files"][0]["file"])
        assert np.array_equal(picture, made_by(client, about["prompt"]))
        whole = np.asarray(Image.open(io.BytesIO(client.image(entry)))).astype(int)
        assert np.abs(picture - whole).max() <= 1


def test_prompts_with_our_nodes(servers: list[Server], tmp_path: Path) -> None:
    """Attention in slices, casting, offload and the VAE in strips: the picture that one server makes of them."""
    one = graph(3, 96)
    one["10"] = node("HeadroomCast", model=["1", 0], storage="float8_e4m3fn_scaled", compute="auto", skip="auto")
    one["11"] = node("HeadroomOffload", model=["10", 0], vram_budget_gb=0.01, granularity="auto")
    one["12"] = node("HeadroomAttention", model=["11", 0], **ATTENTION | {"backend": "sliced"})
    one["13"] = node("HeadroomVAE", vae=["1", 2], method="exact", tile_size=32)
    one["5"]["inputs"]["model"], one["6"]["inputs"]["vae"] = ["12", 0], ["13", 0]
    paths, out = written(tmp_path, [one]), tmp_path / "out"
    run = farm(paths, out, "--workers", *named(servers))
    assert run.returncode == 0, run.stdout + run.stderr
    (about,) = [json.loads(path.read_text()) for path in out.glob("*/result.json")]
    picture = pixels(out / about["job"] / about["files"][0]["file"])
    assert np.array_equal(picture, made_by(Client(servers[0].url), one))


def test_pictures_go_along_and_a_drain_ends_a_run(servers: list[Server], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    drawn = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(drawn).save(folder / "mine.png")
    graphs = []
    for number in range(6):
        one = graph(number, 64, denoise=0.5, steps=4)
        one["4"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["1", 2]}}
        one["10"] = {"class_type": "LoadImage", "inputs": {"image": "mine.png"}}
        graphs.append(one)
    paths, out = written(tmp_path, graphs), tmp_path / "out"
    more = ("--workers", named(servers)[2], "--inputs", str(folder))
    driver = subprocess.Popen(command(paths, out, *more), cwd=PACK)
    try:
        until(lambda: lines(out, "sent"))
        asked = subprocess.run(
            [sys.executable, "-m", "farm", "drain", str(out)], cwd=PACK, capture_output=True, text=True
        )
        assert asked.returncode == 0, asked.stderr
        assert driver.wait(LONGEST) == 1
    finally:
        driver.kill()
    drained = len(lines(out, "done"))
    assert 0 < drained < 6
    run = farm(paths, out, *more)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(lines(out, "done")) == 6
    asked = subprocess.run([sys.executable, "-m", "farm", "drain", str(out)], cwd=PACK, capture_output=True, text=True)
    assert "no driver works on" in asked.stderr


def test_a_cancel_takes_back_what_runs(servers: list[Server], tmp_path: Path) -> None:
    paths, out = written(tmp_path, [graph(11, 256, steps=500)]), tmp_path / "out"
    driver = subprocess.Popen(command(paths, out, "--workers", named(servers)[2]), cwd=PACK)
    client = Client(servers[2].url)
    try:
        until(lambda: client.get("/queue")["queue_running"])
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
    finally:
        driver.kill()
    until(lambda: not client.get("/queue")["queue_running"], 30)
    assert [line["reason"] for line in lines(out, "back")] == ["the run was cancelled"]
    assert journal.states(journal.lines(out))[lines(out, "job")[0]["job"]].status == "waiting"


class Process:
    """In the place of one of Ray's beside a server: its prompt runs until it is taken back."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: asyncio.ensure_future(getattr(self, f"_{name}")(*given)))

    async def _hello(self) -> dict[str, Any]:
        return {"status": "there", "comfyui": "1", "headroom": pack_version()}

    async def _ask(self, *given: Any) -> dict[str, Any]:
        return {"status": "fits", "seconds": 1.0}

    async def _shown(self) -> dict[str, Any]:
        return {}

    async def _run(self, *given: Any) -> dict[str, Any]:
        await self.ended.wait()
        return {"status": "interrupted", "seconds": 1.0, "reason": "somebody interrupted it on the server", "cached": 0}

    async def _cancel(self, prompt_id: str) -> None:
        self.ended.set()
        await asyncio.sleep(0.05)


def test_what_a_cancel_ends_is_no_failure(tmp_path: Path) -> None:
    """Where several servers run something, one of them has ended before the last is asked."""
    paths = [Path(path) for path in written(tmp_path, [graph(seed, 64) for seed in range(3)])]
    found, log = workers([f"http://{name}:1" for name in "abc"]), journal.Journal(tmp_path / "out")

    async def cancelled() -> dict[str, journal.State]:
        driver = Driver(read(paths), found, {one.name: Process() for one in found}, log, Settings(log.folder))
        run = asyncio.ensure_future(driver.run())
        while Counter(state.status for state in driver.states.values())["sent"] < len(paths):
            await asyncio.sleep(0.01)
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run
        return driver.states

    states = asyncio.run(cancelled())
    log.close()
    assert [line["reason"] for line in lines(log.folder, "back")] == ["the run was cancelled"] * 3
    assert not lines(log.folder, "failed")
    assert {state.status for state in states.values()} == {"waiting"}


class Silent(Process):
    """Of a server that does not answer: it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def _hello(self) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(30.0 * (self.asked > 1))
        return {"status": "unreachable", "reason": "it does not answer"}


def test_who_is_silent_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain is seen while a server that is gone is asked whether it is back."""
    monkeypatch.setattr(driver_module, "AGAIN", 0.1)
    jobs, silent = read([Path(path) for path in written(tmp_path, [graph(1, 64)])]), Silent()
    found, log = workers([f"http://{name}:1" for name in "ab"]), journal.Journal(tmp_path / "out")

    async def drained() -> bool:
        driver = Driver(
            jobs, found, dict(zip((one.name for one in found), (Process(), silent))), log, Settings(log.folder)
        )
        run = asyncio.ensure_future(driver.run())
        while silent.asked < 2:
            await asyncio.sleep(0.01)
        journal.drain(log.folder)
        await asyncio.sleep(1.0)
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run
        return driver.draining

    assert asyncio.run(drained())
    log.close()


def test_the_process_beside_a_server_is_killed(servers: list[Server], tmp_path: Path) -> None:
    """Ray starts it again; what the server still does is taken back, and each prompt comes once."""
    paths, out = written(tmp_path, [graph(21, 128, steps=60), graph(22, 64)]), tmp_path / "out"
    driver = subprocess.Popen(command(paths, out, "--workers", named(servers)[2]), cwd=PACK, stdout=subprocess.PIPE)
    client = Client(servers[2].url)
    try:
        until(lambda: client.get("/queue")["queue_running"])
        (first,) = lines(out, "sent")
        beside = [one for one in psutil.Process(driver.pid).children(recursive=True) if "ComfyActor" in one.name()]
        assert len(beside) == 1
        beside[0].kill()
        assert driver.wait(LONGEST) == 0, list(journal.lines(out))
    finally:
        driver.kill()
    assert [line["prompt_id"] for line in lines(out, "sent")].count(first["prompt_id"]) == 1
    assert [line["job"] for line in lines(out, "lost")] == [first["job"]]
    assert Counter(line["job"][:9] for line in lines(out, "done")) == {"prompt-00": 1, "prompt-01": 1}
    status = client.history(first["prompt_id"])["status"]
    assert not status["completed"], "it was taken back"


def test_the_only_one_that_a_prompt_fits_is_gone(servers: list[Server], tmp_path: Path) -> None:
    """The rest is done; then the run ends with a sentence instead of waiting for ever."""
    paths, out = written(tmp_path, [graph(31, 256, steps=200), graph(32, 64)]), tmp_path / "out"
    with Server(ENVIRONMENT, cpu=True, variables=ONE_THREAD) as victim:
        more = ("--workers", named(servers)[0], f"{victim.url}#vram=4", "--wait", "2")
        driver = subprocess.Popen(command(paths, out, *more), cwd=PACK, stdout=subprocess.PIPE, text=True)
        try:
            until(lambda: any(line["job"].startswith("prompt-00") for line in lines(out, "sent")))
            os.killpg(victim.pid, signal.SIGKILL)
            said, _ = driver.communicate(timeout=LONGEST)
        finally:
            driver.kill()
    assert driver.returncode == 2, said
    assert "no worker that they fit has answered for 2 s, prompts that wait: 1; start it and run" in said
    assert [line["job"][:9] for line in lines(out, "done")] == ["prompt-01"]


def of_another_version(folder: Path) -> Path:
    """A copy of what is shipped, of which the metadata say another version."""
    for part in ("__init__.py", *(path.parent.name for path in PACK.glob("*/__init__.py")), "web", "locales"):
        if part not in ("tests", "tools", "benchmarks", "farm"):
            (shutil.copytree if (PACK / part).is_dir() else shutil.copy)(PACK / part, folder / part)
    metadata = (PACK / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(metadata.replace(f'version = "{pack_version()}"', 'version = "0.1.0"'))
    return folder


def moved() -> web.Application:
    """A server that sends whoever asks elsewhere."""

    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/system_stats")

    app = web.Application()
    app.router.add_get("/system_stats", elsewhere)
    return app


def test_workers_that_cannot_be_used(tmp_path: Path) -> None:
    """Of another version, without the pack, moved elsewhere, and nobody."""
    paths, out, port = written(tmp_path, [graph(1, 64)]), tmp_path / "out", free_port()
    (tmp_path / "other").mkdir()
    older = replace(ENVIRONMENT, pack=of_another_version(tmp_path / "other"))

    async def asked(*workers: str) -> subprocess.CompletedProcess[str]:
        runner = web.AppRunner(moved())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            return await asyncio.to_thread(farm, paths, out, "--workers", *workers)
        finally:
            await runner.cleanup()

    with Server(older, cpu=True) as other, Server(ENVIRONMENT, pack=False, cpu=True) as without:
        run = asyncio.run(asked(other.url, without.url, f"http://127.0.0.1:{port}", "http://127.0.0.1:1"))
    assert run.returncode == 2, run.stdout + run.stderr
    said = run.stdout.strip().splitlines()[-1]
    assert f"has Headroom 0.1.0, this farm is of {pack_version()}: bring both to one version" in said
    assert "has no Headroom, or one older than 0.7" in said
    assert "it points elsewhere" in said
    assert "http://127.0.0.1:1 does not answer" in said
    assert "Traceback" not in run.stdout + run.stderr


def asked_of(app: web.Application, question: Callable[[ComfyActor], Awaitable[Any]]) -> Any:
    """What an actor makes of a server that does not do as it should."""

    async def asked() -> Any:
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port := free_port()).start()
        actor = ComfyActor({"url": f"http://127.0.0.1:{port}"})
        try:
            return await asyncio.wait_for(question(actor), 20)
        finally:
            await actor._server().close()
            await runner.cleanup()

    return asyncio.run(asked())


def answering(paths: dict[str, Any], largest: int = 2**20) -> web.Application:
    """A server that answers so, whatever it is asked for there."""
    app = web.Application(client_max_size=largest)
    for path, answer in paths.items():

        async def said(request: web.Request, answer: Any = answer) -> web.Response:
            await request.post()
            return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)

        app.router.add_route("*", path, said)
    return app


def test_a_page_in_the_place_of_answers() -> None:
    """Whoever stands before the server wants a password of a person."""
    answer = asked_of(answering({"/system_stats": "<html>Sign in</html>"}), lambda actor: actor.hello())
    assert answer["status"] == "unreachable"
    assert "answers with what is no JSON: is it a ComfyUI" in answer["reason"]


WHOLE = {"/object_info": {"LoadImage": {"input": {}}}, "/headroom/estimate": {"verdict": "resident", "complete": True}}
LOADS = {"1": {"class_type": "LoadImage", "inputs": {"image": "headroom_farm/1/a.png"}}}


def test_a_process_that_ray_has_started_anew_knows_what_is_there() -> None:
    assert asked_of(answering(WHOLE), lambda actor: actor.ask(LOADS, {}, {}))["status"] == "fits"


def test_a_file_that_is_too_large_for_a_server() -> None:
    app = answering(WHOLE | {"/upload/image": {}}, largest=100)
    answer = asked_of(app, lambda actor: actor.ask(LOADS, {}, {"headroom_farm/1/a.png": b"x" * 1000}))
    assert answer["status"] == "lacks"
    assert "start it with a higher --max-upload-size" in answer["reason"]


@pytest.mark.parametrize("name", ["my photo.png", "für dich.png", "图.png"])
def test_a_file_arrives_under_its_name(name: str) -> None:
    arrived = list[str]()

    async def take(request: web.Request) -> web.Response:
        arrived.append((await request.post())["image"].filename)  # type: ignore[union-attr]
        return web.json_response({})

    app = answering(WHOLE)
    app.router.add_post("/upload/image", take)
    asked_of(app, lambda actor: actor.ask(LOADS, {}, {f"headroom_farm/1/{name}": b"x"}))
    assert arrived == [name]


def test_a_server_that_falls_silent_within_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its machine has lost its power: what came is not taken for the whole, and not waited for for ever."""
    monkeypatch.setattr(comfy, "SILENT", 0.5)

    async def begin(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.content_length = 100
        await answer.prepare(request)
        await answer.write(b"x")
        await asyncio.sleep(15)
        return answer

    async def fetched(actor: ComfyActor) -> list[bytes]:
        return [piece async for piece in actor.fetch({"filename": "a.png"})]

    app = web.Application()
    app.router.add_get("/view", begin)
    assert asked_of(app, fetched) == []


def test_nothing_is_followed_elsewhere() -> None:
    """Nor is a websocket, with the password that the headers may hold."""
    seen = list[str]()

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.path)
        raise web.HTTPFound("/another")

    async def heard(actor: ComfyActor) -> list[Any]:
        return [message async for message in actor._server().listen("me")]

    app = web.Application()
    app.router.add_get("/{any}", elsewhere)
    assert asked_of(app, heard) == []
    assert seen == ["/ws"]


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM])
def test_what_it_has_started_ends_with_it(tmp_path: Path, how: signal.Signals) -> None:
    """Also while that begins; and where --out is relative it is so to the farm's folder."""
    host, mark = tmp_path / "host", tmp_path / "mark"
    (host / "comfy").mkdir(parents=True)
    told = f"import json, os, sys, time; open({str(mark)!r}, 'w').write(json.dumps([os.getpid(), sys.argv]))"
    (host / "main.py").write_text(f"{told}; time.sleep({LONGEST})")
    more = ("--start", "1", "--comfyui", str(host), "--server-args=--cpu")
    out = Path(os.path.relpath(tmp_path / "out", PACK))
    driver = subprocess.Popen(command(written(tmp_path, [graph(1, 64)]), out, *more), cwd=PACK)
    try:
        until(lambda: mark.exists() and mark.read_text())
        process, arguments = json.loads(mark.read_text())
        driver.send_signal(how)
        assert driver.wait(30) == 130
        until(lambda: not psutil.pid_exists(process), 10)
    finally:
        driver.kill()
    assert f"--output-directory={tmp_path / 'out' / 'worker-1' / 'output'}" in arguments


PASSWORD = "Authorization: Bearer open-sesame"


def guarded(port: int) -> Any:
    """A connection to whoever stands before a server: with the password it goes through, whatever is said on it."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(2**16):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            if PASSWORD.encode() not in head:
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                writer.close()
                return
            behind, before = await asyncio.open_connection("127.0.0.1", port)
            before.write(head)
            await asyncio.gather(pass_on(reader, before), pass_on(behind, writer))

    return connected


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_server_behind_tls_and_a_password(servers: list[Server], tmp_path: Path) -> None:
    """With a certificate of one's own; without it, or without the password, a sentence says which is missing."""
    certificate, one = tmp_path / "own.pem", graph(5, SIDES[0])
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", certificate, "-out", tmp_path / "certificate.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    trusted = tmp_path / "certificate.pem"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, certificate)
    paths, port = written(tmp_path, [one]), free_port()

    async def asked() -> list[subprocess.CompletedProcess[str]]:
        inner = int(servers[2].url.rpartition(":")[2])
        async with await asyncio.start_server(guarded(inner), "127.0.0.1", port, ssl=context):
            named = ("--workers", f"https://127.0.0.1:{port}#vram=4")
            runs = (
                ("--ca", str(trusted), "--header", PASSWORD),
                ("--header", PASSWORD),
                ("--ca", str(trusted)),
            )
            return [
                await asyncio.to_thread(farm, paths, tmp_path / f"out-{number}", *named, *more)
                for number, more in enumerate(runs)
            ]

    whole, distrusted, shut_out = asyncio.run(asked())
    assert whole.returncode == 0, whole.stdout + whole.stderr
    (picture,) = (tmp_path / "out-0").glob("prompt-00-*/*.png")
    assert np.array_equal(pixels(picture), made_by(Client(servers[2].url), one))
    assert distrusted.returncode == shut_out.returncode == CANNOT
    assert "certificate" in distrusted.stdout
    assert "401" in shut_out.stdout
    assert "Traceback" not in "".join(run.stdout + run.stderr for run in (whole, distrusted, shut_out))


def test_what_is_missing_is_said_before_anything_runs(tmp_path: Path) -> None:
    """In a Python without Ray; the prompts are read first."""
    paths = written(tmp_path, [graph(1, 64)])
    bare = [sys.executable, "-S", "-m", "farm", "run"]
    without = subprocess.run([*bare, *paths, "--workers", "http://a"], cwd=PACK, capture_output=True, text=True)
    assert without.returncode == 2
    assert f"-m pip install {' '.join(NEEDED)}" in without.stderr
    bad = subprocess.run([*bare, "no.json", "--workers", "http://a"], cwd=PACK, capture_output=True, text=True)
    assert bad.stderr == "no.json cannot be read: No such file or directory\n"


def test_the_version_is_told(client: Client) -> None:
    assert client.get("/headroom/version") == {"version": pack_version(), "schema": 1}


def test_what_takes_no_memory_of_a_card_is_said_to_be_whole(client: Client) -> None:
    """A farm sends it anywhere; what was not followed wholly it does not."""
    picture = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }
    for graph, complete in ((picture, True), (picture | {"3": {"class_type": "Nobodys", "inputs": {}}}, False)):
        request = urllib.request.Request(f"{client.url}/headroom/estimate", json.dumps({"prompt": graph}).encode())
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request)
        answer = json.loads(error.value.read())
        assert answer["complete"] is complete, answer
