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
from PIL import Image

from headroom.nodes import NODES
from headroom.tools.templates.locales import FILE, LOCALES, as_json, english, every_input, key

HELP = Path(__file__).parents[2] / "web" / "docs"
IDS = [node.GET_SCHEMA().node_id for node in NODES]
TRANSLATED = ("zh", "ja")
# The sections that every page has, in this order; a page may have more between them.
HEADINGS = {
    "en": ["When to use it", "Inputs", "Outputs", "Together with other nodes", "Measured", "Limits"],
    "zh": ["何时使用", "输入", "输出", "与其他节点配合", "实测", "局限"],
    "ja": ["使いどころ", "入力", "出力", "他のノードとの組み合わせ", "実測", "制限"],
}
EMPTY = {"en": "empty", "zh": "留空", "ja": "空"}
RANGE = {"en": "{}; {} to {}", "zh": "{}；{} 至 {}", "ja": "{}；{}〜{}"}
ROW = re.compile(r"^\| `(\w+)`[^|]*\| ([^|]*?) ?\|", re.MULTILINE)
PICTURE = re.compile(r"^!\[[^\]]+\]\(([^)]+)\)$", re.MULTILINE)
# Readable in the help panel, and small enough that all of them fit into the archive.
LEAST_WIDTH, MOST_BYTES = 600, 120_000
FIGURE = re.compile(r"\d+(?:\.\d+)?")
COMMANDS, SETTINGS, WORDS = "commands.json", "settings.json", "main.json"
SCRIPTS = [HELP.parent / f"{name}.js" for name in ("make_it_fit", "will_it_run")]  # of commands
NOT_LATIN = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


# What the scripts ask for by a key that is put together: the work of stages, the parts of a bar, the server's lines.
SAID = re.compile(r'say\(\s*"(\w+)"')
VALUE = re.compile(r"\$(\w+)")
WORKS = ("text", "vision", "sound", "encode", "sampling", "decode", "upscale", "training")
BARS = re.search(r"COLOURS = {.*}", (HELP.parent / "memory_bar.js").read_text(encoding="utf-8"))
assert BARS is not None
KINDS_OF_BARS = [f"kind_{kind}" for kind in re.findall(r"(\w+): (?:\"#\w+\"|null)", BARS[0])]
LINE = ("node", "kind", "name", "subgraph", "why")
CODES: dict[str, tuple[str, ...]] = {
    "added": (*LINE, "other", "other_kind"), "left_alone": LINE, "in_subgraph": ("subgraph",), "why_guider": (),
    "why_guider_shared": ("guider",), "why_not_connected": ("input",), "why_no_vae": (), "why_no_vae_in_it": (),
    "why_cast_already": (),
    "why_checkpoints_already": (),
    "inserted": ("count",), "nothing_inserted": (), "fitted_already": (), "nothing_to_fit": (),
    "circle": ("node",), "nothing_to_predict": (), "nothing_followed": ("why",),
}  # fmt: skip


def scripts() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in HELP.parent.glob("*.js"))


def translations(language: str, file: str = FILE) -> dict[str, Any]:
    return json.loads((LOCALES / language / file).read_text(encoding="utf-8"))


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
    """After a change of words: `python3 -m tools locales`."""
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


def help_page(node: str, language: str) -> str:
    return (HELP / (f"{node}.md" if language == "en" else f"{node}/{language}.md")).read_text(encoding="utf-8")


def sections_of(page: str) -> dict[str, str]:
    """What stands below each heading of the second level."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def first_table(section: str) -> list[tuple[str, str]]:
    """Its rows: the name in the first cell, and the second cell."""
    return ROW.findall(section.strip().partition("\n\n")[0])


@pytest.mark.parametrize("language", TRANSLATED)
@pytest.mark.parametrize("node", IDS)
def test_help_in_every_language_has_the_same_figures_and_tables(node: str, language: str) -> None:
    page, theirs = help_page(node, "en"), help_page(node, language)
    assert figures(theirs) == figures(page)
    for mark in ("#", "|", "- "):
        assert _lines(theirs, mark) == _lines(page, mark), mark
    assert theirs.startswith("# " + translations(language)[node]["display_name"].partition("（")[0])
    names = re.findall(r"^\*\*([a-z_]+)", page, re.MULTILINE)
    assert all(name in theirs for name in names), names


def _lines(page: str, mark: str) -> int:
    return sum(line.startswith(mark) for line in page.splitlines())


@pytest.mark.parametrize("language", HEADINGS)
@pytest.mark.parametrize("node", NODES, ids=IDS)
def test_help_has_a_row_for_each_input_and_output_in_their_order(node: Any, language: str) -> None:
    schema = node.GET_SCHEMA()
    sections = sections_of(help_page(schema.node_id, language))
    assert [title for title in sections if title in HEADINGS[language]] == HEADINGS[language]
    _, inputs, outputs, *_ = HEADINGS[language]
    named = dict.fromkeys(name.rpartition(".")[2] for name, _ in every_input(schema.inputs))
    assert [name for name, _ in first_table(sections[inputs])] == list(named)
    assert [name for name, _ in first_table(sections[outputs])] == [o.display_name or o.io_type for o in schema.outputs]


@pytest.mark.parametrize("language", HEADINGS)
@pytest.mark.parametrize("node", NODES, ids=IDS)
def test_help_has_the_default_and_the_range_of_each_input(node: Any, language: str) -> None:
    schema = node.GET_SCHEMA()
    rows = dict(first_table(sections_of(help_page(schema.node_id, language))[HEADINGS[language][1]]))
    for name, one in every_input(schema.inputs):
        wanted = default_and_range(one, language)
        assert wanted is None or rows[name.rpartition(".")[2]] == wanted, name


def default_and_range(one: Any, language: str) -> str | None:
    """As a page writes them; None for what has no default, or a switch."""
    default = getattr(one, "default", None)
    if default is None or isinstance(default, bool):
        return None
    if isinstance(default, str):
        return default or EMPTY[language]
    return RANGE[language].format(*(f"{number:.15g}" for number in (default, one.min, one.max)))


@pytest.mark.parametrize("language", HEADINGS)
@pytest.mark.parametrize("node", IDS)
def test_help_shows_a_picture_of_the_graph(node: str, language: str) -> None:
    """The frontend resolves it from docs/ for a page in any language; `Image` fails where it is none."""
    shown = PICTURE.findall(help_page(node, language))
    assert shown == [f"pictures/{node}.jpg"]
    with Image.open(HELP / shown[0]) as picture:
        picture.load()
        assert picture.format == "JPEG"
        assert picture.width >= LEAST_WIDTH
    assert (HELP / shown[0]).stat().st_size < MOST_BYTES


def test_no_help_page_without_its_node() -> None:
    assert {path.stem for path in HELP.glob("*.md")} == set(IDS)
    assert {path.name for path in HELP.iterdir() if path.is_dir()} == {*IDS, "pictures"}
    assert {path.name for path in HELP.glob("*/*.md")} == {f"{language}.md" for language in TRANSLATED}
    assert {path.name for path in (HELP / "pictures").iterdir()} == {f"{node}.jpg" for node in IDS}


def test_the_host_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own reader, from a folder of custom nodes that holds this pack."""
    (tmp_path / "pack").symlink_to(LOCALES.parent, target_is_directory=True)
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "custom_nodes", ([str(tmp_path)], set()))
    served = CustomNodeManager().build_translations()
    files = {"nodeDefs": FILE, "commands": COMMANDS, "settings": SETTINGS}
    words = {language: translations(language, WORDS) for language in TRANSLATED}  # English stands in the scripts
    assert served == {
        language: {what: translations(language, file) for what, file in files.items()} | words.get(language, {})
        for language in ("en", *TRANSLATED)
    }


def test_settings_have_their_words_in_every_language() -> None:
    """The English is that of the scripts, of which each name and tooltip is there once."""
    source, english = scripts(), translations("en", SETTINGS)
    assert len(english) == len(re.findall(r"defaultValue:", source))
    for about in english.values():
        assert source.count(f'name: "{about["name"]}"') == source.count(f'tooltip: "{about["tooltip"]}"') == 1
    for language in TRANSLATED:
        theirs = translations(language, SETTINGS)
        assert {name: set(about) for name, about in theirs.items()} == {n: set(a) for n, a in english.items()}
        assert all(NOT_LATIN.search(about["name"] + about["tooltip"]) for about in theirs.values())


def test_what_the_scripts_say_is_there_in_every_language() -> None:
    """By the keys with which they ask for it, and no others; with the same values in all languages."""
    asked = set(SAID.findall(scripts()))
    asked |= {f"work_{work}" for work in WORKS} | set(KINDS_OF_BARS) | set(CODES)
    chinese, japanese = (translations(language, WORDS)["headroom"] for language in TRANSLATED)
    assert set(chinese) == set(japanese) == asked
    for name, text in chinese.items():
        assert sorted(VALUE.findall(text)) == sorted(VALUE.findall(japanese[name])), name


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_value_that_a_translation_has_is_one_that_the_script_gives(language: str) -> None:
    for name, text in translations(language, WORDS)["headroom"].items():
        given = re.search(rf'say\("{name}"[^;]*?\{{ ([^}}]*) \}}\)', scripts())
        values = set(re.findall(r"(\w+)(?:,|:|$)", given[1])) if given else set(CODES.get(name, ()))
        assert set(VALUE.findall(text)) <= values, name


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_commands_have_their_labels_in_every_language(script: Path) -> None:
    """By id with the dots replaced; the English is that of the script."""
    source = script.read_text(encoding="utf-8")
    command, title = (re.search(rf'const {name} = "(.+)";', source)[1] for name in ("ID", "TITLE"))
    for language in ("en", *TRANSLATED):
        label = translations(language, COMMANDS)[key(command)]["label"]
        assert (label == f"{title} (Headroom)") == (language == "en")
        assert language == "en" or NOT_LATIN.search(label)


def test_there_are_no_other_commands_and_make_it_fit_is_called_as_its_node() -> None:
    for language in ("en", *TRANSLATED):
        found = translations(language, COMMANDS)
        assert len(found) == len(SCRIPTS)
        name = translations(language)["HeadroomFit"]["display_name"]
        assert found["Headroom_MakeItFit"]["label"].startswith(name)


@pytest.mark.parametrize("language", TRANSLATED)
def test_the_headings_of_our_settings_have_their_words(language: str) -> None:
    """The frontend looks them up by their English."""
    headings = {found.strip('"') for found in re.findall(r'category: \["Headroom", ("[\w ]+"|TITLE)', scripts())}
    named = {"Make It Fit" if heading == "TITLE" else heading for heading in headings}
    assert len(named) == 3
    assert set(translations(language, "main.json")["settingsCategories"]) == named
