"""A fixture of pytest around `eb-saliency check`: a network whose maps moved fails its test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_NAME = "saliency_unchanged"
_networks: list[Any] = []  # the network of the test that runs


def network() -> Any:
    """The factory that the command is told of."""
    from ebcli.models import LoadedModel
    from ebcli.models.running import shallow_copy

    net = _networks[-1]
    if not isinstance(net, LoadedModel):
        return net
    twin: Any = shallow_copy(net.net)
    twin.preprocessing = net.transforms
    twin.categories = net.categories
    twin.scores = net.scores
    twin.task = net.task
    return twin


@pytest.fixture
def saliency_unchanged(tmp_path: Path) -> Callable[..., None]:
    """A function that repeats a run with another network, and fails the test if the maps differ from the run's.

    Call it as ``saliency_unchanged(baseline, net, min_correlation=0.9)``: the directory of a run with ``--raw``; the
    network, if it is another one, a module, a `LoadedModel` or a model's name; and options of `eb-saliency check`, with
    underscores.
    """

    def check(baseline: str | Path, net: Any = None, **options: Any) -> None:
        from click.testing import CliRunner

        from ebcli.cli.saliency import main

        arguments = {name.replace("_", "-"): value for name, value in options.items()}
        if net is not None:
            arguments["model"] = net if isinstance(net, str) else f"{__name__}:{network.__name__}"
        _networks.append(net)
        try:
            flags = [f"--{name}={value}" for name, value in arguments.items()]
            result = CliRunner().invoke(
                main, ["check", str(baseline), "-o", str(tmp_path / "saliency"), *flags]
            )
        finally:
            _networks.pop()
        if result.exit_code > 1:
            message = result.stderr.strip().replace(f"{__name__}:{network.__name__}", f"{_NAME}'s network")
            pytest.fail(message, pytrace=False)
        if result.exit_code:
            *wrong, report = result.stdout.splitlines()
            pytest.fail("\n".join([f"the saliency maps changed, see {report}", *wrong]), pytrace=False)

    return check
