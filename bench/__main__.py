"""`python -m bench`."""

import sys

from bench.app import main

sys.exit(main())
