"""The command line: torchtitan's flags, with ours first in the help and errors in one line."""

import contextlib
import difflib
import importlib
import inspect
import io
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from titan_integration.errors import UserError
from titan_integration.run.flags import flags_of
from titan_integration.upstream import ConfigManager

_FIRST = ("hf_assets_path", "dump_folder")
_ALSO = (
    "training.seq_len",
    "training.steps",
    "training.global_batch_size",
    "lr_scheduler.unit",
    "lr_scheduler.warmup",
    "lr_scheduler.decay",
    "checkpoint.interval",
    "checkpoint.keep_latest_k",
    "checkpoint.load_step",
    "checkpoint.initial_load_path",
    "metrics.log_freq",
    "metrics.enable_tensorboard",
    "metrics.enable_wandb",
    "validator.enable",
    "validator.freq",
)
# Made from the data section: what is set there would be overwritten.
_DERIVED = ("dataloader", "validator.dataloader")
_WIDTH = 100
_MOST_LINES = 95  # of the help
_ASIDES = r" ?(?:Argument helptext|Available subcommands|For full helptext|Perhaps you)"
USAGE = """\
usage: python -m titan_integration.train --module MODULE --config NAME [--FLAG VALUE ...]

Trains on the rows of files. On several ranks: python -m titan_integration.launch --standalone
--nproc_per_node=N -m titan_integration.train ...  Configurations are functions of a module, e.g.
--module configs.llama3 --config debug_odb; --help after them shows their defaults. A flag that is
on is put off with "no-": --data.no-shuffle.
"""


def parse(args: Sequence[str], default: type) -> Any:
    """The configuration that the command line describes.

    Args:
        args: Without the program's name.
        default: Configuration whose flags the help lists where no module is named.
    Raises:
        UserError: It describes none.
        SystemExit: After printing the help that was asked for.
    """
    wants_help = any(arg in ("-h", "--help") for arg in args)
    if wants_help and not any(arg.startswith("--module") for arg in args):
        _show_help(default())
    config = _configuration(args)
    if wants_help:
        _show_help(config)
    wants_all = "--help-all" in args
    _refuse_derived(args, config)
    try:
        with _captured(not wants_all) as said:
            return ConfigManager().parse_args(["--help" if a == "--help-all" else a for a in args])
    except SystemExit as stop:
        if wants_all or stop.code == 0:
            raise
        raise UserError(_complaint(said.getvalue(), args, config)) from None
    except (ValueError, ImportError) as error:
        raise UserError(" ".join(str(error).split())) from error


def _show_help(config: Any) -> None:
    flags = {flag.name: flag for flag in flags_of(config)}
    ours = [flag for name, flag in flags.items() if name in _FIRST or name.startswith("data.")]
    also = [flags[name] for name in _ALSO if name in flags]
    print(USAGE)
    room = _MOST_LINES - USAGE.count("\n") - 4 - len(also)
    for title, some, most in (
        ("data and batches:", ours, 2 if 2 * len(ours) <= room else 1),
        ("what else is often set:", also, 1),
    ):
        print(title)
        for flag in some:
            print("\n".join(flag.lines(_WIDTH, most)))
    print("all other flags of torchtitan: --help-all")
    sys.exit(0)


def _configuration(args: Sequence[str]) -> Any:
    """What ``--module`` and ``--config`` name, before other flags change it."""
    module_name, name = _value(args, "--module"), _value(args, "--config")
    if module_name is None or name is None:
        missing = "--module" if module_name is None else "--config"
        raise UserError(
            f"{missing} is missing: name a configuration, e.g. --module configs.llama3 "
            "--config debug_odb; --help lists the flags"
        )
    module = _module(module_name)
    if module is None:
        return None  # torchtitan's own short names; it says what is wrong with them
    offered = configurations(module)
    function = getattr(module, name, None)
    if not callable(function):
        close = difflib.get_close_matches(name, offered, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(
            f"{module.__name__} has no configuration {name!r}{hint} It has: {', '.join(offered)}"
        )
    return function()


def _value(args: Sequence[str], flag: str) -> str | None:
    for place, arg in reversed(list(enumerate(args))):  # the last one counts
        if arg == flag:
            return args[place + 1] if place + 1 < len(args) else None
        if arg.startswith(f"{flag}="):
            return arg.partition("=")[2]
    return None


def _module(name: str) -> ModuleType | None:
    """The module that torchtitan would take; None for its short names.

    Raises:
        UserError: It, or something that it imports, is not there.
    """
    if "." not in name and importlib.util.find_spec(name) is None:
        return None
    for candidate in (f"{name}.config_registry", name):
        try:
            return importlib.import_module(candidate)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not candidate.startswith(missing) or not missing:
                raise UserError(f"--module {name} imports {missing}, which is missing") from error
        except Exception as error:
            raise UserError(
                f"--module {name} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    raise UserError(
        f"--module {name} does not exist; give a module of functions, as configs.llama3"
    )


def configurations(module: ModuleType) -> list[str]:
    """Names of its functions that take nothing and return a configuration."""
    found = []
    for name, function in vars(module).items():
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        needs = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        returned = function.__annotations__.get("return")
        if not needs and str(getattr(returned, "__qualname__", returned)).endswith("Config"):
            found.append(name)
    return found


def _refuse_derived(args: Sequence[str], config: Any) -> None:
    names = {flag.name for flag in flags_of(config)} if config is not None else set()
    given = {"data.path", "data.mix"} & set(map(_name, args))
    if "data.path" not in names or not (given or config.data.has_rows):
        return  # the configured dataloader's own flags
    validated = config.data.has_validation or any("data.validation_" in _name(a) for a in args)
    derived = _DERIVED if validated else _DERIVED[:1]  # else torchtitan's own validation data
    for arg in args:
        name = _name(arg)
        section = next((part for part in derived if name.startswith(f"{part}.")), None)
        if section is None:
            continue
        inner = name.removeprefix(f"{section}.").replace("no_", "")
        remedy = f"set --{inner}" if inner in names else "see --help for --data.*"
        raise UserError(f"--{name} has no effect: the data section makes the {section}; {remedy}")


def _name(arg: str) -> str:
    return arg.removeprefix("--").partition("=")[0].replace("-", "_") if arg[:2] == "--" else ""


@contextlib.contextmanager
def _captured(really: bool) -> Any:
    """What is printed meanwhile, to shorten it; an error message may come on either stream."""
    said = io.StringIO()
    if not really:
        yield said
        return
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        yield said


def _complaint(said: str, args: Sequence[str], config: Any) -> str:
    """torchtitan's framed message as one line, with the flag that was perhaps meant."""
    rows = [line.strip("│╭╮╰╯─|+- ").strip() for line in said.splitlines()]
    body = " ".join([row for row in rows if row][1:])
    flags = {flag.name for flag in flags_of(config)} if config is not None else set()
    if "Unrecognized options" in said:
        for arg in args:
            name = _name(arg)
            if name and arg.partition("=")[0] in said.replace("\n", " ") and name not in flags:
                return _unknown(arg.partition("=")[0], name, flags)
    body = re.split(_ASIDES, body)[0]
    return f"{body.rstrip(' .')}; --help lists the flags"


def _unknown(arg: str, name: str, flags: set[str]) -> str:
    bare = re.sub(r"(^|\.)no_", r"\1", name)
    if bare in flags:
        return f"{arg} takes no value"
    close = difflib.get_close_matches(name, flags, n=1, cutoff=0.5)
    same_end = [flag for flag in sorted(flags) if flag.split(".")[-1] == name.split(".")[-1]]
    meant = (same_end or close)[:1]
    hint = f"; did you mean --{meant[0]}?" if meant else ""
    return f"unknown flag {arg}{hint} --help lists the flags"
