"""``python -m topic_probe``: the command line."""

import sys

from topic_probe.cli import main

if __name__ == "__main__":
    sys.exit(main())
