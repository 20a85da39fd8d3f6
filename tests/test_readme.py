"""What the README promises can be typed as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]


def test_continuous_integration_runs_the_second_command() -> None:
    second = next(line for line in SHELL if ".ci/check" in line)
    assert second in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    result = names["result"]
    assert result.maps.shape == (1, 2, 14, 14)  # type: ignore[attr-defined]
    assert isinstance(result.mass, torch.Tensor)  # type: ignore[attr-defined]
    assert result.mass.shape == (1, 2)  # type: ignore[attr-defined]
