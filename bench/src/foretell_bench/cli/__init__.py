"""`foretell bench`: how wrong Foretell is, on measurements others have published."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

# Loaded when they are run: `foretell --help` waits for none of them.
_VERBS: Final = {
    "accuracy": "cli.one_device:accuracy",
    "answers": "answers.cli:answers",
    "captures": "measuring.cli:captures",
    "devices": "cli.other_devices:devices",
    "distributed": "cli.jobs:distributed",
    "intervals": "cli.other_devices:intervals",
    "methods": "cli.methods:methods",
    "newer": "cli.one_device:newer",
    "papers": "cli.jobs:papers",
    "peers": "cli.jobs:peers",
    "plain": "cli.one_device:plain",
    "planner": "cli.decisions:planner",
    "power": "cli.other_devices:power",
    "published": "cli.jobs:published",
    "resources": "cli.one_device:resources",
    "status": "cli.status:status",
    "transfer": "cli.other_devices:transfer",
    "emulated": "emulated.cli:app",
    "fit": "fitting.cli:app",
    "measure": "measuring.cli:app",
    "memory": "measuring.memory.cli:app",
    "scripts": "studies.scripts.cli:app",
    "speed": "speed.cli:app",
    "study": "studies.cli:app",
}


class _Verbs(TyperGroup):
    """Verbs and groups of verbs, each where its module has it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _VERBS:
            return None
        module, _, name = _VERBS[cmd_name].partition(":")
        verb = getattr(import_module(f"foretell_bench.{module}"), name)
        if isinstance(verb, typer.Typer):
            return typer.main.get_group(verb)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cmd_name)(verb)
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Verbs,
    name="bench",
    help="Compare what Foretell predicts with what was measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _bench() -> None:
    """Compare what Foretell predicts with what was measured."""
