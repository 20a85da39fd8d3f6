"""``eb-saliency``, and ``python -m ebcli``."""

import atexit
import gc
import signal
import sys


def main() -> None:
    """Run the command. Until it handles Ctrl-C itself, as while it is imported, Ctrl-C ends it without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup and & ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # importing and ending PyTorch makes Python search its many objects for garbage, for a third of a second
    gc.set_threshold(20_000)
    # with Triton, all that is left of it would be printed
    atexit.register(lambda: None if "triton" in sys.modules else gc.freeze())
    from ebcli.imports import import_elsewhere

    import_elsewhere()
    from ebcli.cli.saliency import main as run

    run(prog_name="eb-saliency")


if __name__ == "__main__":
    main()
