"""The farm's files: prompts and how they are divided, workers as they are named, the journal, the folder of results."""

import asyncio
import json
import multiprocessing
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from headroom.farm import journal, prompts, results
from headroom.farm.journal import Journal, TwoDrivers
from headroom.farm.offers import Offers
from headroom.farm.plain import Address
from headroom.farm.prompts import Job
from headroom.farm.workers import HEADERS, workers
from headroom.graph.formats import BadWorkflow

ROOT = Path(__file__).parents[2]


def prompt(seed: int = 1, batch: int = 1, sampler: str = "euler", **latent: Any) -> dict[str, Any]:
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
        "4": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": batch} | latent},
        "5": {
            "class_type": "KSampler",
            "inputs": {"latent_image": ["4", 0], "model": ["1", 0], "seed": seed, "sampler_name": sampler},
        },
        "7": {"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": f"p{seed}"}},
    }


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


# ------------------------------------------------------------------------------------------------- prompts


def test_files_in_both_forms_that_a_server_takes(tmp_path: Path) -> None:
    plain, request = written(tmp_path, "a b.json", prompt()), written(tmp_path, "r.json", {"prompt": prompt(2)})
    first, second = prompts.read([plain, request])
    assert first.prompt == prompt()
    assert second.prompt == prompt(2)
    assert first.name.startswith("a-b-")
    assert first.models == {"a.safetensors"}


def test_a_kind_is_all_but_seeds_and_names(tmp_path: Path) -> None:
    one, other, larger = prompts.read(
        [
            written(tmp_path, "1.json", prompt(1)),
            written(tmp_path, "2.json", prompt(2)),
            written(tmp_path, "3.json", prompt(1, width=128)),
        ]
    )
    assert one.kind == other.kind
    assert one.kind != larger.kind
    assert one.name != other.name


def test_the_same_prompt_twice_is_two_jobs(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", prompt())
    first, second = prompts.read([path, path])
    assert second.name == f"{first.name}-2"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"nodes": [], "links": []}', "Workflow > Export (API)"),
        ('{"prompt": {"nodes": []}}', "Workflow > Export (API)"),
        ("{}", "is no ComfyUI workflow"),
        ("[1]", "is no ComfyUI workflow"),
        ('{"1": {"class_type": "A"}}', "node 1 needs class_type and inputs"),
    ],
)
def test_what_is_no_prompt(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(BadWorkflow) as error:
        prompts.read([path])
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadWorkflow, match="cannot be read"):
        prompts.read([tmp_path / "nothing.json"])


def test_seeds_are_counted_up(tmp_path: Path) -> None:
    made = prompts.with_seeds(prompts.read([written(tmp_path, "a.json", prompt(2**64 - 1))]), 3)
    assert [job.prompt["5"]["inputs"]["seed"] for job in made] == [2**64 - 1, 0, 1]
    assert len({job.name for job in made}) == 3
    with pytest.raises(BadWorkflow, match="no seed in it"):
        prompts.with_seeds([Job("a", {"1": {"class_type": "LoadImage", "inputs": {}}}, "a.json")], 2)


def test_the_largest_and_the_smallest_come_first() -> None:
    jobs = [Job(str(side), prompt(width=side), "a.json") for side in (256, 64, 512, 128)]
    assert [job.name for job in prompts.ends_first(jobs)] == ["512", "64", "256", "128"]
    assert Job("a", prompt(width=128, batch=3), "a.json").size == 128 * 64 * 3


def test_a_batch_becomes_its_pictures(tmp_path: Path) -> None:
    (job,) = prompts.read([written(tmp_path, "a.json", prompt(batch=3))])
    parts = prompts.split([job])
    assert len(parts) == 3
    for index, part in enumerate(parts):
        cut = part.prompt["5"]["inputs"]["latent_image"][0]
        assert part.prompt[cut]["class_type"] == "LatentFromBatch"
        assert part.prompt[cut]["inputs"] == {"samples": ["4", 0], "batch_index": index, "length": 1}
        assert part.prompt["4"]["inputs"]["batch_size"] == 3
        assert "the same first noise" in part.notes[0]
    assert job.prompt == prompt(batch=3)
    assert len({part.name for part in parts}) == 3


def test_a_sampler_that_draws_noise_is_named(tmp_path: Path) -> None:
    (job,) = prompts.read([written(tmp_path, "a.json", prompt(batch=2, sampler="euler_ancestral"))])
    assert all("euler_ancestral may draw noise" in part.notes[0] for part in prompts.split([job]))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sampler": "dpm_adaptive"}, "dpm_adaptive may draw noise"),  # its steps are chosen by all of the batch
        ({"width": 1000, "height": 1000}, "at 1000 x 1000 PyTorch draws other numbers"),
        ({"width": 1000, "height": 1024}, "the same first noise"),
    ],
)
def test_what_splitting_does_is_told(changed: dict[str, Any], said: str) -> None:
    (part, _) = prompts.split([Job("a", prompt(batch=2, **changed), "a.json")])
    assert said in part.notes[0]


@pytest.mark.parametrize("sides", [(104, 104), (125, 125), (125, 128), (90, 65)])
def test_what_is_told_of_noise_is_so(sides: tuple[int, int]) -> None:
    """As ComfyUI draws it: of a batch at once, of a part picture by picture."""
    whole = torch.randn(2, 4, *sides, generator=torch.manual_seed(3))
    drawn = torch.manual_seed(3)
    same = torch.equal(whole, torch.cat([torch.randn(1, 4, *sides, generator=drawn) for _ in range(2)]))
    (part, _) = prompts.split([Job("a", prompt(batch=2, width=8 * sides[1], height=8 * sides[0]), "a.json")])
    assert ("the same first noise" in part.notes[0]) == same


def test_a_sampler_that_is_a_node_is_named() -> None:
    one = prompt(batch=2) | {"8": {"class_type": "SamplerCustom", "inputs": {}}}
    assert "the same first noise" in prompts.split([Job("a", one, "a.json")])[0].notes[0]
    one["9"] = {"class_type": "SamplerEulerAncestral", "inputs": {}}
    assert "SamplerEulerAncestral may draw noise" in prompts.split([Job("a", one, "a.json")])[0].notes[0]


def test_both_latents_of_a_cascade_are_cut() -> None:
    one = prompt(batch=2)
    one["4"]["class_type"] = "StableCascade_EmptyLatentImage"
    one["9"] = {"class_type": "KSampler", "inputs": {"latent_image": ["4", 1]}}
    _, second = prompts.split([Job("a", one, "a.json")])
    for number, output in (("5", 0), ("9", 1)):
        cut = second.prompt[second.prompt[number]["inputs"]["latent_image"][0]]
        assert cut["inputs"] == {"samples": ["4", output], "batch_index": 1, "length": 1}


def test_batches_that_cannot_be_split() -> None:
    whole = Job("a", prompt(), "a.json")
    assert [part.prompt for part in prompts.split([whole])] == [whole.prompt]
    two = prompt(batch=2) | {"9": {"class_type": "EmptyLatentImage", "inputs": {"batch_size": 2}}}
    with pytest.raises(BadWorkflow, match=r"nodes 4, 9 each have a batch"):
        prompts.split([Job("a", two, "a.json")])
    picture = {"1": {"class_type": "EmptyImage", "inputs": {"batch_size": 4}}}
    with pytest.raises(BadWorkflow, match="no empty latent"):
        prompts.split([Job("a", picture, "a.json")])


def test_inputs_are_sent_by_their_content(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.png").write_bytes(b"one")
    (tmp_path / "secret.png").write_bytes(b"two")
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "sub/a.png"}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "../secret.png"}},
        "3": {"class_type": "LoadImage", "inputs": {"image": "not there.png"}},
    }
    (job,) = prompts.with_inputs([Job("a", graph, "a.json")], folder)
    name = job.prompt["1"]["inputs"]["image"]
    assert name.startswith("headroom_farm/")
    assert name.endswith("/a.png")
    assert {there: file.read_bytes() for there, file in job.uploads.items()} == {name: b"one"}
    assert job.prompt["2"] == graph["2"]
    assert job.prompt["3"] == graph["3"]


# ------------------------------------------------------------------------------------------------- workers


def test_workers_as_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEADERS, "Authorization: Bearer secret\n")
    one, two = workers(["http://a:8188/", "https://b/comfy#gpu=rtx 3060 12gb,ram=32,limit=0.8"], ["X-A: b"])
    assert (one.name, one.terms) == ("a:8188", {})
    assert one.address == Address("http://a:8188", {"Authorization": "Bearer secret", "X-A": "b"})
    assert two.name == "b:443/comfy"
    assert two.terms == {"gpu": "sm86", "vram_gb": 12.0, "ram_gb": 32.0, "limit": 0.8}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([], "--start 2"),
        (["ftp://a"], "is no address"),
        (["a:8188"], "is no address"),
        (["http://a:99999"], "http://a:99999"),
        (["http://u:p@a:1"], "--header"),
        (["http://a:1", "http://a:1/"], "named twice"),
        (["http://a:1#vram=lots"], "vram=lots is no number"),
        (["http://a:1#vram=-1"], "vram"),
        (["http://a:1#limit=7"], "limit"),
        (["http://a:1#colour=red"], "write gpu, vram, ram, limit or node"),
        (["http://a:1#gpu=rtx 9999"], "rtx 9999"),
        (["http://a:1#gpu=sm86"], "say how many GB"),
        (["http://a:1#gpu=rtx 3060"], "8 GB or 12 GB"),
    ],
)
def test_workers_that_make_no_sense(named: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        workers(named)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n"])
def test_certificates_that_are_none(tmp_path: Path, text: str) -> None:
    """Before anything is sent: of an empty file the system's would have been trusted."""
    (tmp_path / "own.pem").write_text(text)
    with pytest.raises(ValueError, match=r"--ca: .*own\.pem cannot be read as certificates"):
        workers(["https://a:1"], ca=str(tmp_path / "own.pem"))


def test_headers_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="--header"):
        workers(["http://a:1"], ["no colon"])
    with pytest.raises(ValueError, match="--ca"):
        workers(["http://a:1"], ca="nowhere.pem")


# -------------------------------------------------------------------------------------------------- offers


def answer(status: str, **values: Any) -> dict[str, Any]:
    return {"status": status, **values}


def test_why_it_goes_nowhere() -> None:
    too_big = answer("does_not_fit", least_vram_gb=9.0, allowed_gb=6.8, card_gb=8.0)
    offers = Offers()
    offers.hear("a", too_big)
    offers.hear("b", too_big | {"allowed_gb": 5.1, "card_gb": 6.0})
    assert offers.seconds == {}
    assert offers.refusal == (
        "needs 9.00 GB at least, with all streamed that can be (a: 6.80 GB may be used, b: 5.10 GB may be used);"
        " the least card that would do has 11 GB"
    )
    offers.hear("c", answer("lacks", reason="lacks x.safetensors"))
    assert "lacks x.safetensors (c)" in offers.refusal
    assert "least card" not in offers.refusal


def test_what_cannot_be_predicted_goes_where_it_is_asked_to() -> None:
    for unpredicted, where in ((False, {}), (True, {"a": None})):
        offers = Offers(unpredicted)
        offers.hear("a", answer("unpredicted", reason="node 4 is not known", seconds=None))
        assert offers.seconds == where
        assert "node 4 is not known" in offers.note("a")
        assert "--unpredicted" in offers.refusal


def test_who_was_cut_off_has_not_answered() -> None:
    offers = Offers()
    assert not offers.has_answer("a")
    assert not offers.broke_off("a")
    offers.hear("a", answer("unreachable", reason="it ended"))
    assert not offers.has_answer("a")
    assert offers.broke_off("a")
    offers.hear("a", answer("fits", seconds=1.0))
    assert offers.has_answer("a")
    assert not offers.broke_off("a")


def test_a_worker_that_could_not_is_not_asked_again() -> None:
    offers = Offers()
    offers.hear("a", answer("fits", seconds=2.0))
    assert offers.seconds == {"a": 2.0}
    offers.take_back("a", "out of memory")
    offers.hear("a", answer("fits", seconds=2.0))
    assert offers.seconds == {}


# ------------------------------------------------------------------------------------------------- journal


def test_the_journal_says_how_each_stands(tmp_path: Path) -> None:
    log = Journal(tmp_path)
    for name in "abcd":
        log.write("job", job=name)
    log.write("sent", job="a", worker="w", prompt_id="1")
    log.write("done", job="a", worker="w", seconds=2.0, files=["x.png"])
    log.write("sent", job="b", worker="w", prompt_id="2")
    log.write("lost", job="b")
    log.write("sent", job="c", worker="w", prompt_id="3")
    log.write("refused", job="d", reason="too big")
    log.close()
    states = journal.states(journal.lines(tmp_path))
    assert [states[name].status for name in "abcd"] == ["done", "waiting", "sent", "refused"]
    assert (states["a"].files, states["a"].seconds, states["b"].lost) == (["x.png"], 2.0, 1)
    assert states["d"].reason == "too big"


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_line_that_a_kill_cut_in_two(tmp_path: Path, cut: int) -> None:
    log = Journal(tmp_path)
    log.write("job", job="a")
    log.write("sent", job="a", worker="w", prompt_id="1")
    log.close()
    path = tmp_path / journal.FILE
    path.write_bytes(path.read_bytes()[:-cut])
    log = Journal(tmp_path)
    log.write("job", job="b")
    log.close()
    states = journal.states(journal.lines(tmp_path))
    assert states["a"].status == ("sent" if cut == 1 else "waiting")
    assert states["b"].status == "waiting"


def _hold(folder: str, ready: Any, end: Any) -> None:
    log = Journal(Path(folder))
    ready.set()
    end.wait(30)
    log.close()


def test_two_drivers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    assert not journal.drain(tmp_path)
    other = context.Process(target=_hold, args=(str(tmp_path), ready, end))
    other.start()
    assert ready.wait(60)
    with pytest.raises(TwoDrivers, match="another driver works on"):
        Journal(tmp_path)
    assert journal.drain(tmp_path)
    assert (tmp_path / journal.DRAIN).exists()
    end.set()
    other.join(30)
    assert not journal.drain(tmp_path)
    Journal(tmp_path).close()


# ------------------------------------------------------------------------------------------------- results


def fetched(pieces: Mapping[str, list[bytes]]) -> results.Fetched:
    async def fetch(entry: Mapping[str, str]) -> AsyncIterator[bytes]:
        for piece in pieces[entry["filename"]]:
            yield piece

    return fetch


def stored(folder: Path, pieces: Mapping[str, list[bytes]], names: list[str] | None = None) -> list[str]:
    entries = [{"filename": name, "node": "7"} for name in names or pieces]
    return asyncio.run(results.store(folder, Job("job", prompt(), "a.json"), {}, entries, fetched(pieces)))


def test_results_appear_whole(tmp_path: Path) -> None:
    assert stored(tmp_path, {"a.png": [b"12", b"3", b""], "b.png": [b""]}) == ["a.png", "b.png"]
    assert (tmp_path / "job" / "a.png").read_bytes() == b"123"
    about = json.loads((tmp_path / "job" / results.ABOUT).read_text())
    assert about["prompt"] == prompt()
    assert [one["bytes"] for one in about["files"]] == [3, 0]
    assert results.finished(tmp_path, "job") == ["a.png", "b.png"]


def test_a_long_name_is_cut_by_its_bytes(tmp_path: Path) -> None:
    (name,) = stored(tmp_path, {f"{100 * '夢'}.png": [b"1", b""]})
    assert len(name.encode()) <= 150
    assert name == f"{48 * '夢'}.png"


def test_a_file_that_broke_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(results.NotWhole):
        stored(tmp_path, {"a.png": [b"12"]})
    assert list(tmp_path.iterdir()) == []
    assert results.finished(tmp_path, "job") is None


def test_a_result_stays_as_it_is(tmp_path: Path) -> None:
    stored(tmp_path, {"a.png": [b"first", b""]})
    assert stored(tmp_path, {"a.png": [b"second", b""]}) == ["a.png"]
    assert (tmp_path / "job" / "a.png").read_bytes() == b"first"


def test_a_result_that_was_cut_is_fetched_again(tmp_path: Path) -> None:
    stored(tmp_path, {"a.png": [b"first", b""]})
    (tmp_path / "job" / "a.png").write_bytes(b"fi")
    assert results.finished(tmp_path, "job") is None
    stored(tmp_path, {"a.png": [b"first", b""]})
    assert (tmp_path / "job" / "a.png").read_bytes() == b"first"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..", "a/b.png", "result.json", "C:\\x.png", "a\x00b.png", "." * 300]
)
def test_names_from_a_server_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    (file,) = stored(out, {name: [b"x", b""]})
    assert (out / "job" / file).read_bytes() == b"x"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.name for path in (out / "job").iterdir()} == {file, results.ABOUT}


def test_two_of_one_name(tmp_path: Path) -> None:
    names = stored(tmp_path, {"a.png": [b"x", b""]}, ["a.png", "a.png"])
    assert names == ["a.png", "a-2.png"]


def _store_on_a_full_disk(folder: str, said: Any) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        stored(Path(folder), {"a.png": [b"x" * 600, b"x" * 600, b""]})
    except OSError as error:
        said.put(str(error.strerror))


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """The system refuses what goes beyond a file's limit as it does on a full disk."""
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    other = context.Process(target=_store_on_a_full_disk, args=(str(tmp_path / "out"), said))
    other.start()
    assert said.get(timeout=60) == "File too large"
    other.join(30)
    assert list((tmp_path / "out").iterdir()) == []
