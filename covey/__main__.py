"""`python -m covey`."""

import sys

from covey.cli import main

sys.exit(main())
