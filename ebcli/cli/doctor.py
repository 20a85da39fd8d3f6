"""The self-check: what is installed, whether it is whole, and whether a small run comes out right."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from packaging.requirements import Requirement

from ebcli.errors import EbcliError
from ebcli.imports import DISTRIBUTION
from ebcli.models.names import INPUT
from ebcli.run.plan import RunPlan

HEAD = "features.17"  # the bundled network's layer below the pooling and the classifier
TOLERANCE = 0.01  # above what rounding does, to the 10 bits of some GPUs' products, too, and below what is wrong
DEVELOPERS = {"test", "release"}  # the extras whose packages concern nobody else

GB = 1e9
CACHE_ROOM, OUTPUT_ROOM = 1 * GB, 0.1 * GB  # the weights of most networks, and some hundred pictures


@dataclass(frozen=True)
class Finding:
    """One line of the self-check.

    Attributes:
        check: what was looked at.
        ok: whether it is as it should be.
        found: what there is; where it is not as it should be, a sentence on what is wrong and what to do.
    """

    check: str
    ok: bool
    found: str


def examine(device: str = RunPlan.device, output: Path = RunPlan.output) -> Iterator[Finding]:
    """DrawingStyle at all that a run depends on, one thing after the other; leaves nothing behind.

    Args:
        device: where the small run computes.
        output: the directory that results would be written to.
    """
    yield Finding("Python", True, platform.python_version())
    yield from _packages()
    reinstall = "reinstall both with pip install --force-reinstall torch torchvision"
    yield _finding("devices", _devices, reinstall)
    yield _finding("weights", _weights, reinstall)
    yield _finding("a small run", lambda: _small_run(device), "--debug with an image of yours shows where")
    yield _finding("torch.hub cache", _cache, reinstall)
    elsewhere = "choose another directory with --output"
    yield _finding("output directory", lambda: _room(output, OUTPUT_ROOM, elsewhere), elsewhere)


def _finding(check: str, look: Callable[[], str], advice: str) -> Finding:
    """What ``look`` returns or raises; ``advice`` is for errors that give none themselves."""
    try:
        return Finding(check, True, look())
    except EbcliError as error:
        return Finding(check, False, str(error))
    except Exception as error:  # a broken package may raise anything
        reason = " ".join(str(error).split())
        return Finding(check, False, f"{type(error).__name__}: {reason}: {advice}")


def _packages() -> Iterator[Finding]:
    """This package, those it needs, and those of its extras that are installed."""
    try:
        own = metadata(DISTRIBUTION)
    except PackageNotFoundError:
        yield Finding(
            DISTRIBUTION, False, "it is not installed, only its source is there: install it with pip install ."
        )
        return
    yield Finding(DISTRIBUTION, True, own["Version"])
    extras = [extra for extra in own.get_all("Provides-Extra", []) if extra not in DEVELOPERS]
    for requirement in map(Requirement, own.get_all("Requires-Dist", [])):
        needed, wanted = _applies(requirement, [""]), _applies(requirement, ["", *extras])
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            if needed:
                yield Finding(requirement.name, False, f"it is not installed: {_install(requirement)}")
            continue
        if wanted and not requirement.specifier.contains(installed, prereleases=True):
            unfit = f"{installed} is installed, but ebcli needs {requirement.specifier}: {_install(requirement)}"
            yield Finding(requirement.name, False, unfit)
        elif wanted:
            yield Finding(requirement.name, True, installed)


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)


def _install(requirement: Requirement) -> str:
    return f"pip install '{requirement.name}{requirement.specifier}'"


def _devices() -> str:
    import torch

    from ebcli.models.device import device_named

    names = ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count()))]
    built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return f"{', '.join(names)}; auto takes {device_named('auto')}; torch is built {built}"


def _weights() -> str:
    from ebcli.models.efficientnet_lite import SHA256, published_weights

    return f"{len(published_weights())} bytes, SHA-256 {SHA256}, as published"


def _small_run(device: str) -> str:
    """The bundled network on a generated image, through all that a run goes through."""
    from PIL import Image

    from ebcli.run.engine import run

    start = time.perf_counter()
    with TemporaryDirectory(prefix="eb-saliency-") as folder:
        image = Path(folder, "image.png")
        Image.radial_gradient("L").convert("RGB").save(image)
        layers, output = (HEAD, INPUT), Path(folder, "maps")
        plan = RunPlan((image,), layers=layers, contrastive=False, output=output, workers=0, device=device)
        work = run(plan)
        (record,) = work.results
        if record.error is not None:
            raise EbcliError(f"a generated image failed: {record.error}")
        for path in record.output:
            Image.open(path).load()
    head, pixels = (shown.mass for shown in record.classes)
    # Nothing is lost in the classifier and the pooling; on the way on to the pixels, biases keep a part
    if not (isclose(head, 1, abs_tol=TOLERANCE) and 0 < pixels < 1 + TOLERANCE):
        raise EbcliError(
            f"the maps computed on {work.device} are wrong, with a mass of {head:.3g} at {HEAD} in place of 1, and "
            f"{pixels:.3g} at the pixels: update torch and the device's driver, or pass --device cpu"
        )
    seconds = time.perf_counter() - start
    return f"2 maps on {work.device} in {seconds:.1f} s, mass {head:.3f} at {HEAD} and {pixels:.3f} at the pixels"


def _cache() -> str:
    import torch

    folder = Path(torch.hub.get_dir(), "checkpoints")
    return _room(folder, CACHE_ROOM, "set TORCH_HOME to a directory elsewhere")


def _room(folder: Path, least: float, remedy: str) -> str:
    """How much is free where a directory is or would be made; something is written there to see whether it can be.

    Raises:
        EbcliError: nothing can be written there, or less than ``least`` bytes.
    """
    folder = folder.absolute()
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with TemporaryFile(dir=there, buffering=0) as file:
            file.write(b"\0")
    except OSError as error:
        raise EbcliError(f"nothing can be written to {folder} ({error.strerror}): {remedy}") from error
    free = shutil.disk_usage(there).free
    if free < least:
        raise EbcliError(f"only {free / GB:.2f} GB are free for {folder}: make room for {least / GB:g} GB, or {remedy}")
    return f"{folder}, {free / GB:.1f} GB free"
