"""Low-Memory VAE over several workers: processes of a Ray cluster, and this machine's devices."""

from __future__ import annotations

import copy
import io
import json
import operator
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import comfy.model_management as model_management
import folder_paths
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load
from torch import Tensor

from headroom.host.bands import cluster as cluster_module
from headroom.host.bands import devices, gathered, joining, remote
from headroom.host.bands.cluster import RayCrew, crew_of
from headroom.host.bands.devices import DeviceCrew
from headroom.host.bands.named import DEVICES, NamedCluster, cluster_named, workers_path
from headroom.host.bands.sent import SentModule, packed, put_together, taken_apart, unpacked
from headroom.host.bands.work import computed
from headroom.host.offload.own_weights import copied, is_kept_by_host
from headroom.host.streaming import choice
from headroom.host.streaming.bands import InBands
from headroom.host.vae import coding
from headroom.host.vae.fallback import BudgetTooSmall, CannotBeExact
from headroom.host.video.resizing import Resizing
from headroom.host.video_files import to_file
from headroom.host.video_files.from_file import encode_from_file
from headroom.host.video_files.host_video import Frames
from headroom.tools.server.client import Client, PromptFailed, Result, Workflow
from headroom.tools.server.server import Server
from headroom.vae.exact import CannotRecord, StoreOverflow

from ..nightly import NIGHTLY, some_of
from .autoencoders import AUTOENCODERS
from .conftest import ENVIRONMENT
from .families import psnr
from .ray_cluster import end, processes_of, ray_cluster
from .test_exact_vae import decoded, exact, goes_its_own_way, input_of, last_lines, last_row, run, stock
from .test_streaming import stock as stock_frames
from .test_video_files import eight_bits, read, request, video_of
from .test_video_files import write as write_video
from .test_video_over_http import file_of as video_file
from .test_video_over_http import noise as video_noise
from .test_video_over_http import to_file as video_to_file
from .workflows import ATTENTION, node, text_to_image

ROOT = Path(__file__).parents[2]
NAME, WORKERS = "desk", 3
LONGEST = 600.0  # seconds: the workers begin beside other tests
NEAR_ENOUGH = 120.0  # dB; how near bands are, kind by kind, is what test_bands.py looks at
ON_MODEL: dict[str, dict[str, Any]] = {
    "HeadroomCast": {"storage": "float8_e4m3fn_scaled", "compute": "auto", "skip": "auto"},
    "HeadroomOffload": {"vram_budget_gb": 0.01, "granularity": "auto"},
    "HeadroomAttention": ATTENTION | {"backend": "sliced"},
}
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def write(**named: Any) -> None:
    workers_path().parent.mkdir(parents=True, exist_ok=True)
    workers_path().write_text(json.dumps(named), encoding="utf-8")


@pytest.fixture(scope="module")
def desk() -> Iterator[dict[str, Any]]:
    """What the owner writes of a cluster that is there."""
    with ray_cluster(WORKERS + 1, ENVIRONMENT.comfyui, ROOT) as (address, token):
        yield {"address": address, "token_file": str(token), "workers": WORKERS, "budget_gb": 1}
        for crew in list(cluster_module._joined.values()):
            crew.leave()
        cluster_module._joined.clear()


@pytest.fixture
def crew(desk: dict[str, Any]) -> RayCrew:
    """All workers, those that were lost begun again."""
    write(**{NAME: desk})
    named = cluster_named(NAME)
    if named in cluster_module._joined and len(cluster_module._joined[named].workers) < WORKERS:
        cluster_module._joined.pop(named).leave()
    return crew_of(named)


@cache
def large() -> tuple[Tensor, Tensor]:
    """A latent whose decode takes seconds, and the host's own decode."""
    x = AUTOENCODERS["sd"].latent(48, 40)
    return x, decoded(AUTOENCODERS["sd"].load(), x)


@pytest.mark.parametrize(
    ("name", "way"),
    [("sd", "decode"), ("sd", "encode"), ("wan21", "decode"), ("ltx", "encode"), ("ltx_noise", "decode")],
)
def test_over_a_cluster(crew: RayCrew, name: str, way: str) -> None:
    result = run(exact(name, workers=NAME, tile_size=16), way, input_of(name, way))
    assert f"bands of {WORKERS} workers" in last_lines()
    assert last_row().notices == []
    drawn_after = torch.rand(1)
    alone = run(exact(name, tile_size=16), way, input_of(name, way))
    assert torch.equal(torch.rand(1), drawn_after), "random numbers go on as if all had been drawn here"
    assert psnr(result, alone) >= NEAR_ENOUGH
    assert psnr(result, stock(name, way)) >= min(NEAR_ENOUGH, psnr(alone, stock(name, way)) - 3)


def decode_watched(x: Tensor, on_strip: Any) -> Tensor:
    """A decode over the cluster, whose progress is watched."""
    with pytest.MonkeyPatch.context() as patch:
        original = gathered.GatheredRun._tell

        def tell(self: Any, share: float) -> None:
            original(self, share)
            on_strip(share, None)

        patch.setattr(gathered.GatheredRun, "_tell", tell)
        return decoded(exact("sd", workers=NAME, tile_size=16), x)


def test_cancel_ends_all_of_them(crew: RayCrew) -> None:
    x, expected = large()
    begun = 0.0

    def cancel(share: float, out: Any) -> None:
        nonlocal begun
        if share > 0.1 and not begun:
            begun = time.monotonic()
            model_management.interrupt_current_processing(True)
        model_management.throw_exception_if_processing_interrupted()

    with pytest.raises(model_management.InterruptProcessingException):
        decode_watched(x, cancel)
    assert begun
    assert len(crew.workers) == WORKERS
    assert psnr(decoded(exact("sd", workers=NAME, tile_size=16), x), expected) >= NEAR_ENOUGH


def test_a_cancel_while_another_vae_is_sent(crew: RayCrew, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have let go of the first by then."""
    x, expected = large()
    first = exact("sd", workers=NAME, tile_size=16)
    decoded(first, x)
    watched = crew._watched

    def cancel(asked: Any, task: Any, board: Any) -> None:
        watched(asked, task, board)
        if board is None:
            raise model_management.InterruptProcessingException

    with monkeypatch.context() as patch:
        patch.setattr(crew, "_watched", cancel)
        with pytest.raises(model_management.InterruptProcessingException):
            run(exact("wan21", workers=NAME, tile_size=16), "decode", input_of("wan21", "decode"))
    assert psnr(decoded(first, x), expected) >= NEAR_ENOUGH


def test_a_vae_that_a_worker_cannot_take(crew: RayCrew, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its card is full: a sentence, and the next one goes on."""
    x, expected = large()
    with monkeypatch.context() as patch:
        patch.setattr(cluster_module, "packed", lambda tensors: ["what nobody can unpack"])
        with pytest.raises(RuntimeError, match=rf"^workers: worker 1 .* of {NAME} cannot take the VAE: "):
            run(exact("ltx", workers=NAME, tile_size=16), "decode", input_of("ltx", "decode"))
    assert psnr(decoded(exact("sd", workers=NAME, tile_size=16), x), expected) >= NEAR_ENOUGH


def test_one_that_runs_out_of_memory_gets_a_lower_band(crew: RayCrew, monkeypatch: pytest.MonkeyPatch) -> None:
    x, expected = large()
    answers, asked = crew._answers, list[list[float]]()

    def short_at_first(one: Any, key: str, task: Any, budgets: list[float]) -> list[dict[str, Any]]:
        asked.append(budgets)
        found = answers(one, key, task, budgets)
        return found if len(asked) > 2 else [*found[:-1], {"status": "out_of_memory", "why": "16 GiB"}]

    monkeypatch.setattr(crew, "_answers", short_at_first)
    result = decoded(exact("sd", workers=NAME, tile_size=16), x)
    assert psnr(result, expected) >= NEAR_ENOUGH
    assert [round(budgets[-1] / budgets[0], 3) for budgets in asked] == [1.0, 0.7, 0.49]
    assert len(last_row().notices) == 2
    assert "ran out of memory: tried again with a lower band" in last_row().notices[0]


@pytest.mark.parametrize("called", ["ActorDiedError", "OutOfMemoryError"])
def test_a_killed_worker_s_band_is_computed_by_the_others(
    crew: RayCrew, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Ray calls it: it ends one of its own where its machine is short of memory."""
    if called == "OutOfMemoryError":
        monkeypatch.setattr(crew.ray, "get", calling_it_out_of_memory(crew.ray))
    x, expected = large()
    one = crew.workers[1]
    process = crew.ray.get(one.actor.process.remote())
    killed = threading.Event()

    def kill(share: float, out: Any) -> None:
        if share > 0.2 and not killed.is_set():
            killed.set()
            os.kill(process, signal.SIGKILL)

    result = decode_watched(x, kill)
    assert killed.is_set()
    assert psnr(result, expected) >= NEAR_ENOUGH
    assert last_row().notices == [f"{one.name} is gone: computed again by the other {WORKERS - 1}"]
    assert f"bands of {WORKERS - 1} workers" in last_lines()
    assert torch.equal(result, decoded(exact("sd", workers=NAME, tile_size=16), x)), "as if there had been two"


def calling_it_out_of_memory(ray: Any) -> Callable[..., Any]:
    original = ray.get

    def get(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except ray.exceptions.RayActorError as error:
            raise ray.exceptions.OutOfMemoryError(str(error)) from error

    return get


def test_what_they_leave_for_each_other_is_killed(crew: RayCrew) -> None:
    """All compute again, once."""
    x, expected = large()
    killed = threading.Event()

    def kill(share: float, out: Any) -> None:
        if share > 0.2 and not killed.is_set():
            killed.set()
            theirs = processes_of(Path(crew.named.token_file).parent)
            (board,) = (one for one in theirs if one.name().startswith("ray::Board"))
            board.kill()

    result = decode_watched(x, kill)
    assert killed.is_set()
    assert psnr(result, expected) >= NEAR_ENOUGH
    assert last_row().notices == ["what the workers had left for each other is gone: computed again"]
    assert f"bands of {WORKERS} workers" in last_lines()


def test_a_video_to_a_file(crew: RayCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk by chunk, also where one of them is killed: from the last segment on the others do it."""
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    monkeypatch.setattr(to_file, "SEGMENT", 12)
    x = AUTOENCODERS["wan21"].latent(16, 12, cells_in_time=9)
    one = crew.workers[1]
    process, killed, begun_at = crew.ray.get(one.actor.process.remote()), threading.Event(), list[int]()

    class Watched(InBands):
        def _hand_on(self, onward: Any, at: int, *others: Any) -> None:
            begun_at.append(at)
            super()._hand_on(onward, at, *others)
            if at >= 17 and not killed.is_set():
                killed.set()
                os.kill(process, signal.SIGKILL)

    monkeypatch.setattr(choice, "InBands", Watched)
    vae = exact("wan21", workers=NAME)
    written = to_file.decode_to_file(vae, {"samples": x}, request(), 0.0)
    expected = eight_bits(stock_frames("wan21", x))
    assert float((read(written.path) - expected).abs().max()) <= 1.01 / 255, "a grey level, where one is rounded"
    assert killed.is_set()
    assert f"{one.name} is gone: computed again by the other {WORKERS - 1}" in written.report
    assert f"bands of {WORKERS - 1} workers" in written.report
    assert begun_at == [0, 1, 9, 17, 17, 25], "one chunk again: not from the beginning"


def test_a_file_to_a_latent(crew: RayCrew, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker is given its band of a chunk when it wants it."""
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    kind = AUTOENCODERS["wan21"]
    pixels = eight_bits(kind.pixels(59, 40, 13))
    found, report = encode_from_file(
        exact("wan21", workers=NAME), Frames(video_of(write_video(pixels))), Resizing(), 0.0
    )
    assert psnr(found, kind.load().encode(pixels)) >= NEAR_ENOUGH
    assert f"bands of {WORKERS} workers" in report


def test_a_budget_that_is_too_small_is_said_before_any_work(desk: dict[str, Any]) -> None:
    weights = sum(one.nbytes for one in AUTOENCODERS["sd"].load().first_stage_model.parameters())
    write(**{NAME: {**desk, "workers": 1, "budget_gb": (weights + 1e5) / 2**30}})
    with pytest.raises(BudgetTooSmall, match=r"workers: 40 x 48 needs 0\.\d+ GB of each of desk at least"):
        decoded(exact("sd", workers=NAME), input_of("sd", "decode"))


def test_another_version_is_refused_with_both(desk: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    write(**{NAME: {**desk, "workers": 1}})
    monkeypatch.setattr(cluster_module, "pack_version", lambda: "0.0.1")
    with pytest.raises(ValueError, match=r"has Headroom \d+\.\d+\.\d+, this server 0\.0\.1; install the same"):
        decoded(exact("sd", workers=NAME), input_of("sd", "decode"))


def test_nobody_there(desk: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "TO_ANSWER", 1.0)
    write(**{NAME: {**desk, "address": "127.0.0.1:9"}})
    with pytest.raises(ValueError, match=r"no Ray cluster at 127\.0\.0\.1:9 lets this server in.*ray start --head"):
        decoded(exact("sd", workers=NAME), input_of("sd", "decode"))


def test_another_pack_has_loaded_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray shows no token then, and its client would not say why it is not let in."""
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(ValueError, match=r"another node pack has loaded Ray .* start ComfyUI with RAY_AUTH_MODE=token"):
        joining.join(NamedCluster(NAME, "127.0.0.1:1"))


def test_a_cluster_that_encrypts_is_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said in plain text to see whether it is there."""
    let_in = list[NamedCluster]()
    monkeypatch.setattr(joining, "_let_in", lambda ray, named: let_in.append(named))
    monkeypatch.setattr(joining, "TO_ANSWER", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        named = NamedCluster(NAME, f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ValueError, match="no Ray cluster at"):
            joining.join(named)
        monkeypatch.setenv("RAY_USE_TLS", "1")
        joining.join(named)
    assert let_in == [named]


def test_the_cluster_is_gone() -> None:
    """The decode fails with a sentence, and the process that asked goes on, also with another cluster."""
    x = input_of("sd", "decode")
    for _ in range(2 if NIGHTLY else 1):
        with ray_cluster(2, ENVIRONMENT.comfyui, ROOT) as (address, token):
            write(**{NAME: {"address": address, "token_file": str(token), "workers": 1, "budget_gb": 1}})
            assert psnr(decoded(exact("sd", workers=NAME), x), stock("sd", "decode")) >= NEAR_ENOUGH
            end(token)
            with pytest.raises((RuntimeError, ValueError), match=r"does not answer any more|lets this server in"):
                decoded(exact("sd", workers=NAME), x)


def test_ray_is_missing(desk: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    write(**{NAME: {**desk, "budget_gb": 3}})
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(cluster_module, "_joined", {})
    with pytest.raises(ValueError, match=r"Ray is not installed: .*-m pip install 'ray\[client\]'"):
        decoded(exact("sd", workers=NAME), input_of("sd", "decode"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"desk": {"address": "127.0.0.1:1"}}', "has desk"),
        ("{}", "has none"),
        ("[]", "is to hold an object"),
        ("{", "cannot be read as JSON"),
        ('{"rack": {}}', "address cannot be used"),
        ('{"rack": {"address": "http://a"}}', "address cannot be used"),
        ('{"rack": {"address": "a:1", "workers": -1}}', "workers cannot be used"),
        ('{"rack": {"address": "a:1", "workers": true}}', "workers cannot be used"),
        ('{"rack": {"address": "a:1", "budget_gb": "4"}}', "budget_gb cannot be used"),
        ('{"rack": {"address": "a:1", "pasword": "4"}}', "pasword cannot be used"),
        ('{"rack": 4}', "address cannot be used"),
    ],
)
def test_what_the_owner_wrote(text: str, said: str) -> None:
    write()
    workers_path().write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        cluster_named("rack")


def test_an_address_is_no_name() -> None:
    """A workflow of a stranger's must not lead a server anywhere."""
    write(**{NAME: {"address": "127.0.0.1:9"}})
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9", "../desk"):
        with pytest.raises(ValueError, match="this server has no workers of the name"):
            decoded(exact("sd", workers=address), input_of("sd", "decode"))


def test_feathered_tiles_stay_on_one_device() -> None:
    with pytest.raises(ValueError, match="workers: feathered tiles stay on one device"):
        exact("sd", workers=DEVICES, method="feathered", tile_size=64)


@pytest.mark.parametrize("name", some_of([name for name in AUTOENCODERS], 3))
def test_every_kind_arrives_whole(name: str) -> None:
    """Pickled, packed and put together again, a module computes the same bits."""
    vae = AUTOENCODERS[name].load()
    if goes_its_own_way(vae):
        return
    sent = taken_apart(vae.first_stage_model)
    arrived = put_together(SentModule(sent.structure, unpacked(packed(sent.tensors), CPU)), CPU)
    x = input_of(name, "decode").to(vae.vae_dtype)
    torch.manual_seed(5)
    expected = vae.first_stage_model.decode(x)
    torch.manual_seed(5)
    assert torch.equal(arrived.decode(x), expected)


class Owner:
    """Of memory that goes with it, as a page of the host's: a second one would give it back a second time."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("copied")


def test_what_the_host_keeps_is_in_no_copy() -> None:
    """Of dynamic VRAM; the patches that it puts onto what it reads from a page go along."""
    layer, owner = torch.nn.Conv2d(2, 2, 1, bias=False), Owner()
    layer._v, layer._v_weight, layer._pin_state = (owner, 0, 4), torch.zeros(1), {"weights": owner}
    layer.weight_function, layer.weight_lowvram_function = [operator.neg], operator.abs
    model = torch.nn.Sequential(layer)
    model.dynamic_vbars = {0: owner}
    sent = taken_apart(model)
    arrived = put_together(SentModule(sent.structure, unpacked(packed(sent.tensors), CPU)), CPU)
    for made in (copied(model, CPU), arrived):
        assert torch.equal(made[0].weight, layer.weight)
        assert made[0].weight_function == [operator.abs, operator.neg]
        assert not [name for one in made.modules() for name in vars(one) if is_kept_by_host(name)]
    assert layer._v[0] is owner
    assert layer.weight_function == [operator.neg]


def test_random_numbers_of_another_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server on Metal asks cards of NVIDIA's: what the CPU draws is the same, and no other state fits."""
    given = list[int]()
    monkeypatch.setattr(remote, "set_random_state", lambda device, states: given.append(len(states)))
    monkeypatch.setattr(remote, "computed", lambda *asked: {"status": "lost"})
    monkeypatch.setattr(remote, "work_of", lambda fields: None)
    monkeypatch.setattr(remote.RayPeers, "__init__", lambda *asked: None)
    for kind in (CPU.type, "mps"):
        states = packed([torch.get_rng_state()] * 2)
        remote.band(None, None, 0, [0, 1], 1, {"random": states, "random_of": kind})
    assert given == [2, 1]


def picture_of(client: Client, result: Result) -> Image.Image:
    return Image.open(io.BytesIO(client.image(result.outputs["7"]["images"][0])))


class TestOverHttp:
    """In a running ComfyUI, whose owner has named the cluster."""

    @pytest.fixture(autouse=True)
    def _named(self, server: Server, desk: dict[str, Any]) -> None:
        for crew in list(cluster_module._joined.values()):  # its processes would leave none to the server
            crew.leave()
        cluster_module._joined.clear()
        path = server.base / "user" / "headroom" / "workers.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({NAME: {**desk, "workers": 2}}), encoding="utf-8")

    @staticmethod
    def graph(**on_model: bool) -> Workflow:
        """Low-Memory VAE before the stock decode and an encode of what it gives; nodes of ours on the MODEL."""
        graph = text_to_image(side=192)
        graph["20"] = node("HeadroomVAE", vae=["1", 2], method="exact", workers=NAME)
        model: list[Any] = ["1", 0]
        for number, (kind, inputs) in enumerate(ON_MODEL.items(), 30):
            if on_model.get(kind):
                graph[str(number)] = node(kind, model=model, **inputs)
                model = [str(number), 0]
        graph["5"]["inputs"]["model"] = model
        graph["6"] = node("VAEDecode", samples=["5", 0], vae=["20", 0])
        graph["12"] = node("VAEEncode", pixels=["6", 0], vae=["20", 0])
        graph["13"] = node("SaveLatent", samples=["12", 0], filename_prefix="latents/encoded")
        graph["11"] = node("HeadroomReport", anything=["6", 0])
        return graph

    @pytest.mark.parametrize("kind", some_of(["all", "", "HeadroomAttention", "HeadroomCast", "HeadroomOffload"], 5))
    def test_behind_our_other_nodes(self, client: Client, kind: str) -> None:
        """Attention slicing, casting and offload work on the MODEL: the same picture as with one device's strips."""
        kinds = dict.fromkeys(ON_MODEL, True) if kind == "all" else {kind: True}
        over, alone = self.graph(**kinds), self.graph(**kinds)
        alone["20"]["inputs"].pop("workers")
        over["11"]["inputs"]["anything"] = ["12", 0]
        result, expected = (client.run(one, timeout=LONGEST) for one in (over, alone))
        pictures = [np.asarray(picture_of(client, one)).astype(int) for one in (result, expected)]
        assert np.abs(pictures[0] - pictures[1]).max() <= 1
        latents = [load(client.latent(one.outputs["13"]["latents"][0]))["latent_tensor"] for one in (result, expected)]
        assert psnr(*latents) >= 100, "of pixels that were rounded alike"
        assert "bands of 2 workers" in result.outputs["11"]["text"][0]

    def test_a_video_to_a_file(self, server: Server, client: Client) -> None:
        """Low-Memory VAE gives its workers to the decode to a file behind it, and to the encode of that file."""
        over = video_to_file(video_noise(server, 5, name="workers"))
        over["20"] = node("HeadroomVAE", vae=["1", 0], method="exact", workers=NAME)
        over["4"] = node(
            "HeadroomVAEEncodeVideo", video=["3", 0], vae=["1", 0], width=0, height=0, upscale_method="lanczos",
            crop="center",
        )  # fmt: skip
        over["5"] = node("SaveLatent", samples=["4", 0], filename_prefix="latents/video")
        alone = copy.deepcopy(over)
        for number in ("3", "4"):
            over[number]["inputs"]["vae"] = ["20", 0]
        over["11"], over["12"] = (node("HeadroomReport", anything=[number, 0]) for number in ("3", "4"))
        alone["3"]["inputs"]["filename_prefix"] = "video/alone"
        result, expected = (client.run(one, timeout=LONGEST) for one in (over, alone))
        frames = [read(video_file(server, one.outputs["3"])) for one in (result, expected)]
        assert frames[0].shape == frames[1].shape
        assert float((frames[0] - frames[1]).abs().max()) <= 1.01 / 255
        latents = [load(client.latent(one.outputs["5"]["latents"][0]))["latent_tensor"] for one in (result, expected)]
        assert psnr(*latents) >= 40, "of frames that were rounded, a few to another grey level"
        for report in ("11", "12"):
            assert "bands of 2 workers" in result.outputs[report]["text"][0]

    def test_a_name_that_the_owner_did_not_write(self, client: Client) -> None:
        graph = self.graph()
        graph["20"]["inputs"]["workers"] = "10.0.0.7:10001"
        with pytest.raises(PromptFailed, match="this server has no workers of the name"):
            client.run(graph)

    def test_an_estimate_says_that_it_is_not_predicted(self, client: Client) -> None:
        found = client.post("/headroom/estimate", {"prompt": self.graph()})
        predicted = {stage["work"]: stage["predicted"] for stage in found["stages"]}
        assert predicted == {"text": True, "sampling": True, "decode": False, "encode": False}
        assert "not a prediction: the bands of several workers are planned by them, when they begin" in found["text"]


class TestDevices:
    """This machine's own: threads, here with a CPU for each."""

    @pytest.mark.parametrize("budgets", [(1e9,), (1e9, 1e9), (1e9, 3e9, 2e9)])
    @pytest.mark.parametrize("way", ["decode", "encode"])
    def test_bands_by_their_bytes(self, way: str, budgets: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * len(budgets), budgets))
        alone = run(exact("sd", tile_size=16), way, input_of("sd", way))
        result = run(exact("sd", workers=DEVICES, tile_size=16), way, input_of("sd", way))
        assert psnr(result, alone) >= NEAR_ENOUGH
        rows = [int(line.split(": ")[1].split(" ")[0]) for line in last_row().lines if " rows in " in line]
        assert len(rows) == len(budgets)
        assert sum(rows) == result.shape[1 if way == "decode" else -2]

    def test_a_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Picture after picture, or several at a time."""
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * 2, [1e9] * 2))
        x = AUTOENCODERS["sd"].latent(6, 5, batch=3)
        expected = decoded(AUTOENCODERS["sd"].load(), x)
        for batch_slice in (0, 2):
            result = decoded(exact("sd", workers=DEVICES, tile_size=16, batch_slice=batch_slice), x)
            assert psnr(result, expected) >= NEAR_ENOUGH

    def test_one_device_is_a_crew_too(self) -> None:
        result = decoded(exact("sd", workers=DEVICES, tile_size=16), input_of("sd", "decode"))
        assert psnr(result, decoded(exact("sd", tile_size=16), input_of("sd", "decode"))) >= NEAR_ENOUGH

    def test_cancel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * 3, [1e9] * 3))
        model_management.interrupt_current_processing(True)
        with pytest.raises(model_management.InterruptProcessingException):
            decoded(exact("sd", workers=DEVICES, tile_size=16), input_of("sd", "decode"))

    def test_one_that_runs_out_of_memory_gets_a_lower_band(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And draws the same random numbers again; the report has the bytes that it was left with."""
        asked, made = list[tuple[int, float]](), list[float]()

        def short_at_first(model: Any, work: Any, share: Any, peers: Any, *others: Any) -> dict[str, Any]:
            asked.append((share.rank, work.budget))
            if share.rank and work.budget > 0.6e9:
                peers.table.fail(share.rank)
                return {"status": "out_of_memory", "why": "16 GiB"}
            return computed(model, work, share, peers, *others)

        monkeypatch.setattr(devices, "computed", short_at_first)
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * 2, [1e9] * 2, made.append))
        torch.manual_seed(5)
        result = decoded(exact("ltx_noise", workers=DEVICES), input_of("ltx_noise", "decode"))
        assert sorted(asked) == [(0, 1e9)] * 3 + [(1, 0.7 * 0.7 * 1e9), (1, 0.7 * 1e9), (1, 1e9)]
        assert [text.split(" (")[0] for text in last_row().notices] == ["cpu"] * 2
        assert "ran out of memory: tried again with a lower band" in last_row().notices[0]
        assert made
        assert max(made) <= 1e9, "what is asked of the host is what is planned"
        torch.manual_seed(5)
        alone = decoded(exact("ltx_noise"), input_of("ltx_noise", "decode"))
        assert psnr(result, alone) >= NEAR_ENOUGH

    def test_one_that_never_has_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * 2, [1e9] * 2))
        monkeypatch.setattr(devices, "computed", lambda *given: {"status": "out_of_memory", "why": "16 GiB"})
        with pytest.raises(model_management.OOM_EXCEPTION, match=r"cpu .* ran out of memory \(16 GiB\)"):
            decoded(exact("sd", workers=DEVICES), input_of("sd", "decode"))

    def test_a_device_without_a_number_is_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Metal's has none: it is not to share its memory with itself."""
        monkeypatch.setattr(devices, "_alike", lambda device: [torch.device("mps", 0)])
        monkeypatch.setattr(devices, "memory_budget", lambda device, limit: 1e9)
        assert DeviceCrew.of(torch.device("mps"), 0, 0).devices == [torch.device("mps")]

    def test_what_does_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * 2, [1e5, 1e5]))
        for method in ("exact", "auto"):
            with pytest.raises(BudgetTooSmall, match="of each of devices at least"):
                decoded(exact("sd", workers=DEVICES, method=method), input_of("sd", "decode"))

    def test_without_any_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Weights that are larger than a worker's bytes."""
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * 2, [-1e6, 1e9]))
        with pytest.raises(BudgetTooSmall):
            decoded(exact("sd", workers=DEVICES), input_of("sd", "decode"))

    def test_a_store_that_overflows_is_full_instead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Overflowing(DeviceCrew):
            def compute(self, task: Any) -> Any:
                if task.half_store:
                    raise StoreOverflow("a value of 1e+06 does not fit the float16 store")
                return super().compute(task)

        monkeypatch.setattr(coding, "crew_for", lambda *given: Overflowing([CPU] * 2, [1e9] * 2))
        result = decoded(exact("sd", workers=DEVICES, store="float16"), input_of("sd", "decode"))
        assert psnr(result, stock("sd", "decode")) >= NEAR_ENOUGH
        assert last_row().notices == [
            "a value of 1e+06 does not fit the float16 store: stored in full precision instead"
        ]

    def test_what_strips_cannot_follow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Lost(DeviceCrew):
            def compute(self, task: Any) -> Any:
                raise CannotRecord("a loop over its data")

        monkeypatch.setattr(coding, "crew_for", lambda *given: Lost([CPU], [1e9]))
        with pytest.raises(CannotBeExact, match=r"cannot follow this VAE \(a loop over its data\)"):
            decoded(exact("sd", workers=DEVICES), input_of("sd", "decode"))

    def test_a_failure_is_told_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(coding, "crew_for", lambda *given: DeviceCrew([CPU] * 2, [1e9, 1e9]))

        def fail(*given: Any, **named: Any) -> None:
            raise OSError("no such thing")

        monkeypatch.setattr("headroom.vae.exact.bands.passes.BandPasses.prepare", fail)
        with pytest.raises(RuntimeError, match=r"workers: cpu .* failed: OSError: no such thing"):
            decoded(exact("sd", workers=DEVICES), input_of("sd", "decode"))
