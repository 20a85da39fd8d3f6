"""Numbers out of range and unknown words are refused in one sentence that names the option, before any work."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ebcli.cli.saliency import main


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--top-k", "0"), ("--score", "1.5"), ("--score", "nan"), ("--max-pixels", "0"), ("--max-side", "0"),
        ("--batch-size", "0"), ("--workers", "-1"), ("--image-timeout", "0"), ("--image-timeout", "nan"),
        ("--every", "0"), ("--start", "-1"), ("--start", "inf"), ("--duration", "0"), ("--alpha", "1.01"),
        ("--gpus-per-worker", "-1"),
    ],
)  # fmt: skip
def test_numbers_out_of_range(option: str, value: str) -> None:
    arguments = ["--engine", "ray"] if option.startswith("--gpus") else []
    result = CliRunner().invoke(main, [*arguments, option, value, "a.jpg"])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert option.lstrip("-") in line
    assert "must be" in line


def test_a_number_out_of_range_without_a_run() -> None:
    result = CliRunner().invoke(main, ["report", ".", "--workers", "-1"])
    assert (result.exit_code, result.stderr) == (2, "Error: --workers is -1, but it must be at least 0\n")


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("--format", "bmp", "'png', 'jpg', 'webp'"),
        ("--scale", "batch", "'image', 'run'"),
        ("--dtype", "float16", "'float32', 'bfloat16'"),
        ("--engine", "spark", "'local', 'ray'"),
        ("--beside", "lime", "'marginal', 'gradient'"),
        ("--threshold", "1.5", "a share between 0 and 1"),
        ("--threshold", "least:0.5", "as in 0.5 or mass:0.8"),
    ],
)
def test_unknown_words(option: str, value: str, hint: str) -> None:
    result = CliRunner().invoke(main, [option, value, "a.jpg"])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert option in line
    assert f"'{value}'" in line
    assert hint in line
