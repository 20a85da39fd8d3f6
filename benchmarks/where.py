"""Profile contrastive maps, by network and kind of operation.

    python benchmarks/where.py                 # one network per family
    python benchmarks/where.py vgg16 resnet50

Shares of the time of one call of ``excitation_backprop`` at the default layer, from PyTorch's profiler. The last column
is a plain forward pass relative to the whole.
"""

from __future__ import annotations

import argparse
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

import ebcli

FAMILIES = (
    *("vgg16", "resnet50", "densenet121", "efficientnet_lite0", "mobilenet_v3_large"),
    *("convnext_tiny", "swin_t", "vit_b_16"),
)
KINDS = {
    "convolutions down": ("convolution_backward",),
    "convolutions up": ("convolution",),
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "scaled_dot_product", "attention"),
    "moving and copying": ("copy_", "cat", "fill_", "zero_", "index", "roll", "gather"),
    "pooling and norms": ("pool", "norm"),
}
ELEMENTWISE = "element by element"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=FAMILIES)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kinds = [*KINDS, ELEMENTWISE]
    print(
        "| network | layer | "
        + " | ".join(kinds)
        + " | forward pass alone |\n"
        + "|---|---|"
        + "--:|" * (len(kinds) + 1)
    )
    for model in options.models:
        layer, shares, forward = profiled(model, options.batch)
        cells = [f"{shares[kind]:.0%}" for kind in kinds]
        print(f"| {model} | `{layer}` | " + " | ".join(cells) + f" | {forward:.0%} |", flush=True)


def profiled(model: str, batch: int) -> tuple[str, dict[str, float], float]:
    """The layer, the share of each kind of operation, and a forward pass relative to the whole."""
    loaded = ebcli.load_model(model, weights="DEFAULT" if model == "efficientnet_lite0" else "none")
    net = loaded.net.to(memory_format=torch.channels_last)
    images, layer = torch.randn(batch, 3, 224, 224), ebcli.default_layer(loaded)

    def forward() -> None:
        with torch.inference_mode():
            net(images)

    def explain() -> None:
        ebcli.excitation_backprop(net, images, 1, layer, contrastive=True)

    times = []
    for work in (forward, explain):
        work()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            work()
        times.append(Counter({e.key: e.self_cpu_time_total for e in profiler.key_averages()}))
    whole = times[1].total()
    shares: Counter[str] = Counter()
    for name, time in times[1].items():
        fitting = (kind for kind, words in KINDS.items() if any(word in name for word in words))
        shares[next(fitting, ELEMENTWISE)] += time / whole
    return layer, shares, times[0].total() / whole


if __name__ == "__main__":
    main()
