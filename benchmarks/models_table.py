"""Run Excitation Backprop on every supported network and write docs/models.md.

    python benchmarks/models_table.py                    # all networks: an hour, 14 GB of memory
    python benchmarks/models_table.py --only 'resnet*'   # some; can be repeated
    python benchmarks/models_table.py --only nothing     # write the table again

Measurements are kept in a JSON lines file (``--cache``), so that an interrupted run can be resumed. The table has a row
for each line. ``--again`` repeats measurements.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import platform
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/helpers"))

import library_models  # noqa: E402
import zoo  # noqa: E402

from ebcli.eb.registry import RULES  # noqa: E402

KINDS = {
    "Classifiers": zoo.CLASSIFIERS,
    "Video": zoo.VIDEO,
    "Segmentation": zoo.SEGMENTATION,
    "Detection": zoo.DETECTORS,
    "timm": list(library_models.TIMM),
    "Hugging Face": list(library_models.HUGGING_FACE),
}

INTRODUCTION = """\
# Supported networks

These tables list every torchvision network, by task: classification, video, segmentation and detection. All were run.
They also list one or a few networks per tested family of timm and Hugging Face; [Your own networks](own-models.md)
shows how to name them. Those of Hugging Face are small, for images of 64 pixels, with the configurations in
`tests/helpers/library_models.py`. `benchmarks/models_table.py` writes this page, and `tests/models/test_zoo.py`,
`test_detector_zoo.py` and `test_libraries.py` check it.

The weights are random, chosen so that every rule is exercised: batch norms have statistics and scales of both signs,
and layer scales and classifiers are not torchvision's initial zeros. The masses therefore do not describe trained
networks, but show where probability can be lost.

- *Default layer*: the layer used without `--layer`.
- *Rules*: a letter for the set of excitation rules, explained below the tables.
- *Mass*: the sum of the marginal map of the most likely class (in segmentation, of one pixel's class; in detection, of
  one detection in a small image). The rest is lost at neurons activated without an excitatory input. Most are in
  depthwise convolutions, which have few inputs (MobileNet, MNASNet, EfficientNet, ShuffleNet, MaxViT; rarely in
  ResNeXt's narrow groups). In vision transformers, the class token, a parameter that attention reads, takes some. Swin
  and ConvNeXt lose some where the image does not fill their windows or kernels. Without biases, batch norm shifts,
  class tokens and position embeddings, every network has a mass of 1.
- *Seconds*: CPU time of one thread for a marginal / a contrastive map of one input, forward pass included, on
  {machine}; PyTorch {torch}, torchvision {torchvision}, timm {timm}, transformers {transformers}.
- *Same logits*: whether the output is bit-identical to that of the plain network with gradients enabled. Without
  gradients, PyTorch computes multi-head attention differently, with different rounding.
"""


def measure(name: str) -> dict[str, Any]:
    """One row: marginal and contrastive maps at the default layer and at the input."""
    specimen = library_models.full(name) if "/" in name else zoo.full(name)
    row: dict[str, Any] = {"name": name, "input": list(specimen.inputs.shape[2:]), "layer": specimen.layer}
    row["parameters"] = sum(parameter.numel() for parameter in specimen.net.parameters())
    plain, same, used = specimen.forward(), True, set()
    for place, layer in (("layer", specimen.layer), ("input", None)):
        for kind in ("marginal", "contrastive"):
            with _recorded() as rules:
                start = time.process_time()
                result = specimen.excite(layer, contrastive=kind == "contrastive")
                row[f"seconds {place} {kind}"] = time.process_time() - start
            used |= rules
            same &= torch.equal(result.logits, plain)
            relevance = result.relevance
            if not relevance.isfinite().all() or (kind == "marginal" and (relevance < 0).any()):
                raise AssertionError(f"{name}: {kind} relevance at {layer or 'the input'} is not finite or below zero")
            if kind == "contrastive":
                row[f"positive {place}"] = relevance.clamp(min=0).sum().item()
            row[f"mass {place}"] = result.mass.item()
            row[f"map {place}"] = list(result.maps.shape[1:])
            del result, relevance
    return {**row, "rules": sorted(used), "same logits": same}


@contextmanager
def _recorded() -> Iterator[set[str]]:
    """Record the names of the rules used inside."""
    used: set[str] = set()
    before = dict(RULES)

    def watched(rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def watch(*args: Any, **kwargs: Any) -> Any:
            value = rule(*args, **kwargs)
            if value is not NotImplemented:
                used.add(rule.__name__)
            return value

        return watch

    RULES.update({function: watched(rule) for function, rule in before.items()})
    try:
        yield used
    finally:
        RULES.update(before)


def table(rows: dict[str, dict[str, Any]], machine: str) -> str:
    """The text of docs/models.md."""
    letters: dict[tuple[str, ...], str] = {}
    releases = {module.__name__: _release(module) for module in (torch, torchvision, timm, transformers)}
    page = [INTRODUCTION.format(machine=machine, **releases)]
    head = (
        "| network | input | default layer | rules | mass there | mass at the input "
        "| seconds to there | seconds to the input | same logits |"
    )
    for kind, names in KINDS.items():
        page += [f"## {kind}\n", head, "|---|---|---|---|--:|--:|--:|--:|---|"]
        for row in (rows[name] for name in names if name in rows):
            letter = letters.setdefault(tuple(row["rules"]), _letter(len(letters)))
            seconds = [
                " / ".join(f"{row[f'seconds {place} {kind}']:.2g}" for kind in ("marginal", "contrastive"))
                for place in ("layer", "input")
            ]
            cells = [
                f"`{row['name']}`",
                "×".join(map(str, row["input"])),
                f"`{row['layer']}`",
                letter,
                *(f"{row[f'mass {place}']:.4f}" for place in ("layer", "input")),
                *seconds,
                "yes" if row["same logits"] else "no",
            ]
            page.append(f"| {' | '.join(cells)} |")
        page.append("")
    page.append("## Rules\n")
    page.append("Rules are named after their functions in `ebcli/eb/rules/`.\n")
    common = functools.reduce(lambda a, b: a & b, (set(rules) for rules in letters), next(map(set, letters), set()))
    if common:
        page.append(f"- All networks: {_named(common)}")
    page += [f"- {letter}: {_named(set(rules) - common) or 'no others'}" for rules, letter in letters.items()]
    return "\n".join(page) + "\n"


def _named(rules: set[str]) -> str:
    return ", ".join(f"`{rule}`" for rule in sorted(rules))


def _letter(index: int) -> str:
    return string.ascii_uppercase[index % 26] * (index // 26 + 1)


def _release(module: Any) -> str:
    return module.__version__.partition("+")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="PATTERN", help="networks to measure, such as 'resnet*'")
    parser.add_argument("--again", action="store_true", help="measure again what the cache holds")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "models_table.jsonl"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "models.md")
    parser.add_argument(
        "--machine", default=f"a {platform.machine()} processor", help="description of the machine, for the page"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = {} if options.again else _read(options.cache)
    patterns = options.only or ["*"]
    chosen = [name for names in KINDS.values() for name in names if any(fnmatch(name, p) for p in patterns)]
    zoo.small("resnet18").excite(None)  # a warm-up, so that the first network is not charged for it
    for name in chosen:
        if name in known:
            continue
        row = measure(name)
        gc.collect()
        with options.cache.open("a", encoding="utf-8") as cache:
            cache.write(json.dumps(row) + "\n")
        print(
            f"{name}: mass {row['mass layer']:.4f} at {row['layer']}, {row['mass input']:.4f} at the input, "
            f"{row['seconds input contrastive']:.1f} s, same logits: {row['same logits']}",
            flush=True,
        )
    rows = _read(options.cache)
    options.output.write_text(table(rows, options.machine), encoding="utf-8")
    missing = [name for names in KINDS.values() for name in names if name not in rows]
    print(f"{options.output}: {len(rows)} networks" + (f", without {', '.join(missing)}" if missing else ""))


def _read(cache: Path) -> dict[str, dict[str, Any]]:
    """The latest measurement of each network."""
    if not cache.exists():
        return {}
    return {row["name"]: row for row in map(json.loads, cache.read_text(encoding="utf-8").splitlines())}


if __name__ == "__main__":
    main()
