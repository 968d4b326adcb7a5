"""`python -m encoderkit` is the `encoderkit` command."""

import sys

from encoderkit.cli import main

sys.exit(main())
