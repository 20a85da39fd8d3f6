"""Runs without the names that only Unix has. ``.ci/check types`` also checks the package as Windows would see it."""

import json
from pathlib import Path

import pytest
from runs import photos
from stub_run import run_python

# In this package alone, because the libraries of this system need them
_HIDE = """
import builtins, os, signal, types

LACKING = {
    "os": "pread pwrite preadv pwritev fork killpg getuid geteuid sched_getaffinity mkfifo statvfs fchown environb "
    "O_NOFOLLOW O_NONBLOCK O_DIRECTORY O_CLOEXEC",
    "signal": "SIGHUP SIGKILL SIGUSR1 SIGCHLD SIGALRM alarm pause",
}
ONLY_UNIX = {"fcntl", "resource", "termios", "pwd", "grp", "posix"}
whole, modules = builtins.__import__, {}
for module in (os, signal):
    copy = modules[module.__name__] = types.ModuleType(module.__name__)
    lacking = LACKING[module.__name__].split()
    vars(copy).update({name: value for name, value in vars(module).items() if name not in lacking})

def windows(name, globals=None, locals=None, fromlist=(), level=0):
    if not (globals or {}).get("__name__", "").startswith("ebcli"):
        return whole(name, globals, locals, fromlist, level)
    if name in ONLY_UNIX:
        raise ImportError(name)
    return modules.get(name) or whole(name, globals, locals, fromlist, level)

builtins.__import__ = windows
"""
_RUN = """
import ebcli.run.explainer, ebcli.run.controls, ebcli.workers
from ebcli.cli.saliency import main
from runs import no_references, of_tiny, tiny_model

ebcli.run.explainer.load_model, ebcli.run.controls.references = tiny_model, no_references
assert not hasattr(ebcli.workers.os, "fork")
main(of_tiny(["photos", "-o", "maps", "--skip-existing"], workers=1), standalone_mode=False)
"""


@pytest.mark.release
def test_a_run_resumes_and_removes_what_a_killed_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "helpers"), prepend=":")
    monkeypatch.setenv("EB_SALIENCY_QUIET", "1")
    photos(Path("photos"), 3)
    assert len(run_python(_HIDE + _RUN).splitlines()) == 3
    with Path("maps/records.jsonl").open("ab") as records:
        records.write(b'{"schema": 1, "inp')  # a line that a killed run left
    left = Path("maps/.eb-saliency-k1ll3d_0")
    left.mkdir()
    (left / "eb-saliency-run").touch()
    Path("photos/0/0000.jpg").rename("photos/new.jpg")
    assert len(run_python(_HIDE + _RUN).splitlines()) == 1
    assert not left.exists()
    *_, torn, last = Path("maps/records.jsonl").read_text().splitlines()
    assert (torn, json.loads(last)["place"]) == ('{"schema": 1, "inp', "new.jpg")
