"""What every verb shares: how its help is laid out, how its errors end, how it prints and reports progress.

All that is printed goes through here, so that no name from a file reaches the terminal as it is.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec

from typer import BadParameter
from typer.core import TyperCommand

from foretell.errors import ForetellError, InputError
from foretell.text import brief, json_text, plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

P = ParamSpec("P")
_UsageError: Final = BadParameter.__bases__[0]  # of click, which some versions of typer have inside
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_READER_GONE = 141  # 128 + SIGPIPE
_NARROWEST, _USUAL = 20, 80  # columns: in fewer nothing can be read, so $COLUMNS is wrong
_LINE_AFTER = 2.0  # seconds between two lines of progress
_RENAMED: Final = {"--samples": "--job-samples", "--tokens": "--job-tokens"}  # old names still work, with a notice


class Verb(TyperCommand):
    """A command whose help groups its options by their panel, as plain text: rich would take as long again to load."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        panels["Options"] = panels.pop("Options", [])  # what has no panel comes last
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        own = args.index("--") if "--" in args else len(args)  # what follows is a script's
        if "--debug" in args[:own]:  # as before the command
            os.environ["FORETELL_DEBUG"] = "1"
            args = [argument for argument in args[:own] if argument != "--debug"] + args[own:]
        for place, argument in enumerate(args):
            name, *value = argument.split("=", 1)
            if name not in known and _RENAMED.get(name) in known:
                note(f"{name} is now called {_RENAMED[name]}; the old name still works.")
                args[place] = "=".join([_RENAMED[name], *value])
        return super().parse_args(ctx, args)


def guarded(function: Callable[P, None]) -> Callable[P, None]:
    """A verb whose errors become a paragraph and an exit code."""

    @functools.wraps(function)
    def verb(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except ForetellError as error:
            _fail(str(error), error.exit_code, error)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None
        except _ReaderGone:
            raise SystemExit(_READER_GONE) from None
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None and error.strerror:
                # Of a file that was asked for, or of the machine: nothing that a report of a bug would help.
                _fail(brief(f"{error.filename}: {error.strerror}. Choose another file or folder."), 2, error)
            if isinstance(error, UnicodeEncodeError):  # half a character, as a shell passes on bytes that are no text
                _fail(brief(f"{error.object!r} is not valid text in UTF-8. Write it anew."), 2, error)
            _fail(_bug_text(error), 1, error)

    return verb


def open_streams() -> None:
    """Standard streams that can be written to, whatever the caller left of them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:  # closed; the next file to be opened would take its place
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
        elif hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without × must not end the program


@contextmanager
def plain_misuse() -> Iterator[None]:
    """A command line that is wrong is quoted by what says so."""
    try:
        yield
    except Exception as error:
        if isinstance(error, _UsageError):
            vars(error)["message"] = brief(plain(vars(error)["message"]))
        raise


class _ReaderGone(Exception):
    """Nobody reads our standard output."""


def say(text: str) -> None:
    """A line on standard output."""
    _write(plain(text) + "\n")


def print_json(value: Any) -> None:
    _write(json_text(value) + "\n")


def _write(text: str) -> None:
    with standard_output():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def standard_output() -> Iterator[None]:
    """What writes there meets a reader that has gone, or a full disk."""
    try:
        yield
    except OSError as error:
        # Python must not complain about it a second time when it flushes at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError) or error.errno == errno.EBADF:
            raise _ReaderGone from None
        raise InputError(f"standard output cannot be written: {error.strerror}. Send it elsewhere.") from None


def answer(as_json: bool, data: Callable[[], Any], table: Callable[[int], RenderableType]) -> None:
    """What a verb was asked for: data for programs, or for a person a table in so many columns."""
    if as_json:
        print_json(data())
    else:
        print_drawn(table(console_of().width))


def print_drawn(what: RenderableType) -> None:
    """Draw first, then write: a reader that goes away then meets one plain write."""
    console = console_of()
    with standard_output(), console.capture() as drawn:
        console.print(what)
    _write("\n".join(line.rstrip() for line in drawn.get().split("\n")))


def console_of(*, stderr: bool = False) -> Console:
    console = _console_type()(stderr=stderr, highlight=False, markup=False, emoji=False)
    if console.width < _NARROWEST:
        console.width = _USUAL
    return console


@functools.cache
def _console_type() -> type[Console]:
    """Made when it is needed: rich takes a while to load."""
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class PlainConsole(Console):
        """What is drawn is plain; how it is drawn, colours and moves of the cursor, is ours."""

        def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=plain(segment.text))

    return PlainConsole


def write_error(data: bytes) -> None:
    """What user code prints, as it comes, on standard error."""
    with suppress(OSError):
        sys.stderr.write(plain(data.decode(errors="replace")))
        sys.stderr.flush()


def note(text: str) -> None:
    """A line on standard error, beside the answer."""
    with suppress(OSError):  # nobody reads it
        console_of(stderr=True).print(brief(text), style="dim", soft_wrap=True)


@contextmanager
def progress(verbose: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that reports what is going on, on standard error and only to a person, or to who wants to know."""
    if verbose:  # lines, since what a script prints is among them
        yield _every(_LINE_AFTER)
        return
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console_of(stderr=True), transient=True) as shown:
        task = shown.add_task("Starting", total=None)
        yield lambda text: shown.update(task, description=text)


def _every(seconds: float) -> Callable[[str], None]:
    """A function that prints what it is given, unless it has done so just now."""
    last = -seconds

    def report(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            note(text)

    return report


def _fail(text: str, code: int, error: Exception) -> NoReturn:
    from rich.text import Text

    console = console_of(stderr=True)
    # A file or pipe gets the paragraph in one line, which is easier to search.
    with suppress(OSError):
        console.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=not console.is_terminal)
    if os.environ.get("FORETELL_DEBUG", "0") not in ("", "0"):
        import traceback

        frames = traceback.format_tb(error.__traceback__)  # what it says stands above, with the user's own frames
        own = ["Traceback (most recent call last), in Foretell:\n", *frames]
        with suppress(OSError):
            sys.stderr.write(
                plain("".join(own if isinstance(error, ForetellError) else traceback.format_exception(error)))
            )
    raise SystemExit(code)


def _bug_text(error: Exception) -> str:
    import traceback

    what = "".join(traceback.format_exception_only(error)).strip()  # also of errors that cannot say what they are
    return (
        f"this is a bug in Foretell ({brief(what)}). Run it again with foretell --debug … to see "
        "where, and please report it with the command you ran."
    )
