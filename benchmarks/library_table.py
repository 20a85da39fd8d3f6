"""Excitation Backprop through one network of each family of timm: docs/networks/timm.csv.

    python -m benchmarks.library_table                   # all families: half an hour, 4 GB of memory
    python -m benchmarks.library_table --only 'swin*'    # a few; may be given several times
    python -m benchmarks.library_table --only nothing    # write the table again

Results are kept in a JSON lines file (``--cache``), so an interrupted run resumes. ``--again`` ignores it. The networks
have random weights and inputs as small as they take, and are explained down to the input.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import signal
import sys
import tempfile
import warnings
from fnmatch import fnmatch
from pathlib import Path
from types import FrameType

import timm
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/helpers"))

import zoo  # noqa: E402

from ebcli.errors import EbcliError  # noqa: E402

# the smallest network of each family, as far as one is known
NETWORKS = """
beit_base_patch16_224 halonet_h1 gernet_s cait_xxs24_224 coat_tiny convit_tiny convmixer_768_32 test_convnext
cpubone_nano crossvit_tiny_240 csatv2 cs3darknet_focus_s cspnext_tiny davit_tiny deepseek_vit_412m
deit_tiny_patch16_224 densenet121 dla46x_c dpn48b edgenext_xx_small efficientformer_l1 efficientformerv2_s0 tinynet_e
efficientvim_m1 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fasternet_t0 fastvit_t8 focalnet_tiny_srf
gcvit_xxtiny gemma4_vit_167m ghostnet_050 hardcorenas_b hgnetv2_b0 hiera_tiny_224 hieradet_small hrnet_w18_small
iformer_t inception_next_atto inception_resnet_v2 inception_v3 inception_v4 lcnetv2_small levit_128s lowformer_b0
test_mambaout test_coatnet poolformerv2_s12 gmlp_ti16_224 lcnet_035 mobilenetv5_base mobilevit_xxs mvitv2_tiny
naflexvit_base_patch16_parfac_gap nasnetalarge nest_tiny nextvit_small test_nfnet pit_ti_224 pnasnet5large pvt_v2_b0
qwen3_vit_88m rdnet_tiny regnetx_002 repghostnet_050 repvit_m1 res2next50 resnest14d resnet10t resnetv2_18 rexnet_100
selecsls42 legacy_seresnet18 sequencer2d_s shvit_s1 skresnet18 starnet_s050 swiftformer_xs
swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_legacy_patch16_224
tresnet_m twins_svt_small vgg11 visformer_tiny test_vit vit_tiny_r_s16_p8_224 test_vit_relpos samvit_base_patch16_224
vitamin_small_224 volo_d1_224 ese_vovnet19b_slim_dw legacy_xception xception41p xcit_nano_12_p8_224
""".split()

OPTIONS: dict[str, dict[str, int]] = {
    name: {"depth": 3} for name in NETWORKS if name.startswith(("deepseek", "gemma4", "qwen3"))
}
SIDES = (64, 96, 128, 160, 192, 224, 256, 384)
COLUMNS = "family network input rule mass same_logits reason".split()
SECONDS = 60


def families() -> dict[str, str]:
    """A network for each family: the one in NETWORKS, else the one with the shortest name."""
    chosen = {}
    for family in timm.list_modules():
        names = timm.list_models(module=family)
        known = [name for name in NETWORKS if name in names]
        chosen[family] = known[0] if known else min(names, key=len)
    return chosen


def measure(family: str, name: str) -> dict[str, str]:
    """One row: marginal and contrastive Excitation Backprop to the input, or why there is none."""
    row = {"family": family, "network": name}
    signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of processor time
    try:
        specimen = _specimen(name)
        row["input"] = "x".join(map(str, specimen.inputs.shape[2:]))
        plain = specimen.forward()
        marginal, contrastive = (
            specimen.excite(None, contrastive=contrastive) for contrastive in (False, True)
        )
        row["rule"] = "jointly" if marginal.joint else "step by step"
        row["mass"] = f"{marginal.mass.item():.4f}"
        row["same_logits"] = "yes" if torch.equal(marginal.logits, plain) else "no"
        if (marginal.relevance < 0).any() or not contrastive.relevance.isfinite().all():
            row["reason"] = "the relevance is negative or not finite"
    except (EbcliError, TimeoutError) as error:
        row["reason"] = _reason(str(error))
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
        row["reason"] = (
            f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
        )
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return row


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"took more than {SECONDS} seconds of processor time")


def _specimen(name: str) -> zoo.Specimen:
    """The network with the smallest input that it takes."""
    for side in SIDES:
        for options in ({"img_size": side}, {}):
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    net = timm.create_model(name, num_classes=10, **options, **OPTIONS.get(name, {})).eval()
                with torch.no_grad():
                    net(torch.randn(1, 3, side, side))
            except (
                RuntimeError,
                TypeError,
                ValueError,
                AssertionError,
                IndexError,
                KeyError,
                AttributeError,
            ):
                continue
            specimen = zoo.specimen_of(name, net, (1, 3, side, side), layer="")
            if specimen.forward().isfinite().all():
                return specimen
    raise RuntimeError("no input was found that it takes")


def _reason(message: str) -> str:
    """A refusal without the places: ``no excitation rule for lstm``."""
    if not message.startswith("no excitation rule for "):
        return message.partition(":")[0]
    sites = message.partition(":")[0].removeprefix("no excitation rule for ").split(", ")
    # what an operation is made of follows it, in parentheses where it was called
    functions = dict.fromkeys(site.split(" in ")[0] for site in sites if " (" not in site)
    return f"no rule for {', '.join(functions)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="families to measure, as in 'swin*'"
    )
    parser.add_argument("--again", action="store_true", help="measure what the cache holds, too")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "library_table.jsonl"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs/networks/timm.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {} if options.again else _read(options.cache)
    for family, name in families().items():
        if family in known or not any(fnmatch(family, pattern) for pattern in options.only or ["*"]):
            continue
        row = measure(family, name)
        gc.collect()
        with options.cache.open("a", encoding="utf-8") as cache:
            cache.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    with options.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for _, row in sorted(_read(options.cache).items()))


def _read(path: Path) -> dict[str, dict[str, str]]:
    """What was measured, by family; of several measurements the last."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["family"]: row for row in map(json.loads, lines)}


if __name__ == "__main__":
    main()
