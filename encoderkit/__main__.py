"""`python -m encoderkit` is the `encoderkit` command."""

from encoderkit.cli import program

program()
