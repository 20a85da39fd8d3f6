"""What options were called before, and what other programs call them."""

_FORMER = {
    "--beside": "--compare-with",
    "--prove": "--sufficiency",
    "--like": "--similar-to",
    "--boxes": "--annotations boxes",
    "--masks": "--annotations masks",
    "--vmin": "--scale LOW,image",
    "--vmax": "--scale HIGH",
    "--percentile": "--scale 99%",
    "--print0": "-0",
    "--box": "--where X,Y,WIDTH,HEIGHT",
}
_ELSEWHERE = {
    "--profile": "--json: each record has its seconds",
    "--checkpoint": "--weights FILE",
    "--ckpt": "--weights FILE",
    "--imgsz": "--resize PIXELS",
    "--img-size": "--resize PIXELS",
    "--conf": "--score SCORE",
    "--method": "--panel --compare-with METHOD to see its map beside, or eb-saliency benchmark to measure methods",
    "--class": "--target CLASS",
    "--classes": "--target CLASS",
    "--gpu": "--device cuda",
    "--threads": "--workers N",
}


def named_now(option: str) -> str:
    """A hint what to write in place of an option; empty if it has no other name."""
    if option in _FORMER:
        return f"it is now {_FORMER[option]}"
    return f"use {_ELSEWHERE[option]}" if option in _ELSEWHERE else ""
