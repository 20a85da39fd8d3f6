"""The table of docs/ask.md: `eb-saliency ask` with a small random model of each family, its tokenizer and processor.

python -m benchmarks.vision_language_table
"""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path[:0] = str(ROOT), str(ROOT / "tests/helpers")

PHOTO = ROOT / "sample_images/chelsea.jpg"
QUESTION = "what is on the table ?"
ANSWER = "a red cup on the table"


def row(family: str, folder: Path) -> tuple[str, ...]:
    """The family, where its photos enter, how many tokens have a place, and what came of it."""
    from click.testing import CliRunner
    from PIL import Image
    from vision_language import save

    from ebcli.cli.saliency import main
    from ebcli.models.sources.vision_language import VisionLanguage

    with contextlib.redirect_stderr(io.StringIO()):
        save(family, folder / family)
    words = [str(PHOTO), QUESTION, "--answer", ANSWER, "--model", str(folder / family), "-o", str(folder)]
    result = CliRunner().invoke(main, ["ask", *words, "--device", "cpu", "--overwrite"])
    if result.exit_code:
        return family, "", "", (result.stderr.strip().splitlines() or [repr(result.exception)])[-1]
    model = VisionLanguage(str(folder / family), "cpu", torch.float32)
    entry, tokens = model.photo_tokens(Image.open(PHOTO).size, QUESTION)
    placed = int(tokens.boxes.isfinite().all(1).sum())
    return family, f"`{entry.call.module}`", f"{placed} of {len(tokens.boxes)}", "explained"


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    from vision_language import FAMILIES
    from vision_language_more import MORE

    print(f"transformers {transformers.__version__}\n")
    print("| type | where the photo enters | tokens with a place | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for family in sorted(FAMILIES | MORE):
            print(f"| {' | '.join(row(family, Path(folder)))} |")


if __name__ == "__main__":
    main()
