"""Classes by index and by name."""

import json
from pathlib import Path

import pytest
from torchvision.models import ResNet18_Weights

from ebcli.errors import ConfigurationError, UnknownClassError
from ebcli.models import matching_classes, read_class_names, resolve_class
from ebcli.models.classes import printable

CATEGORIES = tuple(ResNet18_Weights.DEFAULT.meta["categories"])


@pytest.mark.parametrize(
    ("target", "index"),
    [
        (281, 281),
        (" 281 ", 281),
        ("TABBY", 281),
        ("tiger cat", 282),
        ("tiger", 292),  # an exact match, though "tiger cat" contains it
        ("crane", 517),  # the machine; the bird is "crane bird"
        ("TIGER", 292),
        ("Cardigan", 264),  # the dog
        ("cardigan", 474),  # the garment
        (999, 999),
    ],
)
def test_a_class_is_found_by_index_and_by_name(target, index):
    # WordNet's order of ImageNet's classes: 281 tabby, 282 tiger cat, 292 tiger
    assert resolve_class(CATEGORIES, target, 1000) == index


@pytest.mark.parametrize("target", [-1, "-1", 1000, "1000"])
def test_an_index_out_of_range_is_refused_with_the_range(target):
    with pytest.raises(ConfigurationError, match="0 to 999"):
        resolve_class(CATEGORIES, target, 1000)


@pytest.mark.parametrize("target", ["1_0", "\u0663", "1e1", "0x1", "9" * 5000])
def test_what_only_python_reads_as_a_number_is_no_index(target: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown class"):
        resolve_class(["ten", "more"] * 20, target)
    assert resolve_class(["ten", target], target) == 1


def test_the_number_of_classes_defaults_to_the_number_of_names():
    assert resolve_class(("a", "b"), 1, None) == 1
    with pytest.raises(ConfigurationError, match="0 to 1"):
        resolve_class(("a", "b"), 2, None)


def test_a_misspelled_name_suggests_the_closest():
    with pytest.raises(ConfigurationError, match="'zebra'"):
        resolve_class(CATEGORIES, "zeebra", 1000)


def test_a_name_without_a_similar_one_is_refused():
    with pytest.raises(ConfigurationError, match="1000 class names"):
        resolve_class(CATEGORIES, "qqqqqqqq", 1000)


@pytest.mark.parametrize("name", ["CARDIGAN", "terrier", "spaniel"])
def test_an_ambiguous_name_lists_its_matches(name):
    with pytest.raises(ConfigurationError, match="matches") as caught:
        resolve_class(CATEGORIES, name, 1000)
    fits = [i for i, category in enumerate(CATEGORIES) if name.casefold() in category.casefold()]
    assert str(fits[0]) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("Hund", "thunder snake"), ("rat", "crate"), ("gondol", "gondola"), ("tabb", "tabby")],
)
def test_a_name_inside_a_word_is_only_suggested(name: str, suggested: str) -> None:
    with pytest.raises(UnknownClassError, match=f"did you mean .*'{suggested}'") as caught:
        resolve_class(CATEGORIES, name, 1000)
    assert suggested in caught.value.near  # which the live page offers


def test_whole_words_and_synonyms() -> None:
    names = ["cattle", "bobcat", "tiger cat", "Persian cat"]
    assert matching_classes(names, "Cat") == (2, 3)
    assert matching_classes(names, "cat", 4) == (2, 3)
    assert resolve_class([*names[:2], "tiger cat"], "cat") == 2
    with pytest.raises(ConfigurationError, match="matches 2 'tiger cat', 3 'Persian cat': give"):
        resolve_class(names, "Cat")
    # as WordNet lists them: the tiger is called so, the cat only has it in its name
    assert resolve_class(["tiger cat", "tiger, Panthera tigris", "white, tiger,x"], "Panthera Tigris") == 1
    assert matching_classes(["tiger cat", "tiger, Panthera tigris", "tigers"], "tiger") == (1,)


def test_an_empty_name_matches_nothing():
    with pytest.raises(ConfigurationError, match="unknown class ''"):
        resolve_class(CATEGORIES, "", 1000)


def test_control_characters_in_class_names_are_replaced() -> None:
    assert printable("\x1b[31mtench\x07\u202e") == "\ufffd[31mtench\ufffd\ufffd"
    assert printable("a\nb\u2028c\udc80") == "a\ufffdb\ufffdc\ufffd"
    for harmless in ("great white shark", "crêpe", "猫", "میز\u200cکار", "👩\u200d🚀", "%s <b>&"):
        assert printable(harmless) == harmless


def test_without_class_names_only_indices_are_accepted():
    assert resolve_class(None, "3", 7) == 3
    assert resolve_class(None, 3, None) == 3
    with pytest.raises(ConfigurationError, match=r"are unknown.*0 to 6"):
        resolve_class(None, "tabby", 7)
    with pytest.raises(ConfigurationError, match="0 or more"):
        resolve_class(None, -3, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.txt", "tench\ngoldfish\n  great white shark \n\n"),
        ("labels.txt", "\ufefftench\r\ngoldfish\r\ngreat white shark"),
        ("labels.json", '["tench", "goldfish", "great white shark"]'),
        ("labels.JSON", '{"2": "great white shark", "0": "tench", "1": "goldfish"}'),
        (
            "labels.json",
            '{"0": ["n01440764", "tench"], "1": ["n01443537", "goldfish"], "2": ["n01484850", "great white shark"]}',
        ),
    ],
)
def test_class_names_in_a_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert read_class_names(tmp_path / name) == ["tench", "goldfish", "great white shark"]


def test_class_names_by_index_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    """Not of texts, where 10 comes before 2."""
    names = [f"name {index}" for index in range(12)]
    shuffled = {str(index): names[index] for index in (11, 2, 10, 1, 0, 3, 5, 4, 9, 6, 8, 7)}
    (tmp_path / "labels.json").write_text(json.dumps(shuffled))
    assert read_class_names(tmp_path / "labels.json") == names


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("labels.txt", b"\n\n", "one per line"),
        ("labels.txt", b"\xff\xfe\x00", "cannot read class names"),
        ("labels.json", b"{", "cannot read class names"),
        ("labels.json", b'"tench"', "one per line"),
        ("labels.json", b'["tench", 3]', "one per line"),
        ("labels.json", b'["tench", " "]', "one per line"),
        ("labels.json", b'{"1": "tench", "2": "goldfish"}', 'keys "0" to "1"'),
        ("labels.json", b"[" * 200_000, "cannot read class names"),
        ("labels.txt", b"tench\n" * 3_000_000, "it has more than 16777216 bytes"),
    ],
)
def test_files_without_class_names_are_reported_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_class_names(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
