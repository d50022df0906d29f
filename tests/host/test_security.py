"""SECURITY.md line by line: each sentence on what the pack does, and each row of its table, has tests that hold it."""

import ast
import json
import re
from pathlib import Path, PurePosixPath

import pytest

from headroom.graph.litegraph import MOST_NODES, MOST_SECONDS
from headroom.host.prediction.header_loading import MOST_DESCRIBED
from headroom.host.server import routes
from headroom.host.video_files.to_file import KEPT_BYTES, KEPT_DAYS
from headroom.offload import gguf_header
from headroom.offload.safetensors_header import MOST_BYTES
from headroom.tools.server.client import Client
from headroom.tools.server.server import Server

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
WORKER, ROUTES, HEADER = "host/test_worker.py", "host/test_server_routes.py", "unit/test_safetensors_header.py"
GGUF, VIDEOS = "unit/test_gguf_header.py", "unit/test_video_files.py"
# The beginning of a line or row, and its tests.
HELD = {
    "runs no text as code": ("unit/test_source.py::test_the_pack_runs_no_text_and_installs_nothing",),
    "joins a Ray cluster where": (
        "host/test_workers.py::test_an_address_is_no_name", "host/test_workers.py::test_what_the_owner_wrote",
        "host/test_workers.py::test_another_version_is_refused_with_both", "host/test_workers.py::test_nobody_there",
    ),
    "asks a ComfyUI where `cli/estimate.py`": (
        "unit/test_source.py::test_the_pack_runs_no_text_and_installs_nothing",
        "host/test_estimate_cli.py::test_a_server_that_runs_is_asked",
        "host/test_estimate_cli.py::test_a_server_that_points_elsewhere_is_not_followed",
    ),
    "opens no model itself": (
        f"{HEADER}::test_what_breaks_a_rule", f"{HEADER}::test_what_is_no_safetensors_file",
        f"{HEADER}::test_a_name_that_promises_another_format", f"{GGUF}::test_what_breaks_a_rule",
        f"{GGUF}::test_it_is_not_read_further_than_its_limit",
        f"{GGUF}::test_a_vocabulary_is_walked_through_and_not_kept",
        "host/test_security.py::test_the_numbers_are_the_codes",
    ),
    "writes these files": (
        "host/test_security.py::test_files_are_written_where_it_says", "unit/test_json_file.py::test_there_and_back",
        "unit/test_json_file.py::test_a_full_disk_leaves_the_one_before",
        "unit/test_json_file.py::test_what_is_damaged_counts_as_not_there_and_is_said",
        "host/test_casting.py::test_a_damaged_file_is_written_anew", "host/test_casting.py::test_a_path_is_refused",
        "host/test_casting.py::test_a_disk_that_fills_up_meanwhile",
        "host/test_casting.py::test_foreign_contents_are_measured_anew",
    ),
    "writes videos into": (
        "host/test_security.py::test_videos_are_written_where_it_says",
        "host/test_security.py::test_the_numbers_are_the_codes",
        "host/test_video_files.py::test_one_sentence_before_any_work",
        "host/test_video_files.py::test_a_disk_that_is_too_small", f"{VIDEOS}::test_by_age_and_then_the_oldest_by_size",
        f"{VIDEOS}::test_what_is_damaged_counts_as_not_there", f"{VIDEOS}::test_names_that_are_no_segments_of_it",
        f"{VIDEOS}::test_a_plan_that_is_damaged_or_another_s_empties_it", f"{VIDEOS}::test_what_is_no_video",
        "unit/test_on_disk.py::test_its_file_has_no_name_and_its_blocks_come_back",
        "unit/test_on_disk.py::test_more_than_the_disk_has_is_refused_with_both_numbers",
    ),
    "calls one function of the C library": ("host/test_security.py::test_one_function_of_the_c_library",),
    "takes `skip` of Layerwise Casting": ("host/test_over_http.py::test_bad_input",),
    "a workflow to `estimate`": (
        f"{WORKER}::test_one_at_a_time_in_order", f"{WORKER}::test_what_takes_too_long_ends_and_the_next_has_its_turn",
        f"{WORKER}::test_nobody_waits_any_longer", f"{ROUTES}::test_the_server_answers_meanwhile",
        f"{ROUTES}::test_what_no_machine_holds_is_refused_and_the_next_answered", f"{ROUTES}::test_no_file_is_written",
        "host/test_security.py::test_the_numbers_are_the_codes",
        "host/test_following.py::test_names_that_lead_out_are_refused",
    ),
    "a workflow to `fit`": (
        "unit/test_graph.py::test_what_takes_too_long_is_refused",
        "unit/test_graph.py::test_a_small_file_that_unpacks_to_more_than_there_is_memory_for_is_refused",
        "host/test_security.py::test_the_numbers_are_the_codes", "host/test_security.py::test_routes_write_nothing",
    ),
    "an id to `runs`": ("host/test_security.py::test_runs_show_no_prompt_and_no_picture",),
    "values of our nodes": (
        "host/test_security.py::test_files_are_written_where_it_says",
        "host/test_security.py::test_videos_are_written_where_it_says",
        "host/test_video_files.py::test_a_disk_that_is_too_small",
    ),
    "a header": (
        f"{HEADER}::test_what_is_no_safetensors_file", f"{HEADER}::test_what_breaks_a_rule",
        f"{GGUF}::test_what_breaks_a_rule",
    ),
    "a prompt with a Make It Fit": (
        "unit/test_fit_advice.py::test_circles_and_long_chains",
        "unit/test_fit_sizes.py::test_circles_and_long_chains",
        "host/test_out_of_memory.py::test_one_plan_for_two_sizes",
        "host/test_out_of_memory.py::test_a_plan_is_for_the_cfg_of_the_graph",
    ),
}  # fmt: skip


def claims() -> list[str]:
    """What the file says that the pack does: its list, and the second cell of each row."""
    lines = re.findall(r"^- (.+)", TEXT.partition("## Server routes")[0], re.MULTILINE)
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|", TEXT, re.MULTILINE)
    return [*lines, *(row for row in rows if row != "what")]


def test_each_line_has_its_tests() -> None:
    for claim in claims():
        assert [start for start in HELD if claim.startswith(start)], f"{claim}: name the tests that hold it"
    for start, tests in HELD.items():
        assert [claim for claim in claims() if claim.startswith(start)], f"{start}: SECURITY.md does not say this"
        for test in tests:
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, test


def test_the_numbers_are_the_codes() -> None:
    text = " ".join(TEXT.split())  # whatever the lines' ends
    assert f"at most {MOST_BYTES / 1e6:.0f} MB, held to the format's rules" in text
    assert f"at most {MOST_BYTES / 1e6:.0f} MB are read as JSON" in text
    assert f"(at most {gguf_header.MOST_BYTES / 1e6:.0f} MB, held to that format's rules" in text
    assert f"at most {MOST_DESCRIBED / 2**20:.0f} MB each" in text
    assert f"{routes.MOST_SECONDS:.0f} s of one core each, in a thread" in text
    assert f"{MOST_SECONDS:.0f} s of one core each: at most {MOST_NODES:,} nodes" in text
    assert f"after {KEPT_DAYS:.0f} days, or above {KEPT_BYTES / 2**30:.0f} GB" in text


def test_one_function_of_the_c_library() -> None:
    """The ways out of Python: that one, and the interpreter's own for an exception in another thread."""
    found = {}
    for path in ROOT.rglob("*.py"):
        place = PurePosixPath(path.relative_to(ROOT).as_posix())
        if place.parts[0] in ("tests", "tools", "benchmarks", "farm") or place.parts[0].startswith("."):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loaded = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {alias.name for node in loaded for alias in node.names} | {
            getattr(node, "module", None) for node in loaded
        }
        if names & {"ctypes", "cffi", "torch.utils.cpp_extension"}:
            found[str(place)] = set(re.findall(r"\b(?:malloc|PyThreadState)_\w+", path.read_text(encoding="utf-8")))
    raises = {"PyThreadState_SetAsyncExc"}
    assert found == {"vae/exact/running/heap.py": {"malloc_trim"}, "host/server/worker.py": raises}


def files(server: Server) -> set[PurePosixPath]:
    """All in the server's own folder."""
    return {
        PurePosixPath(path.relative_to(server.base).as_posix()) for path in server.base.rglob("*") if path.is_file()
    }


def test_files_are_written_where_it_says(client: Client, server: Server) -> None:
    workflow = json.loads((ROOT / "workflows" / "api" / "flux_cast_lora.json").read_text())
    goal = {"sensitivity": "size", "sensitivity.size_limit": 0.5, "positive": ["5", 0], "cache_file": "security"}
    workflow["17"]["inputs"] |= goal
    for saves in ("13", "16"):
        workflow[saves]["inputs"]["filename_prefix"] = "security/saved"
    for kept in (server.base / "user" / "headroom").glob("sensitivity.*"):
        kept.unlink()  # another test may have measured the same
    before = files(server)
    client.run(workflow)
    written = {path for path in files(server) - before if path.parts[:2] != ("output", "security")}
    places = {str(path.parent) for path in written if path.parts[0] != "temp" and "__pycache__" not in path.parts}
    assert places == {"output/headroom", "user/headroom"}
    assert any(path.parts[0] == "temp" for path in written), "charts and previews"


def test_videos_are_written_where_it_says(client: Client, server: Server) -> None:
    """And nothing is left of their segments."""
    workflow = json.loads((ROOT / "workflows" / "api" / "wan_video_to_file.json").read_text())
    workflow["10"]["inputs"]["filename_prefix"] = "security/video"
    before = files(server)
    client.run(workflow)
    written = {path for path in files(server) - before if path.parts[0] != "temp" and "__pycache__" not in path.parts}
    assert {str(path.parent) for path in written} == {"output/security"}


@pytest.mark.parametrize(("route", "name"), [("estimate", "prompt"), ("fit", "workflow")])
def test_routes_write_nothing(client: Client, server: Server, route: str, name: str) -> None:
    workflow = json.loads((ROOT / "workflows" / "api" / "flux_text_to_image.json").read_text())
    before = files(server)
    assert client.post(f"/headroom/{route}", {name: workflow, "vram_gb": 8})
    assert files(server) == before


def test_runs_show_no_prompt_and_no_picture(client: Client) -> None:
    workflow = json.loads((ROOT / "workflows" / "api" / "sd15_text_to_image.json").read_text())
    words = "a secret that nobody else is to know"
    changes = {"text": words, "filename_prefix": "hidden/name", "width": 128, "height": 128, "steps": 1}
    for item in workflow.values():
        item["inputs"] |= {name: value for name, value in changes.items() if name in item["inputs"]}
    answer = json.dumps(client.get(f"/headroom/runs/{client.run(workflow).prompt_id}"))
    assert '"work": "sampling"' in answer
    assert words not in answer
    assert "hidden" not in answer
    assert len(answer) < 20_000, "numbers and short words, no pictures"
