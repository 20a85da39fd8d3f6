"""Plans from flat keyword arguments, named like the fields of the plan's parts."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from ebcli.drawing.style import DrawingStyle
from ebcli.files.clips import ClipOptions
from ebcli.files.paths import RemoteOptions
from ebcli.models.spec import ModelSpec, Preprocessing
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import ExecutionOptions, InputOptions, MapOptions, OutputOptions


def make_plan(*images: Path | str, **options: Any) -> RunPlan:
    """``style`` names the style, ``model`` the network and ``output`` the directory; others are named like fields."""
    options["images"] = tuple(map(Path, options.get("images", images)))
    if not options.pop("contrastive", True):
        options["method"] = ("marginal",)

    def part(kind: type[Any], **renamed: str) -> Any:
        names = {field.name: renamed.get(field.name, field.name) for field in fields(kind)}
        return kind(**{field: options.pop(name) for field, name in names.items() if name in options})

    options["remote"], options["clips"] = part(RemoteOptions), part(ClipOptions)
    maps = part(MapOptions, layers="layer", targets="target", methods="method", beside="compare_with")
    inputs, style = part(InputOptions), part(DrawingStyle, name="style")
    options["preprocessing"] = part(Preprocessing)
    model = part(ModelSpec, name="model", like="similar_to")
    plan = RunPlan(
        inputs,
        model=model,
        maps=maps,
        style=style,
        output=part(OutputOptions, directory="output"),
        execution=part(ExecutionOptions),
    )
    assert not options, f"no part of a plan has {options}"
    return plan


def command_plan(*images: Path | str, **options: Any) -> RunPlan:
    """The plan that the command makes of options: ``make_plan``, with whole images unless an option crops them."""
    is_fitted = any(name in options for name in ("fit", "crop"))
    return make_plan(*images, **({} if is_fitted else {"fit": "whole"}), **options)
