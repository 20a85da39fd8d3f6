"""The files of figures in docs/evidence, and the tables that pages make of them.

    python -m benchmarks.evidence    # write the tables again

Each of the other scripts here writes its own file, and then the tables. A figure has the month and the version
of PyTorch that it was measured with.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER = DOCS / "evidence"
PAGES = (DOCS.parent / "README.md", DOCS / "evidence.md", DOCS / "many-photos.md")
Row = dict[str, Any]  # of strings, once it is read

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_METHODS = ("contrastive", "marginal", "grad-cam", "gradient-x-input", "random")
_FITS = {"pairs": "pairs", "off center": "one photo, off center"}


def read(name: str) -> list[Row]:
    """The rows of a file."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write(name: str, rows: Sequence[Row]) -> None:
    """Write a file, and the tables of the pages."""
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    write_tables()


def write_tables() -> None:
    """Write the tables of the pages as the files have them."""
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")


def update(name: str, rows: Sequence[Row], key: Sequence[str]) -> None:
    """Write a file in which these rows replace earlier ones of the same key, and take their place."""
    kept = read(name) if (FOLDER / f"{name}.csv").exists() else []
    new = {tuple(str(row[part]) for part in key) for row in rows}
    found = [tuple(row[part] for part in key) in new for row in kept]
    start = found.index(True) if any(found) else len(kept)
    rest = [row for row, is_new in zip(kept[start:], found[start:], strict=True) if not is_new]
    write(name, [*kept[:start], *rows, *rest])


def stamp() -> Row:
    """The columns that say when a figure was measured, and with which version of PyTorch."""
    import torch

    return {"date": f"{datetime.now(UTC):%Y-%m}", "torch": torch.__version__.partition("+")[0]}


def figures(network: str, rows: Iterable[Row], **more: object) -> list[Row]:
    """Rows for a file: the network first, numbers with three digits, intervals as two columns, and the stamp."""
    return [{"network": network, **more, **_columns(row), **stamp()} for row in rows]


def _columns(row: Row) -> Row:
    columns: Row = {}
    for key, value in row.items():
        if isinstance(value, list):
            columns |= {f"{key} low": f"{value[0]:.3f}", f"{key} high": f"{value[1]:.3f}"}
        elif isinstance(value, float):
            columns[key] = f"{value:.3f}"
        else:
            columns[key] = value
    return columns


def rendered(page: str) -> str:
    """The page with its tables as the files have them."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", page)


def percent(share: str) -> str:
    """A share from 0 to 1 as a percentage."""
    return f"{float(share):.0%}" if share else ""


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]], texts: int) -> str:
    """A table whose first columns, so many, are texts."""
    rule = "|---" * texts + "|--:" * (len(heads) - texts) + "|"
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def layers() -> str:
    """Of each family, share and hits at its layers from the first to the last; the default is bold."""
    rows = [row for row in read("trained") if (row["task"], row["method"]) == ("letters", "contrastive")]
    rows = [row for row in rows if row["layer"] != "input"]
    by_network = {name: [row for row in rows if row["network"] == name] for name in unique(rows, "network")}
    most = max(map(len, by_network.values()))

    def cell(row: Row) -> str:
        found = f"{percent(row['share'])}, {percent(row['hits'])}"
        return f"**{found}**" if row["default"] == "True" else found

    lines = []
    for network, found in by_network.items():
        cells = [cell(row) for row in found]
        default = next(row["layer"] for row in found if row["default"] == "True")
        lines.append([network, f"`{default}`", *cells, *[""] * (most - len(cells))])
    return markdown(["network", "default", *map(str, range(1, most + 1))], lines, 2)


def fits() -> str:
    """For each way to fit an image, share and hits among five for the pictures with something to miss."""
    rows = read("fits")
    kinds = [kind for kind in unique(rows, "pictures") if kind.startswith(tuple(_FITS))]
    lines = []
    for fit in unique(rows, "fit"):
        found = {row["pictures"]: row for row in rows if row["fit"] == fit}
        lines.append(
            [fit, *(f"{percent(found[kind]['share'])}, {percent(found[kind]['top 5'])}" for kind in kinds)]
        )
    heads = [
        next(kind.replace(short, long, 1) for short, long in _FITS.items() if short in kind) for kind in kinds
    ]
    return markdown(["fit", *heads], lines, 1)


def faithfulness() -> str:
    """For each method: mosaics at the default layer and the last block, insertion, deletion, randomized weights."""
    grid = [row for row in read("grid") if row["cell"] == "224"]
    curves, randomized = read("perturbation"), read("randomization")
    layer = curves[0]["layer"]
    last = max((row for row in grid if row["stride"]), key=lambda row: int(row["stride"]))["layer"]
    first, whole = (pick(int(row["randomized"]) for row in randomized) for pick in (min, max))
    lines = []
    for method in _METHODS:
        cells = ["chance" if method == "random" else method]
        for where in (layer, last):
            (found,) = (row for row in grid if row["method"] == method and row["layer"] in (where, "-"))
            cells += [percent(found["score"]), percent(found["equal area"])]
        for kind in ("insertion", "deletion"):
            gains = [float(row["gain"]) for row in curves if (row["method"], row["kind"]) == (method, kind)]
            cells.append(f"{fmean(gains):.3f}" if gains else "0")
        for count in (first, whole):
            alike = [row for row in randomized if row["method"] == method and int(row["randomized"]) == count]
            cells.append(alike[0]["rank correlation"] if alike else "0")
        lines.append(cells)
    heads = ["method"]
    for where in (layer, last):
        heads += [f"share in mosaics, `{where}`", f"equal area, `{where}`"]
    counts = (f"{first} of {whole}", "all")
    heads += [f"{kind} gain, `{layer}`" for kind in ("insertion", "deletion")]
    heads += [f"{count} layers randomized, `{layer}`" for count in counts]
    return markdown(heads, lines, 1)


def questions() -> str:
    """For each question and network, the equal area of methods at their best layers."""
    tests = {"*Which class?* One of four photos": "mosaics", "*Where is it?* The box of an object": "objects"}
    methods = ("contrastive", "object", "marginal", "grad-cam", "gradient", "random")
    lines = []
    for question, name in tests.items():
        rows = read(name)
        for network in unique(rows, "network"):
            shares = {row["method"]: percent(row["equal area"]) for row in rows if row["network"] == network}
            lines.append([question, network, *(shares[method] for method in methods)])
    heads = ["question", "network", *(method.replace("random", "chance") for method in methods)]
    return markdown(heads, lines, 2)


def objects() -> str:
    """For each network and method, at the method's best layer: how well the maps cover objects, with intervals."""
    return _at_best_layers("objects", {"equal area": _percents, "best IoU": _decimals})


def mosaics() -> str:
    """The same for mosaics: equal area with its interval, and the share of the map in the right photo."""
    return _at_best_layers(
        "mosaics", {"equal area": _percents, "score": lambda row, _: percent(row["score"])}
    )


def _at_best_layers(name: str, columns: dict[str, Callable[[Row, str], str]]) -> str:
    lines = []
    for row in read(name):
        layer = "" if row["layer"] == "-" else f"`{row['layer']}`"
        method = "chance" if row["method"] == "random" else row["method"]
        cells = [cell(row, column) for column, cell in columns.items()]
        lines.append([row["network"], method, layer, *cells])
    heads = ["share of the map" if column == "score" else column for column in columns]
    return markdown(["network", "method", "best layer", *heads], lines, 3)


def _percents(row: Row, column: str) -> str:
    """A share with its interval."""
    low, high = (percent(row[f"{column}, 95% {end}"]) for end in ("low", "high"))
    return f"{percent(row[column])} ({low} to {high})"


def _decimals(row: Row, column: str) -> str:
    """A number with its interval."""
    value, low, high = (float(row[name]) for name in (column, f"{column}, 95% low", f"{column}, 95% high"))
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def naming() -> str:
    """For each method and layer: the cells and photos of mosaics that are named right."""
    lines = []
    for row in read("naming"):
        layer = "" if row["layer"] == "-" else f"`{row['layer']}`"
        compared = "as it is" if row["compared"] == "plain" else row["compared"]
        method = "chance" if row["method"] == "random" else row["method"]
        shares = (percent(row[name]) for name in ("clear cells", "clear", "all cells", "images"))
        lines.append([method, layer, compared, *shares])
    heads = ["method", "layer", "compared", "named cells right", "named cells", "all cells right"]
    return markdown([*heads, "photos right"], lines, 3)


def candidates() -> str:
    """For each kind of picture: what an atlas names right, by how the compared classes are chosen."""
    lines = []
    for row in read("candidates"):
        shares = (percent(row[name]) for name in ("listed", "cells", "named", "named right", "centers"))
        lines.append([row["pictures"], row["candidates"], f"{float(row['classes']):.0f}", *shares])
    heads = ["photos in a picture", "candidates", "classes", "photos among them", "all cells right"]
    return markdown([*heads, "named cells", "named cells right", "centers right"], lines, 2)


def sufficiency() -> str:
    """For each method: the part of a photo that suffices, likewise shuffled, and what is left of the score without."""
    rows = read("sufficiency")
    heads = [
        "method",
        "layer",
        "part that suffices",
        "of a blob at the center",
        "in random order",
        "score left without it",
        "maps that suffice",
    ]
    lines = [
        [
            row["method"],
            "" if row["layer"] == "-" else f"`{row['layer']}`",
            *(percent(row[name]) for name in ("part", "center", "shuffled", "left")),
            f"{row['suffices']} of {row['photos']}",
        ]
        for row in rows
    ]
    return markdown(heads, lines, 2)


def strength() -> str:
    """For each network, the strength of noise, and what is said about maps of classes that are shown and of others."""
    lines = []
    for row in read("strength"):
        lines.append([row["network"], f"`{row['layer']}`", row["noise, 50%"], f"{float(row['spread']):.0%}"])
        for kind in ("own", "others"):
            alone = [
                f"{int(row[f'{kind}, at least {limit}']) / int(row[f'{kind}, maps']):.0%}"
                for limit in (1.5, 3.0)
            ]
            said = [row[f"{kind}, {word}"] for word in ("clear", "weak", "hardly any")]
            lines[-1] += [
                f"{row[f'{kind}, median']}×",
                *alone,
                " / ".join(said) if any(map(int, said)) else "–",
            ]
    kinds = ("own: median", "1.5×", "3×", "evidence", "others: median", "1.5×", "3×", "evidence")
    return markdown(["network", "layer", "1× noise", "spread", *kinds], lines, 2)


def best() -> str:
    """The letters: the share of each method's map in the right half, at the layer that suits the method best."""
    methods = ("contrastive", "Grad-CAM", "LayerCAM", "gradient x activation", "AttnLRP")
    rows = [row for row in read("trained") if row["task"] == "letters"]
    lines = []
    for network in dict.fromkeys(row["network"] for row in rows):
        cells = [network]
        for method in methods:
            found = [row for row in rows if (row["network"], row["method"]) == (network, method)]
            most = max(found, key=lambda row: float(row["share"]), default=None)
            cells.append("" if most is None else f"{float(most['share']):.1%}, `{most['layer']}`")
        lines.append(cells)
    return markdown(["network", *methods], lines, 6)


def trained() -> str:
    """The default layers of all networks: the share of each method's map in the right half."""
    methods = ("contrastive", "marginal", "Grad-CAM", "gradient x activation", "AttnLRP")
    rows = [row for row in (*read("trained"), *read("dense")) if row["default"] == "True"]
    rows = [row for row in rows if row["task"] != "textures"]
    lines = []
    for task, network in dict.fromkeys((row["task"], row["network"]) for row in rows):
        found = {row["method"]: row for row in rows if (row["task"], row["network"]) == (task, network)}
        rule = found["contrastive"]["rule"]
        shown = [found.get(method) for method in methods]
        cells = [percent(row["share"]) if row and row["rule"] in ("", rule) else "" for row in shown]
        lines.append([task, network, f"`{found['contrastive']['layer']}`", rule, *cells])
    return markdown(["task", "network", "layer", "rule", *methods], lines, 4)


def sentences() -> str:
    """For each method, at the layer that is best for it: the share of a word's map in the half of its letter."""
    rows = [row for row in read("sentences") if row["layer"] != "input"]
    kinds, lines = unique(rows, "word"), []
    for method in unique(rows, "method"):
        by_layer: dict[str, list[Row]] = {}
        for row in rows:
            if row["method"] == method:
                by_layer.setdefault(row["layer"], []).append(row)
        best = max(by_layer, key=lambda layer: fmean(float(row["share"]) for row in by_layer[layer]))
        lines.append(
            [
                method,
                by_layer[best][0]["rule"],
                f"`{best}`",
                *(percent(row["share"]) for row in by_layer[best]),
            ]
        )
    return markdown(["method", "rule", "best layer", *kinds], lines, 3)


def entries() -> str:
    """For each way in which a photo enters a vision-language model: where the maps of colors lie, and shares."""
    columns = ("share", "disc", "colors", "grammar")
    rows = read("entries")
    lines = [[row["entry"], row["network"], *(percent(row[column]) for column in columns)] for row in rows]
    heads = [
        "entry",
        "network",
        "in the half",
        "on the disc",
        "from the photo: colors",
        "from the photo: *of*",
    ]
    return markdown(heads, lines, 2)


def words() -> str:
    """For each kind of word, its probabilities, and the share of its evidence that is in the picture."""
    rows = read("words")
    kinds, lines = unique(rows, "pictures"), []
    for word in unique(rows, "word"):
        found = {row["pictures"]: row for row in rows if row["word"] == word}
        read_from = found[kinds[0]]
        probabilities = (
            read_from["probability"],
            read_from["without the picture"],
            read_from["joint, whole tokens"],
        )
        shares = (*(found[kind]["joint"] for kind in kinds), found[kinds[-1]]["joint, largest"])
        cells = [*map(percent, (*probabilities, *shares))]
        lines.append([f"`{word}`" if len(word) == 1 or word == "of" else word, *cells])
    heads = ["word", "probability", "without the picture", "mass, whole tokens"]
    return markdown([*heads, *(f"share, {kind}" for kind in kinds), f"share, {kinds[-1]}, largest"], lines, 1)


def cost() -> str:
    """Forward passes of contrastive maps of one class at the default layers, and of one at the pixels."""
    rows = [row for row in read("cost") if (row["map"], row["classes"]) == ("contrastive", "1")]
    lines = []
    keys = ("network", "layer", "rule", "batch")
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in rows):
        found = [row for row in rows if tuple(row[name] for name in keys) == key]
        network, layer, rule, batch = key
        lines.append(
            [network, f"`{layer}`", rule, batch, extent(row["passes"] for row in found), found[0]["bound"]]
        )
    return markdown(["network", "layer", "rule", "batch", "forward passes", "multiplications"], lines, 3)


def rates() -> str:
    """Photos per hour of the command."""
    heads = ["network", "megapixels", "CPUs", "photos per hour"]
    return markdown(heads, [[row[head] for head in heads] for row in read("rates")], 1)


def extent(values: Iterable[str]) -> str:
    """The smallest and the largest."""
    low, *_, high = [*sorted(values, key=float)] * 2
    return low if low == high else f"{low} to {high}"


def unique(rows: Iterable[Row], column: str) -> list[str]:
    """The values of a column, each once."""
    return list(dict.fromkeys(row[column] for row in rows))


TABLES: dict[str, Callable[[], str]] = {
    one.__name__: one
    for one in (
        layers,
        fits,
        faithfulness,
        questions,
        objects,
        mosaics,
        naming,
        candidates,
        sufficiency,
        strength,
        best,
        trained,
        sentences,
        words,
        entries,
        cost,
        rates,
    )
}


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    write_tables()


if __name__ == "__main__":
    main()
