"""`python -m nightmail` is `nightmail`."""

import sys

from nightmail.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
