"""Train detectors, segmentation networks and video classifiers, and write how their maps score into docs/trained.md.

python -m benchmarks.trained.dense                  # half an hour on one processor the first time
python -m benchmarks.trained.dense FCOS LRASPP --output some.md
"""

from __future__ import annotations

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import ebcli

from .dense_maps import DEFAULT, EXCITATION, LAYERS, Share, maps, questions, share
from .dense_networks import DETECTORS, SEGMENTATION, VIDEO
from .dense_training import NETWORKS, accuracy, trained
from .page import with_section
from .training import CACHE, ROOT

PICTURES = 16  # of two letters each
METHODS = (*EXCITATION, "Grad-CAM", "gradient x activation", "untrained")
NUMBERS = (
    "The first number is the share of the map's positive part in the asked letter's half of the scene, and the second "
    "one that in the cells of the layer that the letter's pixels touch; *chance* is their share of all cells. Letters "
    "that the network did not find are left out, and so are layers that no probability passes in "
    "most of the questions. *Untrained*: the contrastive map of the network with random weights, in the same place."
)
SECTIONS = {
    "Detectors": (
        DETECTORS,
        "Torchvision's own classes with small backbones, asked for the two letters of a scene, each at the anchor, "
        "location or proposal of its detection. *Accuracy* is the share of letters that are found with the right "
        f"class, at a score of at least 0.5.\n\n{NUMBERS} Much of the position is already in the anchor, whose "
        "receptive field is small: its map is on the letter even before training.",
    ),
    "Segmentation": (
        SEGMENTATION,
        "Asked for the two letters of a scene, each on the pixels where the network predicts it. *Accuracy* is the "
        f"intersection over union of the predicted letters.\n\n{NUMBERS}",
    ),
    "Video": (
        VIDEO,
        "Clips of 8 frames with one letter that moves in the first half of the frames, and another one in the second "
        "half, at places that may overlap. *Accuracy* is the share of letters that are among the two likeliest classes."
        f"\n\n{NUMBERS.replace('half of the scene', 'frames').replace('pixels touch', 'box touches')} The box moves, "
        "and exists in these frames only.",
    ),
}


def measured(name: str, count: int, cache: Path) -> list[str]:
    """The rows of a network's table."""
    net = trained(name, cache)
    layers: list[str | None] = [None, *LAYERS[name]]
    untrained = _untrained(name)
    shares: dict[tuple[str | None, str], list[Share]] = defaultdict(list)
    asked = 0
    for asked, question in enumerate(questions(name, net, count), 1):  # noqa: B007
        found_by = maps(question, layers)
        if untrained is not None:
            found_by["untrained"] = maps(replace(question, net=untrained), layers, ["contrastive"])["contrastive"]
        for method, by_layer in found_by.items():
            for layer, found in by_layer.items():
                shares[layer, method].append(share(found, question))
    start = f"| {name} | {accuracy(name, net):.2f} | {asked} |"
    rows = []
    for layer in layers:
        label = f"{layer} (default)" if layer == DEFAULT[name] else layer or "input"
        cells = [_cell(shares[layer, method]) for method in METHODS]
        if 2 * sum(one.half == 0 for one in shares[layer, "marginal"]) > asked:
            continue  # no probability passes here
        chance = _mean(shares[layer, METHODS[0]], "chance")
        rows.append(f"{start} {label} | {chance:.2f} | " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    return [f"| network | accuracy | questions | layer | chance | {' | '.join(METHODS)} |", *rows]


def wrapped(text: str) -> str:
    """Paragraphs in lines of 120 characters."""
    return "\n\n".join(textwrap.fill(paragraph, 120) for paragraph in text.split("\n\n"))


def _untrained(name: str) -> nn.Module | None:
    """A network with random weights; None where they choose other places (proposals)."""
    torch.manual_seed(1)
    net = NETWORKS[name]().eval()
    if hasattr(net, "roi_heads"):
        return None
    return ebcli.DetectionScores(net) if name in DETECTORS else net


def _cell(shares: Sequence[Share]) -> str:
    if not shares:
        return ""
    return f"{_mean(shares, 'half'):.3f} / {_mean(shares, 'place'):.3f}"


def _mean(shares: Sequence[Share], what: str) -> float:
    return sum(getattr(one, what) for one in shares) / len(shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures of two letters each")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "trained.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    page = options.output.read_text(encoding="utf-8") if options.output.exists() else ""
    for heading, (kind, text) in SECTIONS.items():
        tables = [measured(name, options.count, options.cache) for name in options.names if name in kind]
        if tables:
            head = tables[0][0]
            line = "|---" * head.count(" | ") + "|---|"
            rows = "\n".join([head, line, *(row for table in tables for row in table[1:])])
            page = with_section(page, heading, f"{wrapped(text)}\n\n{rows}")
    options.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
