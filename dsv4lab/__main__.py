"""``python -m dsv4lab`` is the command ``dsv4lab``; so ``torchrun -m dsv4lab`` starts it on every rank."""

import sys

from dsv4lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
