"""A launch line, as it is typed: which script or module it starts, in how many processes, with which variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from foretell.errors import SourceError
from foretell.limits import read_bytes
from foretell.sources.configs.shell import programs_of
from foretell.sources.launch.accelerate import environment_of, file_of
from foretell.sources.launch.words import count_of, take_assignments, take_options, words_of

Launcher = Literal["python", "torchrun", "srun", "mpirun"]
_TORCHRUN_FLAGS: Final = ("standalone", "m", "module", "no-python", "run-path", "use-env", "virtual-local-rank")
_DEEPSPEED_FLAGS: Final = (
    "module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid", "bind-cores-to-rank",
    "quiet", "enable-each-rank-log",
)  # fmt: skip
_ACCELERATE_FLAGS: Final = (
    "quiet", "q", "cpu", "multi-gpu", "tpu", "enable-cpu-affinity", "dynamo-use-fullgraph", "dynamo-use-dynamic",
    "dynamo-use-regional-compilation", "use-deepspeed", "use-fsdp", "use-parallelism-config", "use-megatron-lm",
    "same-network", "m", "module", "no-python", "tpu-cluster", "tpu-use-sudo", "downcast-bf16", "debug", "use-xpu", "ipex",
)  # fmt: skip
_SRUN_FLAGS: Final = (
    "l", "label", "u", "unbuffered", "v", "verbose", "Q", "quiet", "exclusive", "pty", "K", "kill-on-bad-exit", "O",
    "overcommit", "overlap", "s", "oversubscribe", "exact", "X", "disable-status", "multi-prog", "no-kill", "k",
)  # fmt: skip
_MPIRUN_FLAGS: Final = (
    "allow-run-as-root",
    "oversubscribe",
    "tag-output",
    "verbose",
    "v",
    "quiet",
    "q",
    "report-bindings",
)
_PYTHON_FLAGS: Final = ("u", "O", "OO", "B", "b", "E", "I", "i", "P", "q", "s", "S", "v", "d")
_SHELL_FLAGS: Final = ("e", "x", "u", "ex", "eux", "l", "i", "v")
_DEEPEST: Final = 8
_PLAIN: Final = ("nohup", "time", "exec", "sudo", "stdbuf", "ipdb3", "pdb")
_ELSE: Final = {
    "tune": "torchtune's recipes are configurations: foretell predict THE_CONFIG.yaml, or give the recipe's file: --launch "
    "'torchrun --nproc-per-node N recipes/NAME.py --config …'.",
    "axolotl": "Give its configuration: foretell predict THE_CONFIG.yaml.",
    "llamafactory-cli": "Give its configuration: foretell predict THE_CONFIG.yaml.",
    "sbatch": "Give the line in the file that starts the training, such as 'srun python train.py …'.",
    "docker": "Give what runs in the container, such as 'torchrun … train.py …'.",
}  # fmt: skip
_FORM: Final = (
    "A launch line is [NAME=value …] python, torchrun, deepspeed, accelerate launch, composer, fabric run, srun or mpirun, "
    "with a script or -m MODULE and its arguments."
)


@dataclass(kw_only=True)
class Launch:
    """What a launch line starts."""

    path: str = ""
    module: str | None = None
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    launcher: Launcher = "python"
    per_node: int | None = None  # processes; None: one for each device
    nodes: int | None = None
    shells: int = 0  # scripts of the shell that start each other

    @property
    def processes(self) -> int | None:
        return None if self.per_node is None else self.per_node * (self.nodes or 1)


def read_launch(line: str) -> Launch:
    """What the line starts; an error says what it is not."""
    words = words_of(line)
    launch = Launch(environment=take_assignments(words))
    _read(launch, words)
    if launch.per_node is None:
        launch.per_node = _visible(launch.environment)
    return launch


def is_launch_line(text: str) -> bool:
    """Whether several words begin as a line that starts a training does; a file may have a space in its name."""
    first, _, rest = text.strip().partition(" ")
    program = first.rpartition("/")[2]
    starts = program.endswith((".py", ".sh")) or program.startswith("python") or program in (*_READERS, *_ELSE, *_PLAIN)
    return bool(rest) and (starts or "=" in first) and not Path(text).exists()


def _read(launch: Launch, words: list[str]) -> None:
    while words and words[0].rpartition("/")[2] in _PLAIN:
        words.pop(0)
    launch.environment.update(take_assignments(words))
    if not words:
        raise SourceError(f"the launch line starts nothing. {_FORM}")
    first = words[0].rpartition("/")[2]
    if first in _ELSE:
        raise SourceError(f"the launch line starts {first}, which is no script of torch's. {_ELSE[first]}")
    if len(words) > 2 and words[1] == "run" and first in ("uv", "poetry", "pdm", "hatch", "rye", "pixi", "conda"):
        del words[:2]
        take_options(words, ("no-capture-output", "live-stream", "isolated", "frozen", "no-sync"), first)
        _read(launch, words)
    elif first in _READERS:
        words.pop(0)
        _READERS[first](launch, words)
    elif first.startswith("python"):
        words.pop(0)
        _read_python(launch, words)
    elif first.endswith(".sh"):
        _read_shell(launch, words)
    else:
        _take_program(launch, words, module=False)


def _take_program(launch: Launch, words: list[str], *, module: bool, ends_options: bool = False) -> None:
    """The script or module, and its own arguments after it.

    `ends_options`: a launcher that reads its line with argparse keeps a -- right after the program to itself.
    """
    if not words:
        raise SourceError(f"the launch line names no script. {_FORM}")
    program = words.pop(0)
    if ends_options and words[:1] == ["--"]:
        words.pop(0)
    launch.arguments += words
    if module:
        launch.module = program
    elif program.endswith(".py"):
        launch.path = program
    else:
        raise SourceError(f"the launch line starts {program!r}, which is no Python script. {_FORM}")


def _read_python(launch: Launch, words: list[str]) -> None:
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "-m":
            if words and words[0] in _MODULES:
                _MODULES[words.pop(0)](launch, words)
                return
            _take_program(launch, words, module=True)
            return
        if word in ("-W", "-X") and words:
            words.pop(0)
        elif word.lstrip("-") not in _PYTHON_FLAGS and not word.startswith(("-W", "-X")):
            raise SourceError(f"python {word} in the launch line runs no file. {_FORM}")
    _take_program(launch, words, module=False)


def _read_shell(launch: Launch, words: list[str]) -> None:
    """A script of the shell, which is read and not run: the one program that it starts."""
    take_options(words, _SHELL_FLAGS, "bash")
    if not words:
        raise SourceError(f"the launch line names no script. {_FORM}")
    path, given = Path(words[0]), words[1:]
    launch.shells += 1
    if launch.shells > _DEEPEST:
        raise SourceError(f"{path} and other scripts start each other. Give the line in it that starts the training.")
    try:
        text = read_bytes(path, "bytes of a configuration").decode()
    except (OSError, ValueError) as error:
        raise SourceError(
            f"the launch line starts {words[0]}, which cannot be read: {error}. Correct its path."
        ) from None
    programs = programs_of(text, path.parent, given, launch.environment)
    if len(named := dict.fromkeys(each.program for each in programs)) != 1:
        several = f"several programs: {', '.join(named)}" if named else "no Python program that can be told"
        raise SourceError(f"{words[0]} starts {several}. Give the line in it that starts the training.")
    launch.environment |= programs[0].environment
    _read(launch, list(programs[0].words))


def _read_torchrun(launch: Launch, words: list[str]) -> None:
    options = take_options(words, _TORCHRUN_FLAGS, "torchrun")
    launch.launcher = "torchrun"
    launch.nodes = count_of(options, "torchrun", "nnodes") or 1
    per_node = options.get("nproc-per-node", "1")
    launch.per_node = None if per_node in ("gpu", "auto") else count_of(options, "torchrun", "nproc-per-node") or 1
    if "no-python" in options:
        _read(launch, words)
    else:
        _take_program(launch, words, module="m" in options or "module" in options, ends_options=True)


def _read_distributed_launch(launch: Launch, words: list[str]) -> None:
    """The older launcher: it hands the rank over as an argument."""
    if not {"--use_env", "--use-env"} & set(words):
        launch.arguments.append("--local_rank=0")
    _read_torchrun(launch, words)


def _read_deepspeed(launch: Launch, words: list[str]) -> None:
    options = take_options(words, _DEEPSPEED_FLAGS, "deepspeed")
    launch.launcher = "torchrun"
    launch.per_node = count_of(options, "deepspeed", "num-gpus", "num-accelerators")
    launch.nodes = count_of(options, "deepspeed", "num-nodes")
    if include := options.get("include"):  # host:0,1,2@other:0
        hosts = include.split("@")
        launch.nodes = len(hosts)
        slots = hosts[0].partition(":")[2]
        launch.per_node = len(slots.split(",")) if slots else launch.per_node
    if "no-local-rank" not in options:
        launch.arguments.append("--local_rank=0")
    _take_program(launch, words, module="module" in options, ends_options=True)


def _read_accelerate(launch: Launch, words: list[str]) -> None:
    if words and words[0] == "launch":
        words.pop(0)
    options = take_options(words, _ACCELERATE_FLAGS, "accelerate launch")
    entries = file_of(options.get("config-file")) | {k.replace("-", "_"): v for k, v in options.items()}
    known = {name.replace("_", "-"): str(value) for name, value in entries.items()}
    total = count_of(known, "accelerate launch", "num-processes")
    launch.launcher = "torchrun"
    launch.nodes = count_of(known, "accelerate launch", "num-machines")
    launch.per_node = None if total is None else max(total // (launch.nodes or 1), 1)
    launch.environment = environment_of(entries) | launch.environment
    _take_program(launch, words, module="m" in options or "module" in options, ends_options=True)


def _read_composer(launch: Launch, words: list[str]) -> None:
    options = take_options(words, ("m", "module-mode", "c", "command-mode", "v", "verbose"), "composer")
    launch.launcher = "torchrun"
    launch.per_node = count_of(options, "composer", "n", "nproc")
    total = count_of(options, "composer", "world-size")
    launch.nodes = total // launch.per_node if total and launch.per_node else None
    _take_program(launch, words, module="m" in options or "module-mode" in options, ends_options=True)


def _read_fabric(launch: Launch, words: list[str]) -> None:
    """`fabric run`, and `lightning run model` before it."""
    while words and words[0] in ("run", "model"):
        words.pop(0)
    options = take_options(words, (), "fabric run")
    launch.launcher = "torchrun"
    launch.per_node = count_of(options, "fabric run", "devices")
    launch.nodes = count_of(options, "fabric run", "num-nodes")
    launch.environment = {
        "LT_CLI_USED": "1",
        **{f"LT_{name.replace('-', '_').upper()}": value for name, value in options.items() if name != "main-address"},
    } | launch.environment
    _take_program(launch, words, module=False)


def _read_srun(launch: Launch, words: list[str]) -> None:
    options = take_options(words, _SRUN_FLAGS, "srun")
    tasks = count_of(options, "srun", "n", "ntasks")
    launch.nodes = count_of(options, "srun", "N", "nodes")
    launch.per_node = count_of(options, "srun", "ntasks-per-node")
    if tasks is not None and launch.per_node is None:
        launch.per_node = max(tasks // (launch.nodes or 1), 1)
    launch.launcher = "srun"
    _read_inside(launch, words)


def _read_mpirun(launch: Launch, words: list[str]) -> None:
    options = take_options(words, _MPIRUN_FLAGS, "mpirun", pairs=("mca", "genv"))
    launch.per_node = count_of(options, "mpirun", "n", "np", "c")
    launch.launcher = "mpirun"
    _read_inside(launch, words)


def _read_inside(launch: Launch, words: list[str]) -> None:
    """What a scheduler starts: a script, or another launcher, which then decides."""
    outer, per_node, nodes = launch.launcher, launch.per_node, launch.nodes
    launch.launcher = "python"
    _read(launch, words)
    if launch.launcher == "python":
        launch.launcher, launch.per_node, launch.nodes = outer, per_node, nodes
    elif launch.nodes in (None, 1) and nodes is not None:
        launch.nodes = nodes


def _visible(environment: dict[str, str]) -> int | None:
    """Devices that a line leaves its processes."""
    visible = [each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    return len(visible) or None


_READERS: Final[dict[str, Callable[[Launch, list[str]], None]]] = {
    "bash": _read_shell, "sh": _read_shell,
    "torchrun": _read_torchrun, "deepspeed": _read_deepspeed, "accelerate": _read_accelerate, "srun": _read_srun,
    "accelerate-launch": _read_accelerate, "composer": _read_composer, "fabric": _read_fabric, "lightning": _read_fabric,
    "mpirun": _read_mpirun, "mpiexec": _read_mpirun, "horovodrun": _read_mpirun,
}  # fmt: skip
_MODULES: Final[dict[str, Callable[[Launch, list[str]], None]]] = {
    "torch.distributed.run": _read_torchrun, "torch.distributed.launch": _read_distributed_launch,
    "torch.distributed.elastic_launch": _read_torchrun, "deepspeed.launcher.runner": _read_deepspeed,
    "accelerate.commands.launch": _read_accelerate, "accelerate.commands.accelerate_cli": _read_accelerate,
}  # fmt: skip
