"""Runs on a Ray cluster give what a run on one machine gives, whatever happens to the cluster's parts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import color_tasks
import pytest
from click.testing import CliRunner
from clusters import ARGUMENTS, Command, cluster, comparable, environment, fill, nodes, processes, run_here
from color_net import GREEN, RED, painted
from PIL import Image
from runs import count, records, tree, until

from ebcli.cli.saliency import main

pytestmark = pytest.mark.release

ALL = ("--raw", "--top-k", "2", "--annotations", "masks")


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    with cluster(2) as started:
        yield started


def twin(cwd: Path) -> Path:
    """Another directory, with the same photos and network."""
    other = cwd.with_name("local")
    other.mkdir()
    for name in ("photos", "net.pth"):
        (other / name).symlink_to(cwd / name)
    return other


def local(cwd: Path, *more: str) -> tuple[Path, tuple[int, list[str], str]]:
    """The same run on this machine: its directory, and how it ended."""
    other = twin(cwd)
    return other, run_here(other, *more)


def without_rate(stderr: str) -> list[str]:
    """The lines, sorted, but for the one that says how long it took."""
    return sorted(line for line in stderr.splitlines() if not re.match(r"\d+ images in ", line))


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_files_records_and_exit_status_are_those_of_the_local_engine(cwd: Path, two: Any) -> None:
    """Of a run that goes on where another one ended, and makes again what is gone."""
    fill(cwd, 30)
    assert run_here(cwd, *ALL, "--include", "0")[0] == 0
    (cwd / "maps/0/0003.jpg.npz").unlink()
    other = twin(cwd)
    shutil.copytree(cwd / "maps", other / "maps")
    ended = Command(cwd, two.address, *ALL, "--report", "--workers", "2", "--skip-existing").wait()
    assert ended[0] == 1, ended
    expected = run_here(other, *ALL, "--report", "--skip-existing")
    assert ended[:2] == expected[:2]
    assert without_rate(ended[2]) == without_rate(expected[2])
    assert "34 images: 23 done, 10 up to date, 1 failed; 1 other file skipped" in ended[2]
    assert len(records(cwd / "maps")) == 11 + 24
    assert 'engine = "ray"' in (cwd / "maps/settings.toml").read_text()
    assert comparable(cwd / "maps") == comparable(other / "maps")
    files, others = tree(cwd / "maps"), tree(other / "maps")
    assert files.pop("report/index.html").count(b"caf") == others.pop("report/index.html").count(b"caf") > 0
    assert files == others


def test_what_is_done_is_left_out_and_what_failed_or_is_gone_is_made_again(cwd: Path, two: Any) -> None:
    """And a file that is not ours is not replaced."""
    fill(cwd, 30)
    assert Command(cwd, two.address, *ALL, "--report").wait()[0] == 1
    files = tree(cwd / "maps")
    (lost,) = (cwd / "maps").glob("caf*.png.npz")
    lost.write_bytes(b"mine")
    refused = Command(cwd, two.address, *ALL, "--report", "--skip-existing").wait()
    assert refused[:2] == (2, [])
    assert "caf" in refused[2]
    assert lost.read_bytes() == b"mine"
    lost.unlink()
    again = Command(cwd, two.address, *ALL, "--report", "--skip-existing").wait()
    assert again[0] == 1
    assert len(again[1]) == 3
    assert "34 images: 1 done, 32 up to date, 1 failed; 1 other file skipped" in again[2]
    assert len(records(cwd / "maps")) == 36
    del files["report/index.html"]  # which says how many seconds each image took
    assert files.items() <= tree(cwd / "maps").items()


def test_detections_are_those_of_the_local_engine(cwd: Path, two: Any) -> None:
    fill(cwd, 1)
    squares = (RED, (10, 10, 30, 30)), (GREEN, (80, 20, 105, 45))
    painted((120, 60), *squares).save(cwd / "photos/squares.png")
    painted((80, 90), *squares[:1]).save(cwd / "photos/upright.png")
    detector = "--model", f"{color_tasks.__file__}:detector", "--weights", "DEFAULT", "--batch-size", "2"
    ended = Command(cwd, two.address, *detector, "--include", "*.png").wait()
    other, expected = local(cwd, *detector, "--include", "*.png")
    assert ended[:2] == expected[:2]
    assert ended[0] == 0, ended[2]
    assert comparable(cwd / "maps") == comparable(other / "maps")
    boxes = {record["input"]: len(record["classes"]) for record in records(cwd / "maps")}
    assert boxes["photos/squares.png"] == 2
    assert boxes["photos/upright.png"] == 1


def test_more_networks_than_the_cluster_has_room_for(cwd: Path, two: Any) -> None:
    fill(cwd, 1)
    status, out, err = Command(cwd, two.address, "--workers", "4").wait()
    assert (status, out) == (2, [])
    assert err == (
        "Error: the cluster has 4 CPUs and 0 GPUs, but 4 workers need 0 GPUs each and at least one more CPU than "
        "workers: lower --workers or EB_SALIENCY_GPUS_PER_WORKER\n"
    )
    assert not (cwd / "maps").exists()


def test_a_cluster_that_is_not_there(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cwd, 1)
    monkeypatch.chdir(cwd)
    result = CliRunner().invoke(main, [*ARGUMENTS, "--engine", "ray"], env={"RAY_ADDRESS": "127.0.0.1:9"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: no Ray cluster answers at '127.0.0.1:9': [Errno 111] Connection refused\n"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may mount")
def test_a_machine_that_does_not_see_the_output_directory(cwd: Path) -> None:
    fill(cwd, 1)
    with cluster(1) as one:
        (cwd / "maps").mkdir()
        hide = (
            f"mount -t tmpfs none {cwd}/maps && exec ray start --address={one.address} --num-cpus=2 --block"
        )
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with subprocess.Popen(["unshare", "-m", "sh", "-c", hide], env={**os.environ, "PATH": path}) as node:
            try:
                until(lambda: len(nodes(one)) == 2)
                status, out, err = Command(cwd, one.address).wait()
            finally:
                node.terminate()
    assert (status, out) == (2, [])
    assert re.fullmatch(
        r"6 images: 6 left\nError: the machine \S+ cannot use '.*/run' and write to 'maps' in it \(No such file or "
        r"directory\): all machines of the cluster must share these directories\n",
        err,
    )
    assert not records(cwd / "maps")


def tasks() -> list[int]:
    """The processes of parts, without the workers that they started."""
    found = processes(b"ray::explain_part")
    return [pid for pid in found if parent(pid) not in found]


def test_a_task_is_killed_and_then_a_machine_lost_in_the_middle_of_a_run(cwd: Path) -> None:
    fill(cwd, 300)
    with cluster(3) as three:
        run = Command(cwd, three.address, *ALL, "--workers", "2")
        until(lambda: count(cwd / "maps") >= 10 or run.process.poll() is not None)
        until(lambda: len(tasks()) == 2 or run.process.poll() is not None)
        os.kill(tasks()[0], signal.SIGKILL)
        until(lambda: count(cwd / "maps") >= 40 or run.process.poll() is not None)
        three.remove_node(next(iter(three.worker_nodes)), allow_graceful=False)
        assert run.process.poll() is None, "it came too late"
        ended = run.wait()
    other, expected = local(cwd, *ALL)
    assert ended[:2] == expected[:2], ended[2]
    assert comparable(cwd / "maps") == comparable(other / "maps")
    assert tree(cwd / "maps") == tree(other / "maps")


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def test_an_image_that_kills_is_one_failure(cwd: Path, two: Any) -> None:
    fill(cwd, 8)
    Image.new("RGB", (12_000, 12_000)).save(cwd / "photos/huge.png")
    over = Event()

    def kill() -> None:  # as the kernel does where memory is short
        while not over.wait(0.01):
            for pid in processes(b"spawn_main"):
                if resident(pid) > 350 << 20:
                    os.kill(pid, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    try:
        status, out, err = Command(cwd, two.address).wait()
    finally:
        over.set()
        killer.join()
    assert (status, len(out)) == (1, 11), err
    failed = {
        record["input"]: record["error"] for record in records(cwd / "maps") if record["status"] == "failed"
    }
    assert set(failed) == {"photos/huge.png", "photos/broken.jpg"}
    assert "was killed by SIGKILL, the second to die on this image" in failed["photos/huge.png"]


def test_an_interrupted_run_goes_on(cwd: Path, two: Any) -> None:
    fill(cwd, 600)
    run = Command(cwd, two.address)
    until(lambda: count(cwd / "maps") >= 10 or run.process.poll() is not None)
    run.process.send_signal(signal.SIGINT)
    status, out, err = run.wait()
    assert status == 130
    assert re.search(
        r"^Interrupted\. 60[45] images: ", err, re.M
    )  # the file that is none may not have been looked at
    done = [record for record in records(cwd / "maps") if record["status"] == "done"]
    assert len(out) == len(done) < 603
    assert {path for record in done for path in record["output"]} == set(out)
    assert len([name for name in tree(cwd / "maps") if name.endswith((".jpg", ".png"))]) == len(done)
    assert Command(cwd, two.address, "--skip-existing").wait()[0] == 1
    other, _ = local(cwd)
    assert tree(cwd / "maps") == tree(other / "maps")
    done = [record["input"] for record in records(cwd / "maps") if record["status"] == "done"]
    assert len(done) == len(set(done)) == 603


LOST = (
    r"Error: the Ray cluster is lost \(.*\): repeat the command with --skip-existing, and with fewer --workers "
    "if memory was short"
)


def started_by(pid: int) -> set[int]:
    """The processes below another one, but for zombies."""
    found, parents = set[int](), {pid}
    while parents:
        parents = {child for child in processes(b"\0") if parent(child) in parents}
        found |= parents
    return found


@pytest.mark.parametrize(("victim", "photos"), [(b"/raylet/raylet", 300), (b"gcs_server", 5000)])
def test_a_lost_cluster_ends_the_run_with_a_status_that_says_repeat(
    cwd: Path, victim: bytes, photos: int
) -> None:
    """Of a run that started Ray itself, of which one process is killed."""
    fill(cwd, photos)
    run = Command(cwd, "local")
    until(lambda: count(cwd / "maps") >= 10 or run.process.poll() is not None)
    below = started_by(run.process.pid)
    (lost,) = below.intersection(processes(victim))
    os.kill(lost, signal.SIGKILL)
    status, out, err = run.wait()
    assert status == 75
    assert re.fullmatch(rf"(\d+ of \d+ maps have hardly .*\n)?\d+ images: \d+ done, .*\n{LOST}\n", err), err
    done = [record for record in records(cwd / "maps") if record["status"] == "done"]
    assert len(out) == len(done) < photos + 3
    assert not list((cwd / "maps").glob(".eb-saliency-*"))
    until(lambda: not below.intersection(processes(b"\0")))
    assert run_here(cwd, "--skip-existing")[0] == 1
    other, _ = local(cwd)
    assert tree(cwd / "maps") == tree(other / "maps")


def test_a_lost_cluster_of_a_run_whose_parent_is_gone(cwd: Path) -> None:
    """Ray ends such a process without a word, by default."""
    fill(cwd, 300)
    words = shlex.join([sys.executable, "-m", "ebcli", *ARGUMENTS, "--engine", "ray"])
    subprocess.run(
        ["sh", "-c", f"{words} 2> err > out & echo $! > pid"], cwd=cwd, env=environment("local"), check=True
    )
    run = int((cwd / "pid").read_text())
    until(lambda: count(cwd / "maps") >= 10)
    assert parent(run) != os.getpid()
    (raylet,) = started_by(run).intersection(processes(b"/raylet/raylet"))
    os.kill(raylet, signal.SIGKILL)
    until(lambda: run not in processes(b"ebcli"))
    assert re.search(rf"^{LOST}$", (cwd / "err").read_text(), re.M)


def start_and_kill(cwd: Path, done: int) -> None:
    """Kill a run that started Ray itself when so many photos are done; nothing of it is left."""
    run = Command(cwd, "local", "--skip-existing")
    until(lambda: count(cwd / "maps") >= done or run.process.poll() is not None)
    below = started_by(run.process.pid)
    run.process.kill()
    assert run.wait()[0] == -signal.SIGKILL
    until(lambda: not below.intersection(processes(b"\0")))


def test_a_killed_run_leaves_nothing_of_a_cluster_that_it_started_and_a_loop_completes_it(cwd: Path) -> None:
    fill(cwd, 300)
    for done in (10, 120):
        start_and_kill(cwd, done)
    assert Command(cwd, "local", "--skip-existing").wait()[0] == 1
    other, _ = local(cwd)
    assert tree(cwd / "maps") == tree(other / "maps")
    done = [record["input"] for record in records(cwd / "maps") if record["status"] == "done"]
    assert len(done) == len(set(done)) == 303


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:  # it has ended
        return 0
