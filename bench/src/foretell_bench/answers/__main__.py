"""Runs the verb by itself, so that a Foretell without it can be asked too."""

import typer

from foretell_bench.answers.cli import answers

typer.run(answers)
