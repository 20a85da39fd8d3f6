"""Runs of the command as processes of their own, which can be killed, with a network that takes no time."""

import gc
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from PIL import Image

from ebcli.cli.saliency import main

# A server that has imported torch forks each run: they start at once, and have nothing of pytest in them. It has
# nothing that imports plug-ins, either.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch", "torchvision", "ebcli.run.engine", "pillow_heif", "tqdm", "matplotlib"]
)


def no_references(*_: Any) -> dict[str, float]:
    """A stand-in for ``references``: maps are not compared with those of noise."""
    return {}


def tiny_model(*_: object, **__: object) -> Any:
    """A stand-in for ``load_model``."""
    import torch
    from torch import nn

    from ebcli.datatypes.input_spec import InputSpec
    from ebcli.models import LoadedModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 16, 3)
    head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 7))
    net = nn.Sequential(first, nn.ReLU(), second, head)  # "2" is its default layer
    names = tuple(f"class {letter}" for letter in "abcdefg")
    return LoadedModel(
        "tiny",
        net.eval(),
        transforms=InputSpec((24, 24), resize=(24,), fit="whole"),
        categories=names,
        weights="seeded",
        num_classes=7,
    )


def of_tiny(arguments: Sequence[str], workers: int = 0) -> Sequence[str]:
    """Arguments for a run of a network like ``tiny_model``; those of other commands as they are."""
    is_run = not arguments or arguments[0] not in main.commands
    return (*("--model", "tiny", "--layer", "2", "--workers", str(workers)) * is_run, *arguments)


def invoke(*arguments: str, **limits: str) -> Result:
    """The command within this process, without workers, for a network like ``tiny_model``; limits are set as such."""
    environment = {f"EB_SALIENCY_{name.upper()}": value for name, value in limits.items()}
    return CliRunner().invoke(main, of_tiny(arguments), env=environment)


def seen(pixels: Any) -> Any:
    """An image that is all that the network gets of it."""
    from ebcli.files.paths import FileState
    from ebcli.run.reading import NetworkInput

    return NetworkInput(
        pixels=pixels, stamp=FileState(0, 0), seconds=0.0, size=(pixels.shape[1], pixels.shape[0])
    )


class Forked:
    """``eb-saliency ARGUMENTS`` in a directory; its stdout, stderr and temporary files are beside it.

    Args:
        tiny: with a tiny network, whatever its name.
        packages: a directory of packages to import, besides those of this environment.
    """

    def __init__(self, cwd: Path, *arguments: str, tiny: bool = False, packages: Path | None = None) -> None:
        self.out, self.err = cwd.with_name(f"{cwd.name}.out"), cwd.with_name(f"{cwd.name}.err")
        self.process = _CONTEXT.Process(
            target=_main, args=(cwd, self.out, self.err, arguments, tiny, packages)
        )
        self.process.start()

    def wait(self) -> int:
        """Its exit status."""
        self.process.join(timeout=300)
        assert self.process.exitcode is not None, "it hangs"
        return self.process.exitcode

    def kill(self, how: int) -> None:
        assert self.process.pid is not None
        with suppress(ProcessLookupError):  # it may have come to its end
            os.kill(self.process.pid, how)

    def children(self) -> list[int]:
        """Its worker processes."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
                command = status.with_name("cmdline").read_bytes()
            except OSError:
                continue
            if fields[1] == str(self.process.pid) and b"spawn_main" in command:
                found.append(int(status.parent.name))
        return found


class Started(Forked):
    """The same with a tiny network."""

    def __init__(self, cwd: Path, *arguments: str, workers: int = 0) -> None:
        super().__init__(cwd, *of_tiny(arguments, workers), tiny=True)


def _main(
    cwd: Path, out: Path, err: Path, arguments: tuple[str, ...], tiny: bool, packages: Path | None
) -> None:
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, number)
    os.chdir(cwd)
    temporary = cwd.with_name("temporary")
    temporary.mkdir(exist_ok=True)
    tempfile.tempdir = str(temporary)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if packages is not None:
        sys.path.insert(0, str(packages))
    if tiny:
        use_tiny_model()
    main(arguments)


def use_tiny_model() -> None:
    """Let each model of this process be ``tiny_model``."""
    import ebcli.run.controls
    import ebcli.run.explainer

    ebcli.run.explainer.load_model = tiny_model
    ebcli.run.controls.references = no_references


def in_process(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function, which must succeed, in a process of its own without other threads and without pytest."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join(timeout=300)
    assert process.exitcode == 0


def number_of_tensors() -> int:
    """How many there are. No other thread may run: nothing may refer to a tuple that one is filling."""
    import torch

    assert threading.active_count() == 1
    gc.collect()
    return sum(issubclass(type(an_object), torch.Tensor) for an_object in gc.get_objects())


def finish(cwd: Path, *arguments: str, workers: int = 0) -> Started:
    """Run to the end, which must be a good one."""
    run = Started(cwd, *arguments, workers=workers)
    assert run.wait() == 0, run.err.read_text()
    return run


def until(condition: Callable[[], bool]) -> None:
    """Wait for something to come about."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def photos(directory: Path, count: int) -> None:
    """So many small JPEGs, all different, in a small tree."""
    generator = np.random.default_rng(0)
    for number in range(count):
        path = directory / f"{number % 3}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(path, quality=50)


def tree(directory: Path) -> dict[str, bytes]:
    """All that is below a directory, but the records, the settings and the marker."""
    others = {"records.jsonl", "settings.toml", ".eb-saliency"}
    paths = (path for path in directory.rglob("*") if path.name not in others)
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b"" for path in paths}


def records(directory: Path) -> list[dict[str, Any]]:
    """The records below an output directory; every line must be whole."""
    try:
        content = (directory / "records.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    assert content.endswith(b"\n") or not content
    return [json.loads(line) for line in content.splitlines()]


def count(directory: Path) -> int:
    """How many records there are, while they are being written."""
    path = directory / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
