"""`python -m localdflash`: the command line."""

import sys

from localdflash.cli import main

sys.exit(main())
