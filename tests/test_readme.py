"""What the README promises can be typed as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from ebcli.cli import main
from ebcli.evaluate.cli import main as benchmark

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("eb-saliency")])
def test_the_examples_are_valid_command_lines(line: str) -> None:
    with main.make_context("eb-saliency", shlex.split(line)[1:]) as context:
        assert any(context.params[name] for name in ("images", "list_models", "list_layers", "report_only", "doctor"))


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("eb-benchmark")])
def test_the_measurements_are_valid_command_lines(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    name, *arguments = shlex.split(line)[1:]
    assert benchmark.commands[name].make_context(name, arguments).params["images"] == Path("photos")


def test_continuous_integration_runs_the_second_command() -> None:
    second = next(line for line in SHELL if ".ci/check" in line)
    assert second in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_the_files_it_shows_and_links_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https:")]
    assert len(links) >= 5
    assert all((ROOT / link).is_file() for link in links)


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    result = names["result"]
    assert result.maps.shape == (1, 2, 14, 14)  # type: ignore[attr-defined]
    assert isinstance(result.mass, torch.Tensor)  # type: ignore[attr-defined]
    assert result.mass.shape == (1, 2)  # type: ignore[attr-defined]
