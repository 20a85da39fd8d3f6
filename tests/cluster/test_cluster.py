"""Runs on a Ray cluster give what a run on one machine gives, whatever happens to the cluster's parts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event, Thread

import pytest
from clusters import Command, cluster, comparable, fill, processes
from PIL import Image
from runs import count, records, tree, until

ALL = ("--raw", "--top-k", "2")


def local(cwd: Path, *more: str) -> tuple[Path, tuple[int, list[str], str]]:
    """The same run on this machine: its directory, and how it ended."""
    other = cwd.with_name("local")
    other.mkdir()
    for name in ("photos", "net.pth"):
        (other / name).symlink_to(cwd / name)
    return other, Command(other, None, *more).wait()


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_files_records_and_exit_status_are_those_of_the_local_engine(cwd: Path) -> None:
    fill(cwd, 30)
    with cluster(2) as two:
        ended = Command(cwd, two, *ALL, "--report", "--num-workers", "2").wait()
        assert ended[0] == 1, ended
        other, expected = local(cwd, *ALL, "--report")
        assert ended[:2] == expected[:2]
        assert sorted(ended[2].splitlines()) == sorted(expected[2].splitlines())
        assert len(records(cwd / "maps")) == 34
        assert comparable(cwd / "maps") == comparable(other / "maps")
        files, others = tree(cwd / "maps"), tree(other / "maps")
        assert files.pop("report/index.html").count(b"caf") == others.pop("report/index.html").count(b"caf") > 0
        assert files == others

        # what is done is left out, what failed is tried again, and what is recorded as ours is replaced
        (spoilt,) = (cwd / "maps/photos").glob("caf*.png.npz")
        spoilt.write_bytes(b"mine")
        again = Command(cwd, two, *ALL, "--report", "--skip-existing").wait()
        assert again[0] == 1
        assert len(again[1]) == 3
        assert "Of 34 images: 1 done, 32 already done, 1 failed; 1 other file is no image" in again[2]
        assert len(records(cwd / "maps")) == 36
        assert files.items() <= tree(cwd / "maps").items()


@pytest.mark.slow
def test_an_actor_is_killed_and_then_a_machine_lost_in_the_middle_of_a_run(cwd: Path) -> None:
    fill(cwd, 130)
    with cluster(3) as three:
        run = Command(cwd, three, *ALL, "--num-workers", "2")
        until(lambda: count(cwd / "maps") >= 10 or run.process.poll() is not None)
        actors = processes(b"ray::MapWorker(MapBatches(Explainer))")
        assert len(actors) == 2
        os.kill(actors[0], signal.SIGKILL)
        until(lambda: count(cwd / "maps") >= 40 or run.process.poll() is not None)
        three.remove_node(next(iter(three.worker_nodes)), allow_graceful=False)
        assert count(cwd / "maps") < 100, "it came too late"
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


@pytest.mark.slow
def test_an_image_that_kills_is_one_failure(cwd: Path) -> None:
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
        with cluster(2) as two:
            status, out, err = Command(cwd, two).wait()
    finally:
        over.set()
        killer.join()
    assert (status, len(out)) == (1, 11), err
    failed = {record["input"]: record["error"] for record in records(cwd / "maps") if record["status"] == "failed"}
    assert set(failed) == {"photos/huge.png", "photos/broken.jpg"}
    assert "was killed by SIGKILL, the second one to do so on this image" in failed["photos/huge.png"]


@pytest.mark.slow
def test_an_interrupted_run_goes_on(cwd: Path) -> None:
    fill(cwd, 150)
    with cluster(2) as two:
        run = Command(cwd, two)
        until(lambda: count(cwd / "maps") >= 10 or run.process.poll() is not None)
        run.process.send_signal(signal.SIGINT)
        status, out, err = run.wait()
        assert status == 130
        assert "Interrupted. Of 152 images: " in err
        done = [record for record in records(cwd / "maps") if record["status"] == "done"]
        assert len(out) == len(done) < 153
        assert {path for record in done for path in record["output"]} == set(out)
        assert len([name for name in tree(cwd / "maps") if name.endswith(".png")]) == len(done)
        assert Command(cwd, two, "--skip-existing").wait()[0] == 1
    other, _ = local(cwd)
    assert tree(cwd / "maps") == tree(other / "maps")
    done = [record["input"] for record in records(cwd / "maps") if record["status"] == "done"]
    assert len(done) == len(set(done)) == 153
