"""``python -m ebcli`` is ``eb-saliency``."""

from ebcli.cli.saliency import main

if __name__ == "__main__":
    main(prog_name="eb-saliency")
