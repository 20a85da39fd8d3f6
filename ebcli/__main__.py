"""``eb-saliency``, and ``python -m ebcli``."""

import signal


def main() -> None:
    """Run the command. Until it handles Ctrl-C itself, as while it is imported, Ctrl-C ends it without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup and & ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ebcli.cli.saliency import main as run

    run(prog_name="eb-saliency")


if __name__ == "__main__":
    main()
