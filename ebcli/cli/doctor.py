"""The command ``doctor``: a small run, and what ``pip check`` cannot say: devices and disk space."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from math import isclose
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from ebcli.errors import DISTRIBUTION, EbcliError, in_words
from ebcli.files.private import private_directory
from ebcli.imports import installed_version
from ebcli.models.keywords import INPUT
from ebcli.run.plan import RunPlan

HEAD = "features.17"  # the bundled network's last layer before the pooling and the classifier
TOLERANCE = 0.01  # above rounding errors, even those of TF32, and below real ones

GB = 1e9
CACHE_ROOM = GB  # for most weights
OUTPUT_ROOM = 0.1 * GB  # for some hundred pictures


class Check(NamedTuple):
    """One line of the self-check.

    Attributes:
        check: what was checked.
        ok: whether it is fine.
        found: what was found; if it is not fine, what is wrong and what to do about it.
    """

    check: str
    ok: bool
    found: str


def examine(device: str, output: Path) -> Iterator[Check]:
    """Check everything that a run depends on; leaves no files behind.

    Args:
        device: the device of the small run.
        output: the output directory to check.
    """
    advice_output = "choose another --output directory"
    reinstall = (
        "reinstall torch and torchvision together with pip install --force-reinstall torch torchvision"
    )
    checks = {  # each with advice, for errors that include none
        "versions": (_versions, "run pip check"),
        "PyTorch's internals": (_internals, reinstall),
        "devices": (_devices, reinstall),
        "a small run": (lambda: _small_run(device), reinstall),
        "torch.hub cache": (_cache, reinstall),
        "output directory": (lambda: _room(output, OUTPUT_ROOM, advice_output), advice_output),
    }
    for name, (inspect, advice) in checks.items():
        is_ok = False
        try:
            words = inspect()
            is_ok = True
        except EbcliError as error:
            words = str(error)
        except Exception as error:  # a broken package can raise anything
            words = f"{in_words(error)}: {advice}"
        yield Check(name, is_ok, words)


def _versions() -> str:
    needed = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision"))
    return f"{DISTRIBUTION} {installed_version()}, {needed}, Python {platform.python_version()}"


def _internals() -> str:
    """What the engine uses of PyTorch that is not public, and may change in any version."""
    from ebcli.eb.torch_private import NAMES, missing

    absent = missing()
    if absent:
        remedy = "install a version of PyTorch that was tried with this one, see docs/install.md"
        raise EbcliError(f"this version of PyTorch lacks {', '.join(absent)}: {remedy}")
    return f"all {len(NAMES)} private names that the engine uses are there"


def _devices() -> str:
    import torch

    from ebcli.models.running import resolve_device

    gpus = [
        f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())
    ]
    platform_words = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return (
        f"{', '.join(['cpu', *gpus])}; auto takes {resolve_device('auto')}; torch is built {platform_words}"
    )


def _small_run(device: str) -> str:
    """Run the bundled network on a generated image, through all stages of a run."""
    from PIL import Image

    from ebcli.run.engine import run

    start = time.perf_counter()
    with private_directory() as folder:
        image = folder / "image.png"
        Image.radial_gradient("L").convert("RGB").save(image)
        plan = RunPlan.from_values(
            images=(image,),
            layer=(HEAD, INPUT),
            contrastive=False,
            output=folder / "maps",
            workers=0,
            device=device,
        )
        work = run(plan)
        (record,) = work.results
        if record.error is not None:
            raise EbcliError(f"a generated image failed: {record.error}")
        for path in record.output:
            Image.open(path).load()
    head, pixels = (class_record.mass or 0.0 for class_record in record.classes)
    # the classifier and the pooling lose nothing; further down to the pixels, biases do
    if not (isclose(head, 1, abs_tol=TOLERANCE) and 0 < pixels < 1 + TOLERANCE):
        wrong = f"their mass is {head:.3g} at {HEAD} instead of 1, and {pixels:.3g} at the pixels"
        remedy = "update torch and the device driver, or use --device cpu"
        raise EbcliError(f"the maps computed on {work.device} are wrong: {wrong}: {remedy}")
    seconds = time.perf_counter() - start
    masses = f"{head:.3f} at {HEAD} (expected: 1), {pixels:.3f} at the pixels (expected: 0 to 1)"
    return f"2 maps on {work.device} in {seconds:.1f} s; their mass is right: {masses}"


def _cache() -> str:
    import torch

    folder = Path(torch.hub.get_dir(), "checkpoints")
    return _room(folder, CACHE_ROOM, "set TORCH_HOME to another directory")


def _room(folder: Path, minimum: float, remedy: str) -> str:
    """The free space for a directory, which need not exist; checks by writing that files can be written there.

    Raises:
        EbcliError: it is not writable, or has less than ``minimum`` bytes of free space.
    """
    folder = folder.absolute()
    try:
        existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
        with TemporaryFile(dir=existing, buffering=0) as file:
            file.write(b"\0")
    except OSError as error:
        raise EbcliError(f"cannot write to {folder} ({error.strerror}): {remedy}") from error
    free = shutil.disk_usage(existing).free
    if free < minimum:
        raise EbcliError(
            f"only {free / GB:.2f} GB are free for {folder}: free {minimum / GB:g} GB, or {remedy}"
        )
    return f"{folder}, {free / GB:.1f} GB free"
