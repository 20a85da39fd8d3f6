"""Excitation Backprop through one network of each family of transformers' tasks: docs/networks/transformers.csv.

    python -m benchmarks.task_table      # two minutes

The networks are small and have random weights. They are saved as those on the hub are, loaded as by the command, and
explained at the default layer and down to the input.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import torch

import ebcli
from ebcli.models import default_layer, load_model
from ebcli.run import tasks  # noqa: F401 - registers them
from ebcli.run.tasks.task import REGISTRY

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/helpers"))

import task_models  # noqa: E402

TABLE = ROOT / "docs/networks/transformers.csv"
WHERE = {"segmentation": (3, 5), "detection": (2,)}  # a pixel, a query
COLUMNS = "family task input default_layer rule mass_there mass_at_input same_logits".split()


def measure(name: str, folder: Path) -> dict[str, str]:
    """One row."""
    texts = task_models.TEXTS if name in task_models.WITH_TEXTS else None
    loaded = load_model(f"hf/{task_models.saved(name, folder)}", class_names=texts)
    torch.manual_seed(1)
    inputs = torch.randn(1, 3, *loaded.transforms.shape)
    layer, joint = default_layer(loaded), REGISTRY[loaded.task].joint
    there, at_input = ebcli.excitation_backprop(
        loaded.net, inputs, 1, [layer, None], joint=joint, where=WHERE.get(loaded.task)
    )
    with torch.no_grad():
        plain = loaded.net(inputs)
    logits = plain.logits if isinstance(plain, ebcli.Candidates) else plain
    values = (
        name,
        loaded.task,
        "x".join(map(str, inputs.shape[2:])),
        layer,
        "jointly" if there.joint else "step by step",
        *(f"{found.mass.item():.4f}" for found in (there, at_input)),
        "yes" if torch.equal(there.logits, logits) else "no",
    )
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, Path(folder)) for name in task_models.NETWORKS]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
