"""`python -m foretell` is `foretell`."""

from foretell.cli import main

main()
