"""`python -m actionpiece` is the `actionpiece` command."""

from actionpiece.cli import main

main()
