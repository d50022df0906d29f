"""The words of the nodes in every language, and the help pages."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import folder_paths
import pytest
from app.custom_node_manager import CustomNodeManager

from headroom.nodes import NODES
from headroom.tools.locales import FILE, LOCALES, as_json, english, every_input, key

HELP = Path(__file__).parents[2] / "web" / "docs"
IDS = [node.GET_SCHEMA().node_id for node in NODES]
TRANSLATED = ("zh", "ja")
FIGURE = re.compile(r"\d+(?:\.\d+)?")
NOT_LATIN = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


def translations(language: str) -> dict[str, Any]:
    return json.loads((LOCALES / language / FILE).read_text(encoding="utf-8"))


def messages(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Each text and where it stands, such as HeadroomFit.inputs.quality.tooltip."""
    for name, inner in tree.items():
        if isinstance(inner, dict):
            yield from messages(inner, f"{path}{name}.")
        else:
            yield path + name, inner


def figures(text: str) -> Counter[str]:
    return Counter(FIGURE.findall(text))


def test_every_node_input_and_output_is_there_as_the_frontend_looks_it_up() -> None:
    """By input with the dots of nested ones replaced, by output with its index; and nothing that no node has."""
    for language in ("en", *TRANSLATED):
        found = translations(language)
        assert list(found) == IDS
        for node in NODES:
            schema, words = node.GET_SCHEMA(), found[node.GET_SCHEMA().node_id]
            assert list(words) == ["display_name", "description", "inputs", "outputs"]
            assert set(words["inputs"]) == {key(name) for name, _ in every_input(schema.inputs)}
            assert list(words["outputs"]) == [str(index) for index in range(len(schema.outputs))]
            for one in (*words["inputs"].values(), *words["outputs"].values()):
                assert list(one) == ["name", "tooltip"]


def test_nested_inputs_are_among_them() -> None:
    inputs = translations("zh")["HeadroomLocalAttention"]["inputs"]
    assert {"pattern", "pattern_radius", "pattern_top"} <= set(inputs)
    assert "sensitivity_target_db" in translations("ja")["HeadroomCast"]["inputs"]


def test_english_is_that_of_the_schemas() -> None:
    """After a change of words: `python3 -m tools.locales`."""
    assert (LOCALES / "en" / FILE).read_text(encoding="utf-8") == as_json(english(NODES))


def test_choices_that_bring_inputs_of_one_name_say_the_same_of_them() -> None:
    """They share one key."""
    for node in NODES:
        said: dict[str, str] = {}
        for name, one in every_input(node.GET_SCHEMA().inputs):
            assert said.setdefault(key(name), one.tooltip) == one.tooltip, (node.GET_SCHEMA().node_id, name)


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_translation_is_one_and_has_the_figures_of_the_english(language: str) -> None:
    theirs = dict(messages(translations(language)))
    for path, text in messages(translations("en")):
        assert figures(theirs[path]) == figures(text), path
        if not path.endswith(".name"):  # VAE, CLIP, GPU and cfg are names in every language
            assert NOT_LATIN.search(theirs[path]), path


@pytest.mark.parametrize("language", ["en", *TRANSLATED])
def test_no_text_holds_what_the_frontend_would_take_for_syntax(language: str) -> None:
    """Braces are replaced, @ links, | separates plurals."""
    for path, text in messages(translations(language)):
        assert text, path
        assert text.strip() == text, path
        assert not set("{}@|") & set(text), path


def test_a_script_per_language() -> None:
    """Kana in Japanese and none in Chinese: no file holds the other's words."""
    kana = re.compile(r"[\u3041-\u3096\u30a1-\u30fa]")
    for path, text in messages(translations("ja")):
        assert path.endswith(".name") or kana.search(text), path
    for path, text in messages(translations("zh")):
        assert not kana.search(text), path


@pytest.mark.parametrize("node", IDS)
def test_help_in_english_and_chinese_with_the_same_figures_and_tables(node: str) -> None:
    page, chinese = (path.read_text(encoding="utf-8") for path in (HELP / f"{node}.md", HELP / node / "zh.md"))
    assert figures(chinese) == figures(page)
    for mark in ("#", "|", "- "):
        assert _lines(chinese, mark) == _lines(page, mark), mark
    assert chinese.startswith("# " + translations("zh")[node]["display_name"].partition("（")[0])
    names = re.findall(r"^\*\*([a-z_]+)", page, re.MULTILINE)
    assert all(name in chinese for name in names), names


def _lines(page: str, mark: str) -> int:
    return sum(line.startswith(mark) for line in page.splitlines())


def test_no_help_page_without_its_node() -> None:
    assert {path.stem for path in HELP.glob("*.md")} == set(IDS)
    assert {path.name for path in HELP.iterdir() if path.is_dir()} == set(IDS)
    assert {path.name for path in HELP.glob("*/*")} == {"zh.md"}


def test_the_host_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own reader, from a folder of custom nodes that holds this pack."""
    (tmp_path / "pack").symlink_to(LOCALES.parent, target_is_directory=True)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "custom_nodes", ([str(tmp_path)], set()))
    served = CustomNodeManager().build_translations()
    assert served == {language: {"nodeDefs": translations(language)} for language in ("en", *TRANSLATED)}
