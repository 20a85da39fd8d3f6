"""``eb-saliency verify``: recorded results that are missing or altered are named."""

from __future__ import annotations

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
