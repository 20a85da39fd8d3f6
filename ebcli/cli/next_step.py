"""What to try next: the last line of a run on a terminal."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from ebcli.models.keywords import BUNDLED, CLASSIFICATION
from ebcli.run.plan import CHOOSING, RunPlan
from ebcli.run.plan_text import as_command

if TYPE_CHECKING:
    from ebcli.run.engine import Run

_MOST_NAMED = 3  # inputs; with more, the line would be long


def next_step(work: Run, plan: RunPlan) -> str:
    """What shows more of the photos that were explained, as a command; empty if there is none."""
    images, output, model = plan.inputs.images, plan.output, plan.model
    if plan.words or work.unit != "image" or not all(map(os.path.exists, images)):
        return ""
    named = [str(image) for image in images if len(images) <= _MOST_NAMED]
    is_classified = work.task == CLASSIFICATION and not model.described
    if work.total + len(work.skipped) > 1:
        if not output.report:
            return f"All maps on one page: {shlex.join(['eb-saliency', 'report', str(output.directory), *named])}"
        if plan.inputs.labels is None and is_classified:
            return "Which predictions are wrong? Add --labels FILE, or --labels folders"
    elif is_classified and not any(plan.values.get(name) for name in CHOOSING):
        return f"More classes: {as_command(plan.but(top_k=3))}"
    if model != RunPlan.of(images=images, model=model.name).model:  # the page gets neither weights nor preprocessing
        return ""
    asked = [] if model.name == BUNDLED else ["--model", model.name]
    return f"Any class, any layer, in the browser: {shlex.join(['eb-saliency', 'serve', *asked, *named])}"
