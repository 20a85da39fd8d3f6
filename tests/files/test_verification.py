"""``eb-saliency verify``: recorded results that are missing or altered are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from runs import invoke, photos

from ebcli.errors import ConfigurationError
from ebcli.files.results import verify

pytestmark = pytest.mark.usefixtures("working_directory")


def test_missing_and_altered_results_are_named() -> None:
    photos(Path("photos"), 6)
    assert invoke("photos", "--raw").exit_code == 0
    assert invoke("photos", "--raw", "--alpha", "0.5").exit_code == 0  # the later run counts
    intact = invoke("verify", "saliency")
    assert (intact.exit_code, intact.stdout, intact.stderr) == (
        0,
        "",
        "12 results: 12 intact, 0 altered or missing\n",
    )
    pictures = sorted(Path("saliency").rglob("*.jpg"))
    pictures[0].unlink()
    content = bytearray(pictures[1].read_bytes())
    content[-20] ^= 1
    pictures[1].write_bytes(content)  # of the same size
    pictures[2].write_bytes(b"short")
    pictures[3].rename("elsewhere.png")
    pictures[3].symlink_to(Path("elsewhere.png").absolute())
    found = invoke("verify", "saliency")
    assert found.exit_code == 1
    problems = ["missing", "altered", "altered", "behind a symbolic link"]
    expected = {f"{path}: {problem}" for path, problem in zip(pictures, problems, strict=False)}
    assert set(found.stdout.splitlines()) == expected
    assert found.stderr == (
        "12 results: 8 intact, 4 altered or missing\n"
        "To repair them, delete those that are altered and repeat the run with --skip-existing\n"
    )


def test_a_directory_without_records() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read 'nowhere/records\.jsonl'"):
        verify(Path("nowhere"))


def test_records_that_are_damaged_are_not_intact() -> None:
    photos(Path("photos"), 2)
    assert invoke("photos").exit_code == 0
    file = Path("saliency/records.jsonl")
    file.write_bytes(bytes(file.stat().st_size))
    damaged = invoke("verify", "saliency")
    assert (damaged.exit_code, damaged.stdout) == (2, "")
    assert "'saliency/records.jsonl' is damaged" in damaged.stderr


@pytest.mark.parametrize(
    ("command", "name"), [("verify", "records.jsonl"), ("check", "settings.toml"), ("audit", "settings.toml")]
)
def test_pipes_in_a_directory_of_results_are_not_waited_for(command: str, name: str) -> None:
    photos(Path("photos"), 1)
    assert invoke("photos", "--raw").exit_code == 0
    Path("saliency", name).unlink()
    os.mkfifo(Path("saliency", name))
    result = invoke(command, "saliency")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"cannot read 'saliency/{name}'" in result.stderr
