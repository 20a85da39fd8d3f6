"""Numbers out of range and unknown words are refused in one sentence that names the option, before any work."""

import pytest
from click.testing import CliRunner

from ebcli.cli.saliency import main


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--top-k", "0"), ("--score", "1.5"), ("--score", "nan"), ("--max-side", "0"),
        ("--batch-size", "0"), ("--workers", "-1"),
        ("--start", "-1"), ("--start", "inf"), ("--duration", "0"), ("--alpha", "1.01"),
    ],
)  # fmt: skip
def test_numbers_out_of_range(option: str, value: str) -> None:
    result = CliRunner().invoke(main, [option, value, "a.jpg"])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert option.lstrip("-") in line
    assert "must be" in line


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max-pixels", "0"), ("image-timeout", "0"), ("image-timeout", "nan"), ("timeout", "0"), ("retries", "-1"),
        ("gpus-per-worker", "-1"), ("channels", "0"),
    ],
)  # fmt: skip
def test_limits_out_of_range(setting: str, value: str) -> None:
    variable = f"EB_SALIENCY_{setting.replace('-', '_').upper()}"
    result = CliRunner().invoke(main, ["a.jpg"], env={variable: value})
    assert (result.exit_code, result.stdout) == (2, "")
    assert setting in result.stderr and "must be" in result.stderr
    assert "no such option" in CliRunner().invoke(main, [f"--{setting}", value, "a.jpg"]).stderr


def test_a_number_out_of_range_without_a_run() -> None:
    result = CliRunner().invoke(main, ["report", ".", "--workers", "-1"])
    assert (result.exit_code, result.stderr) == (2, "Error: --workers is -1, but it must be at least 0\n")


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("--format", "bmp", "'png', 'jpg', 'webp'"),
        ("--scale", "batch", "image, run, a number or a percentile"),
        ("--compare-with", "lime", "choose one of contrastive, marginal, object"),
        ("-x", "LayrCAM", "did you mean 'layer-cam'"),
        ("--threshold", "1.5", "a share between 0 and 1"),
        ("--resize", "160x160", "160 --fit squash makes squares of 160"),
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
