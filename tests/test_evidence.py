"""docs/evidence.md says what the files beside it say."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks import evidence
from benchmarks.rates import WORKS
from benchmarks.trained.__main__ import LEARNED
from benchmarks.trained.methods import JOINT, STEPWISE
from ebcli.datatypes.atlas import CLEAR
from ebcli.datatypes.explanation import _OF_WORD, _TOO_STRONG, OF_NOISE
from ebcli.models.loaded import DEFAULT_LAYER
from ebcli.run.controls import PICTURES
from ebcli.run.maps import _LONGEST

BUNDLED = "efficientnet_lite0"
REAL = (BUNDLED, "efficientnet_lite1")
FILES = sorted(file.stem for file in evidence.FOLDER.glob("*.csv"))
TEXTS = [page.read_text(encoding="utf-8") for page in evidence.DOCS.glob("*.md")]
MODULES = sorted({*re.findall(r"python -m (benchmarks[\w.]+)", "".join(TEXTS))})
_LINES = re.DOTALL | re.MULTILINE
_SETTLED = {  # numbers of the texts that were not measured
    "25%": "chance",
    "50%": "chance, and the probability of recognized photos",
    "67%": "chance",
    f"{OF_NOISE[0]:g}": "times noise, below which there is hardly any evidence",
    f"{_TOO_STRONG:g}": "strength of noise, above which the evidence is not judged",
    f"{CLEAR:.0%}": "of the largest value, by which a class leads where it is named",
    f"{LEARNED:.0%}": "accuracy of the networks that are listed",
    "95%": "of intervals",
    f"{_LONGEST}": "shape of the images that are explained in tiles",
}


def text_of(*names: str) -> str:
    return "\n".join((evidence.DOCS / f"{name}.md").read_text(encoding="utf-8") for name in names)


def value(name: str, column: str, **where: object) -> float:
    """The one value of a file's column where other columns have these values."""
    wanted = {key: str(of) for key, of in where.items()}
    (found,) = (row[column] for row in evidence.read(name) if wanted.items() <= row.items())
    return float(found)


def grid(method: str, layer: str, column: str = "score") -> float:
    return value("grid", column, cell=224, method=method, layer=layer)


def naming(method: str, layer: str, column: str, compared: str = "evidence") -> float:
    return value("naming", column, method=method, layer=layer, compared=compared)


def candidates(pictures: str, chosen: str, column: str = "cells") -> float:
    return value("candidates", column, pictures=pictures, candidates=chosen)


def letters(network: str, method: str, layer: str | None = None, column: str = "share") -> float:
    where: dict[str, object] = {"default": True} if layer is None else {"layer": layer}
    return value("trained", column, task="letters", network=network, method=method, **where)


def dense(network: str, method: str, column: str) -> float:
    return value("dense", column, network=network, method=method, default=True)


def tiles(photos: int, explained: str) -> float:
    return value("tiles", "share", photos=photos, explained=explained)


def passes(by: str, **where: object) -> float:
    return value("cost", "passes", network="vgg16", by=by, **where)


def sufficiency(*columns: str) -> tuple[float, ...]:
    return tuple(value("sufficiency", column, method="contrastive") for column in columns)


def of_the_letters(method: str) -> dict[str, float]:
    """The largest share of a method's maps in each network, at any layer."""
    rows = [row for row in evidence.read("trained") if (row["task"], row["method"]) == ("letters", method)]
    return {
        network: max(float(row["share"]) for row in rows if row["network"] == network)
        for network in evidence.unique(rows, "network")
    }


def equal_area(test: str, method: str, *networks: str) -> tuple[float, ...]:
    networks = networks or REAL
    return tuple(value(test, "equal area", network=network, method=method) for network in networks)


# sentences of docs/evidence.md, and all numbers in them
SENTENCES: dict[str, Callable[[], tuple[float, ...]]] = {
    "contrastive maps have the largest share in both networks: {:.0%} in Lite0 and {:.0%} in Lite1, compared "
    "with {:.0%} and {:.0%} for Grad-CAM": lambda: (
        equal_area("mosaics", "contrastive") + equal_area("mosaics", "grad-cam")
    ),
    "contrastive maps have the smallest share: {:.0%} in Lite0 and {:.0%} in Lite1. "
    "A blob at the center has {:.0%}": lambda: (
        equal_area("objects", "contrastive") + equal_area("objects", "center", BUNDLED)
    ),
    "At the default layer, {:.0%} of the contrastive map is in the correct photo, "
    "compared with {:.0%} of the Grad-CAM map": lambda: (
        grid("contrastive", "features.11"),
        grid("grad-cam", "features.11"),
    ),
    "At `features.16`, the last block, the shares are closer: {:.0%} and {:.0%}": lambda: (
        grid("contrastive", "features.16"),
        grid("grad-cam", "features.16"),
    ),
    "On average, the top {:.0%} of the pixels": lambda: sufficiency("part"),
    "A blob at the center needs {:.0%}, and shuffled cells need {:.0%}": lambda: sufficiency(
        "center", "shuffled"
    ),
    "In strips of 8 photos, tiling puts {:.0%} of the map on the correct photo, "
    "against {:.0%} without tiling": lambda: (tiles(8, "tiles"), tiles(8, "whole")),
    "even an untrained FCOS has {:.0%} of its map in the correct half": lambda: (
        dense("FCOS", "untrained", "share"),
    ),
    "An untrained DETR does not know the place, so its share is {:.0%}": lambda: (
        dense("DETR", "untrained", "share"),
    ),
    **{
        f"| {name} | {{:.0%}} | {{:.0%}} | {{:.0%}} |": (
            lambda network=network: (
                dense(network, "contrastive", "place"),
                dense(network, "untrained", "place"),
                dense(network, "contrastive", "chance"),
            )
        )
        for name, network in (("SSDlite", "SSDlite"), ("a small YOLO11", "YOLO"), ("a small DETR", "DETR"))
    },
    "five classes of each photo at once cost {:.1f} forward passes": lambda: (passes("ebcli", classes=5),),
    "the 12 medians differ by at most {:.0f}% from the middle one": lambda: farthest(""),
}


def strength(network: str, *columns: str, layer: str = "") -> tuple[float, ...]:
    where = {"network": network} | ({"layer": layer} if layer else {})
    return tuple(value("strength", column, **where) for column in columns)


def farthest(way: str) -> tuple[float]:
    return (max(100 * float(row[f"{way}spread"]) for row in evidence.read("strength")),)


def test_numbers_about_strength_are_those_of_the_file() -> None:
    shown = " ".join(text_of("evidence", "reading").split())
    by_default = partial(strength, BUNDLED, layer=DEFAULT_LAYER)
    for sentence, found in (
        ("was clear for {:.0f} of {:.0f} photos", by_default("own, clear", "own, maps")),
        (
            "Of {:.0f} maps of random classes, {:.0f} had clear evidence and {:.0f} hardly any",
            by_default("others, maps", "others, clear", "others, hardly any"),
        ),
        (
            "{:.0f} of {:.0f} maps of random classes were at least",
            by_default("others, at least 3.0", "others, maps"),
        ),
        (
            "If the score is also used, only {:.0f} of the {:.0f} maps have clear",
            by_default("others, clear", "others, maps"),
        ),
        ("this median changed by at most {:.0f}%", farthest("")),
    ):
        assert sentence.format(*found) in shown
    limits = [f"at least {OF_NOISE[1]:.0f}× noise |", "{:g}× to {:.0f}× noise |".format(*OF_NOISE)]
    assert all(
        limit in shown
        for limit in (*limits, f"below {OF_NOISE[0]:g}× noise |", f"{PICTURES} random pictures")
    )


# all percentages of docs/trust.md, and where they are
TRUSTED: dict[str, Callable[[], tuple[float, ...]]] = {
    "{:.0%} of the map is in the photo of the class": lambda: (grid("contrastive", "features.11"),),
    "At the default layer, {:.0%} of the contrastive map and {:.0%} of Grad-CAM's map are in the correct photo of "
    "the four": lambda: (grid("contrastive", "features.11"), grid("grad-cam", "features.11")),
    "the strongest {:.0%} of the pixels": lambda: sufficiency("part"),
    "For {:.0f} of {:.0f} photos, the map needs fewer pixels": lambda: sufficiency("suffices", "photos"),
    "{:.0%} to {:.0%} of the contrastive map is in the half of the requested letter": lambda: (
        min(shares := [letters(network, "contrastive") for network in of_the_letters("contrastive")]),
        max(shares),
    ),
}


def test_the_tables_are_those_of_the_files() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in evidence.PAGES)
    assert evidence.rendered(pages) == pages, "run python -m benchmarks.evidence"
    assert sorted(re.findall(r"<!-- table: (\w+) -->", pages)) == sorted(evidence.TABLES)
    assert all(
        table().count("\n|") > {"rates": 3, "strength": 4, "questions": 4}.get(name, 5)
        for name, table in evidence.TABLES.items()
    )


def test_the_percentages_about_trust_are_those_of_the_files() -> None:
    text = " ".join(text_of("trust").split())
    for sentence, values in TRUSTED.items():
        said = sentence.format(*values())
        assert said in text
        text = text.replace(said, "")
    assert {*re.findall(r"\d+%", text)} == {"25%", "50%"}  # chance


def test_contrastive_maps_have_the_largest_share_in_seven_of_nine_networks_at_their_best_layers() -> None:
    ours = of_the_letters("contrastive")
    others = [
        of_the_letters(method) for method in ("Grad-CAM", "LayerCAM", "gradient x activation", "AttnLRP")
    ]
    behind = {
        network for network, share in ours.items() if any(one.get(network, 0) >= share for one in others)
    }
    assert len(ours) == 9
    assert behind == {"MaxViT", "ViT"}


def test_rates_are_those_of_the_works_of_the_script() -> None:
    works = [(network, f"{megapixels:g}") for network, megapixels, _ in WORKS]
    assert [(row["network"], row["megapixels"]) for row in evidence.read("rates")] == works
    shown = " ".join(text_of("many-photos").split())
    ways = ("eb-saliency photos", "eb-saliency photos --format png", "the network's plain pass alone")
    jpeg, png, plain = (value("photos", "CPU-s per photo", work=way) for way in ways)
    assert f"takes {jpeg:.2f} CPU seconds, or {png:.2f} if the result is written as PNG" in shown
    assert f"The forward pass of the network alone takes only {plain:.2f} CPU seconds" in shown


def test_the_numbers_of_the_text_are_those_of_the_files() -> None:
    text = re.sub(
        r"^```.*?^```$|<!-- table.*?<!-- end -->|\]\(http[^)]*\)", "", text_of("evidence"), flags=_LINES
    )
    text = " ".join(text.split())
    for sentence, values in SENTENCES.items():
        said = sentence.format(*values())
        assert said in text
        text = text.replace(said, "")
    text = text.replace("sections 4.1 and 4.2", "")
    assert {*re.findall(r"\b\d+\.\d+\b|\d+%", text)} <= {*_SETTLED}


def test_the_forward_pass_was_measured_in_the_layout_of_the_map() -> None:
    assert "the layout `channels_last` for both" in " ".join(text_of("evidence").split())
    assert {row["layout"] for row in evidence.read("cost")} == {"channels_last"}


def test_limits_of_shares_are_multiples_of_the_largest_of_a_word_in_a_blank_picture() -> None:
    rows = [
        row for row in evidence.read("words") if row["pictures"] == "blank" and row["word"].isidentifier()
    ]
    rows += [row for row in evidence.read("words") if row["pictures"] == "blank" and " " in row["word"]]
    largest = max(float(row["joint, largest"]) for row in rows if row["word"] != "end")
    assert [round(limit / round(largest, 2)) for limit in _OF_WORD] == [2, 5]
    text = " ".join(text_of("ask").split())
    assert f"no word had a share above {largest:.0%}" in text
    assert f"*weak* below {_OF_WORD[1]:.0%} (5 × {largest:.0%})" in text
    assert f"*hardly any* below {_OF_WORD[0]:.0%} (2 × {largest:.0%})" in text


def test_the_percentages_about_the_joint_rule_are_those_of_the_files() -> None:
    stepwise, joint = (
        [letters(name, method) for name in ("ViT", "ConvNeXt", "Swin")] for method in (STEPWISE, JOINT)
    )
    vit, convnext, swin = (f"from {a:.0%} to {b:.0%}" for a, b in zip(stepwise, joint, strict=True))
    said = f"rose {vit} in a ViT and {convnext} in ConvNeXt. The share fell {swin} in Swin"
    assert said in " ".join(text_of("method").split())


def test_the_readme_says_what_the_files_say() -> None:
    readme = " ".join((evidence.DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    (center,) = {*equal_area("objects", "center")}
    contrastive, cam = grid("contrastive", "features.11"), grid("grad-cam", "features.11")
    assert f"a blob at the center of the photo has {center:.0%}" in readme
    assert f"{contrastive:.0%} of the contrastive map is in the correct photo" in readme
    assert f"and {cam:.0%} of the Grad-CAM map" in readme
    trust = " ".join(text_of("trust").split())
    assert f"{contrastive:.0%} of the contrastive map and {cam:.0%} of Grad-CAM's map" in trust


def test_what_pages_say_in_words_holds() -> None:
    """What the tables have as numbers."""
    contrastive, object_map = (
        value("sufficiency", "part", method=name) for name in ("contrastive", "object")
    )
    assert object_map < contrastive
    assert all(strength(network, "own, median") < (1.5,) for network in ("ViT", "ConvNeXt"))
    cam, ours = (letters("ConvNeXt", method, "features.5") for method in ("Grad-CAM", "contrastive"))
    assert cam > ours
    ours, cam = (grid(method, "features.16", "equal area") for method in ("contrastive", "grad-cam"))
    assert abs(ours - cam) < 0.03
    names, correct = ("clear", "clear cells")
    ours, cam = ("contrastive", "features.11"), ("grad-cam", "features.16")
    assert naming(*ours, names) < naming(*cam, names)
    assert naming(*ours, correct) > naming(*cam, correct)
    assert candidates("four", "windows") > candidates("four", "photo")
    assert candidates("one", "windows", "named right") < candidates("one", "photo", "named right")


@pytest.mark.parametrize("network", REAL)
def test_what_pages_say_of_the_best_layers_holds(network: str) -> None:
    rows = {
        test: {row["method"]: row for row in evidence.read(test) if row["network"] == network}
        for test in ("mosaics", "objects")
    }
    apart, cover = (
        {method: float(row["equal area"]) for method, row in rows[test].items()}
        for test in ("mosaics", "objects")
    )
    assert max(apart, key=apart.__getitem__) == "contrastive"
    ours, cam = (rows["mosaics"][method] for method in ("contrastive", "grad-cam"))
    overlap = float(ours["equal area, 95% low"]) <= float(cam["equal area, 95% high"])
    assert overlap == (network == BUNDLED)
    assert max(apart["marginal"], apart["gradient"]) < apart["object"] - 0.2
    assert sorted(cover, key=cover.__getitem__)[:2] == ["random", "contrastive"]
    assert cover["center"] > cover["contrastive"]
    assert max(cover, key=cover.__getitem__) == "marginal"
    assert abs(cover["object"] - cover["grad-cam"]) < 0.03
    assert {row["photos"] for row in rows["objects"].values()} == {"11"}


@pytest.mark.release
@pytest.mark.parametrize("module", MODULES)
def test_the_commands_that_pages_write_run(module: str) -> None:
    subprocess.run([sys.executable, "-m", module, "-h"], cwd=evidence.DOCS.parent, check=True)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_linked_and_says_when_it_was_measured(name: str) -> None:
    assert f"(evidence/{name}.csv)" in text_of("evidence")
    scripts = text_of("evidence").partition("## Scripts")[2]
    assert name == "rules" or re.search(rf"\b{name}\b", scripts), "which script writes it?"
    assert all(re.fullmatch(r"20\d\d-[01]\d", row["date"]) and row["torch"] for row in evidence.read(name))
