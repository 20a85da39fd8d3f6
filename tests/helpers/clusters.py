"""Ray clusters of several nodes on one machine, and the command run on them as a process of its own."""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torchvision
from PIL import Image
from runs import Forked, photos, records

CPUS = 2  # of each node; logical ones


@contextmanager
def cluster(nodes: int) -> Iterator[Any]:
    """So many nodes; the first is the head."""
    from ray.cluster_utils import Cluster  # not before a test needs it

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": CPUS, "object_store_memory": 2**28}
    started = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            started.add_node(**node)
        started.wait_for_nodes()
        yield started
    finally:
        started.shutdown()


def nodes(started: Any) -> list[str]:
    """The nodes that are alive, as the cluster's own command has them."""
    command = [str(Path(sys.executable).with_name("ray")), "status", "--address", started.address]
    status = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^ 1 node_\w+$", status, re.MULTILINE)


def fill(directory: Path, count: int) -> None:
    """A checkpoint of a small network, and photos, some in a tar file; among them files that are none."""
    torch.manual_seed(0)
    net = torchvision.models.shufflenet_v2_x0_5(num_classes=7)
    torch.save(net.state_dict(), directory / "net.pth")
    photos(directory / "photos", count)
    (directory / "photos/broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    (directory / "photos/notes.txt").write_text("no image")
    Image.new("RGB", (30, 30), "red").save(os.fsencode(directory) + b"/photos/caf\xe9.png")
    photos(directory / "more", 2)
    with tarfile.open(directory / "photos/more.tar", "w") as tar:
        tar.add(directory / "more", "more")


ARGUMENTS = "photos -o maps --model shufflenet_v2_x0_5 --weights net.pth --batch-size 4".split()


def environment(address: str) -> dict[str, str]:
    """The variables of a run on the cluster at an address; with one thread, as Ray's workers have."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_ADDRESS": address}


class Command:
    """``eb-saliency photos -o maps`` for that network, on the cluster at an address."""

    def __init__(self, cwd: Path, address: str, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ebcli", *ARGUMENTS, "--engine", "ray", *more],
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            env=environment(address),
        )

    def wait(self) -> tuple[int, list[str], str]:
        """Its exit status, the lines of its stdout, sorted, and its stderr."""
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, sorted(out.splitlines()), err


def run_here(cwd: Path, *more: str) -> tuple[int, list[str], str]:
    """The same command on this machine, and how it ended."""
    run = Forked(cwd, *ARGUMENTS, "--workers", "0", *more)
    status = run.wait()
    out, err = (path.read_text(errors="surrogateescape") for path in (run.out, run.err))
    return status, sorted(out.splitlines()), err


def comparable(directory: Path) -> list[dict[str, Any]]:
    """The records, but for their order and for what never is the same."""
    found = [{**record, "seconds": None} for record in records(directory)]
    return sorted(found, key=lambda record: record["input"])


def processes(title: bytes) -> list[int]:
    """Those of this machine whose command line holds these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if title in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found
