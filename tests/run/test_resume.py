"""Runs that are killed, interrupted, or run out of room: nothing is lost, repeated or half there."""

import os
import random
import resource
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from PIL import Image
from runs import Started, count, finish, photos, records, tree, until

RAW = ("photos", "-o", "maps", "--raw", "--top-k", "2", "--skip-existing", "--batch-size", "8")
PLAIN = ("photos", "-o", "maps", "--skip-existing")
COUNT = 60  # of photos


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    photos(tmp_path / "run/photos", COUNT)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, bytes]]:
    """The results of the same run in another place, made once."""
    shared = tmp_path_factory.mktemp("undisturbed")
    photos(shared / "photos", COUNT)

    @cache
    def results(*arguments: str) -> dict[str, bytes]:
        other = Path(mkdtemp(dir=shared))
        (other / "photos").symlink_to(shared / "photos")
        finish(other, *arguments)
        return tree(other / "maps")

    return results


@contextmanager
def small_file_system(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"only root may mount a file system: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def test_killed_at_three_random_moments(cwd: Path, undisturbed: Callable[..., dict[str, bytes]]) -> None:
    expected = undisturbed(*RAW)
    assert len(expected) == 3 + COUNT * 3  # directories, and two pictures and an array file for each photo
    maps, dice, kills = cwd / "maps", random.Random(0), 0
    while kills < 3:
        # a moment in the next quarter of the run, or so: all of them shall find something left to do
        goal = count(maps) + dice.randrange((COUNT - count(maps)) // (4 - kills) + 1)
        run = Started(cwd, *RAW)
        until(lambda: count(maps) >= goal or run.process.exitcode is not None)  # noqa: B023
        run.kill(signal.SIGKILL)
        if run.wait() == 0:  # on a quick machine it was done before that
            assert tree(maps) == expected
            shutil.rmtree(maps)
            continue
        kills += 1
        # what is there is whole at any time
        for name, content in tree(maps).items():
            assert name.startswith(".eb-saliency-") or content == expected[name]
    finish(cwd, *RAW)
    assert tree(maps) == expected
    computed = Counter(record["input"] for record in records(maps))
    assert len(computed) == COUNT
    assert set(computed.values()) == {1}


def test_what_a_run_left_that_was_killed_at_its_very_end_is_removed(cwd: Path) -> None:
    finish(cwd, *PLAIN, "--include", "0")
    left = cwd / "maps/.eb-saliency-k1ll3d_0"
    left.mkdir()
    (left / "eb-saliency-run").touch()
    (left / "7").write_bytes(b"half a pict")
    run = finish(cwd, *PLAIN, "--include", "0")
    assert run.err.read_text() == "20 images: 20 up to date\n"
    assert not left.exists()


def test_interrupted_in_the_middle(cwd: Path, undisturbed: Callable[..., dict[str, bytes]]) -> None:
    expected, maps = undisturbed(*PLAIN), cwd / "maps"
    run = Started(cwd, *PLAIN, workers=2)
    until(lambda: count(maps) >= 10)
    os.kill(run.process.pid, signal.SIGINT)  # type: ignore[arg-type]
    for child in run.children():  # a terminal sends it to all of them
        with suppress(ProcessLookupError):  # it may have ended
            os.kill(child, signal.SIGINT)
    assert run.wait() == 130
    printed = run.out.read_text().splitlines()
    assert 10 <= len(printed) < COUNT
    assert sorted(printed) == sorted(path for record in records(maps) for path in record["output"])
    for path in printed:
        assert (cwd / path).read_bytes() == expected[str(Path(path).relative_to("maps"))]
    done = len(printed)
    said = f"Interrupted. {COUNT} images: {done} done, {COUNT - done} left"
    assert run.err.read_text() == f"{said}. To resume, repeat the command with --skip-existing\n"
    assert not list(maps.glob(".eb-saliency-*"))
    finish(cwd, *PLAIN)
    assert tree(maps) == expected
    assert len(records(maps)) == COUNT


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_in_the_middle(cwd: Path, number: signal.Signals) -> None:
    """As by ``timeout``, systemd or Slurm, or by a terminal that is closed."""
    run = Started(cwd, *PLAIN, workers=2)
    until(lambda: count(cwd / "maps") >= 10)
    children = run.children()
    run.kill(number)
    for child in children:  # systemd and terminals send it to all of them
        with suppress(ProcessLookupError):  # it may have ended
            os.kill(child, number)
    assert run.wait() == 128 + number
    assert run.err.read_text().splitlines()[-1].startswith(f"Interrupted. {COUNT} images: ")
    printed = run.out.read_text().splitlines()
    assert sorted(printed) == sorted(path for record in records(cwd / "maps") for path in record["output"])
    assert not list((cwd / "maps").glob(".eb-saliency-*"))


@pytest.mark.release
def test_a_second_interrupt_does_not_wait_for_what_hangs(cwd: Path) -> None:
    maps = cwd / "maps"
    run = Started(cwd, *PLAIN, workers=1)
    until(lambda: count(maps) >= 5)
    (worker,) = run.children()
    os.kill(worker, signal.SIGSTOP)
    until(lambda: ") T " in Path(f"/proc/{worker}/stat").read_text(encoding="ascii"))
    run.kill(signal.SIGINT)
    run.process.join(timeout=1)
    assert run.process.exitcode is None
    run.kill(signal.SIGINT)
    run.process.join(timeout=120)
    assert run.process.exitcode == 130
    assert f"Interrupted. {COUNT} images: " in run.err.read_text()
    assert {record["status"] for record in records(maps)} == {"done"}
    assert not list(maps.glob(".eb-saliency-*"))


@pytest.mark.release
def test_a_worker_killed_in_the_middle(cwd: Path, undisturbed: Callable[..., dict[str, bytes]]) -> None:
    expected, maps = undisturbed(*PLAIN), cwd / "maps"
    run = Started(cwd, *PLAIN, workers=2)
    until(lambda: count(maps) >= 10)
    victim = run.children()[0]
    os.kill(victim, signal.SIGKILL)
    assert run.wait() == 0
    warning = f"Warning: worker process {victim} was killed by SIGKILL; retrying its image"
    assert run.err.read_text().splitlines()[:-1] == [warning]  # the last line is the rate
    assert tree(maps) == expected
    assert [record["status"] for record in records(maps)] == ["done"] * COUNT


def test_a_file_system_that_fills_up(cwd: Path, undisturbed: Callable[..., dict[str, bytes]]) -> None:
    expected, maps = undisturbed(*PLAIN), cwd / "maps"
    with small_file_system(maps, "180k"):
        run = Started(cwd, *PLAIN)
        assert run.wait() == 2
        summary, message = run.err.read_text().splitlines()
        assert message.startswith("Error: cannot write ")
        assert message.endswith(": No space left on device")
        whole = tree(maps)
        assert 0 < len(whole) < len(expected)
        assert whole.items() <= expected.items()
        done = [path for record in records(maps) for path in record["output"]]
        assert run.out.read_text().splitlines() == done
        assert summary == f"{COUNT} images: {len(done)} done, {COUNT - len(done)} left"
        assert {str(Path(path).relative_to("maps")) for path in done} <= set(whole)
        # with more room, it goes on where it was
        subprocess.run(["mount", "-o", "remount,size=50m", maps], check=True)
        finish(cwd, *PLAIN)
        assert tree(maps) == expected
        assert Counter(record["input"] for record in records(maps)).most_common(1)[0][1] == 1


def test_a_quota_that_is_reached(cwd: Path, undisturbed: Callable[..., dict[str, bytes]]) -> None:
    """The kernel refuses to let any file grow further, which needs no rights to arrange."""
    expected, maps = undisturbed(*PLAIN), cwd / "maps"
    run = Started(cwd, *PLAIN)
    assert run.process.pid is not None
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (30_000, 30_000))
    assert run.wait() == 2
    assert run.err.read_text().splitlines()[-1] == "Error: cannot write the records in 'maps': File too large"
    done = [path for record in records(maps) for path in record["output"]]
    assert 0 < len(done) < COUNT
    assert run.out.read_text().splitlines() == done
    assert tree(maps).items() <= expected.items()
    finish(cwd, *PLAIN)
    assert tree(maps) == expected
    assert set(Counter(record["input"] for record in records(maps)).values()) == {1}


def test_an_output_that_cannot_be_written_to_stops_before_any_work(cwd: Path) -> None:
    maps = cwd / "maps"
    with small_file_system(maps, "1m"):
        subprocess.run(["mount", "-o", "remount,ro", maps], check=True)
        run = Started(cwd, *PLAIN)
        assert run.wait() == 2
        assert run.out.read_text() == ""
        assert run.err.read_text().splitlines()[-1] == "Error: cannot write to 'maps': Read-only file system"


def test_two_runs_at_once_into_one_directory(cwd: Path, undisturbed: Callable[..., dict[str, bytes]]) -> None:
    expected, maps = undisturbed(*PLAIN), cwd / "maps"
    # none skips what another one has done, whichever starts first
    shards = [Started(cwd, "photos", "-o", "maps", "--shard", f"{i}/3") for i in (1, 2, 3)]
    again = Started(cwd, "photos", "-o", "maps")  # does the same work once more
    assert [run.wait() for run in (*shards, again)] == [0] * 4
    assert tree(maps) == expected
    assert Counter(r["input"] for r in records(maps)) == Counter({r["input"]: 2 for r in records(maps)})


def test_a_changed_input_or_setting_is_computed_anew_and_the_rest_is_not(cwd: Path) -> None:
    maps, command, number = cwd / "maps", (*PLAIN, "--include", "0"), COUNT // 3
    finish(cwd, *command)
    changed = cwd / "photos/0/0003.jpg"
    Image.new("RGB", (9, 9), "red").save(changed)
    lost = next((maps / "0").glob("0006.jpg.*"))
    lost.unlink()
    expected = {"photos/0/0003.jpg", "photos/0/0006.jpg"}
    run = finish(cwd, *command)
    assert {record["input"] for record in records(maps)[number:]} == expected
    assert run.err.read_text().endswith(f"{number} images: 2 done, {number - 2} up to date\n")
    before = count(maps)
    finish(cwd, *command, "--batch-size", "3")  # of what changes no result, nothing is computed anew
    assert count(maps) == before
    finish(cwd, *command, "--alpha", "0.5")
    assert count(maps) == before + number
    finish(cwd, *command)
    assert count(maps) == before + 2 * number
