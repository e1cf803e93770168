"""`foretell serve`: forecasts for a team over HTTP, and the keys of who may ask."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretell.cli.options import AsJson
from foretell.cli.terminal import Verb, answer, guarded, note, say
from foretell.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from foretell.serve.database.connect import Database

app = typer.Typer(name="serve", help="Serve forecasts to a team over HTTP.", invoke_without_command=True)
Url = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="postgresql://user@host/name ($FORETELL_DATABASE); a file in your data folder without.",
    ),
]
_NEEDED = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "prometheus_client")


@app.callback()
def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option("--host", help="Where to listen, 127.0.0.1 without; others than loopback need keys.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="The port, 8760 without; 0 takes any that is free.", min=0, max=65535)
    ] = None,
    database: Url = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes that price.", metavar="N", min=1)] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests per second of a key.", metavar="N")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="The most that one question may take.", metavar="N")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", help="Forecasts and plans on this Ray cluster; auto finds this machine's.", metavar="ADDRESS"
        ),
    ] = None,
    method: Annotated[
        list[Path] | None,
        typer.Option(
            "--method",
            help="Also answer by this fitted method, a folder of fit --method; may be repeated.",
            metavar="FOLDER",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", help="A TOML file of these settings; $FORETELL_SERVE_PORT, … go before it.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Serve forecasts to a team over HTTP. It takes graphs, and never runs a caller's code."""
    if context.invoked_subcommand is None:
        methods = os.pathsep.join(map(str, method)) if method else None
        guarded(_serve)(
            config, host=host, port=port, database=database, workers=workers, rate=rate, seconds=seconds, ray=ray,
            methods=methods,
        )  # fmt: skip


def _serve(config: Path | None, **given: Any) -> None:
    _need()
    from foretell.serve.run import run
    from foretell.serve.settings import gathered

    run(gathered(given, os.environ, config), _started)


def _started(address: str) -> None:
    say(f"Foretell serves at {address}")
    note(f"Ask it: foretell predict SOURCE --on CLUSTER --server {address}; stop it with Ctrl-C")


def key(
    team: Annotated[str, typer.Argument(metavar="TEAM", help="Whose key it is; a team sees its own data alone.")],
    role: Annotated[str, typer.Option("--role", help="reader, member (asks and sends) or admin.")] = "member",
    label: Annotated[str, typer.Option("--label", help="What the key is for.")] = "",
    database: Url = None,
) -> None:
    """Make a key for a team, and print it: it cannot be shown again."""
    from foretell.serve.access.keys import make_key

    say(make_key(_database(database), team, role, label))
    note("Give it to whoever asks, as $FORETELL_KEY. A service that runs without keys must be started again.")


def keys(database: Url = None, as_json: AsJson = False) -> None:
    """List keys: whose they are, and what they may do. Their secrets are not kept."""
    from foretell.serve.access.keys import list_keys

    found = list_keys(_database(database))
    answer(as_json, lambda: found, lambda width: _table(found))


def revoke(
    name: Annotated[str, typer.Argument(metavar="KEY", help="The key's name, as `foretell serve keys` lists it.")],
    database: Url = None,
) -> None:
    """Take a key back; the service refuses it within seconds."""
    from foretell.serve.access.keys import revoke_key

    revoke_key(_database(database), name)
    note(f"Key {name} is revoked")


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write.")], database: Url = None
) -> None:
    """Write everything that the service keeps into one file; it may go on serving."""
    from foretell.serve.database.backup import back_up

    rows = back_up(_database(database), file)
    note(f"{rows:,} rows are in {file}. It has no keys in clear, but all that teams have sent: keep it safe.")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `foretell serve backup` has written.")],
    database: Url = None,
) -> None:
    """Read a backup into an empty database, of the same kind or of another."""
    from foretell.serve.database.backup import restore as read

    note(f"{read(_database(database), file):,} rows are back")


for verb in (key, keys, revoke, backup, restore):
    app.command(cls=Verb)(guarded(verb))


def _database(url: str | None) -> Database:
    _need()
    from foretell.serve.database.connect import Database

    return Database(_url(url))


def _url(given: str | None) -> str | None:
    return given or os.environ.get("FORETELL_DATABASE")


def _need() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"the service needs {', '.join(missing)}. Install them: pip install 'foretell[serve]'")


def _table(found: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("key", "team", "role", "label", "state"):
        table.add_column(name)
    for each in found:
        table.add_row(
            each["key"], each["team"], each["role"], each["label"], "revoked" if each["revoked"] else "in use"
        )
    return table
