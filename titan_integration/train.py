"""Entry point: ``python -m titan_integration.train --module configs.llama3 --config debug_odb``.

Runs torchtitan's own ``main`` on GPUs or CPUs, alone or under torchrun. Exit codes: 0 done, 2 an
error that one line on stderr explains, 128 + signal after a stop, 1 anything else, with its trace.
"""

import os
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

from titan_integration.errors import Stopped, UserError
from titan_integration.run.stopping import request

BAD_INPUT = 2
PEER_LOST = 3  # for our launcher, which knows more; nobody else sees it
RANK_ZERO_FIRST_S = 15.0


def main() -> None:
    """Train as ``sys.argv`` says; does not return when the run fails."""
    request.listen(_clean_up)  # first: importing torch takes seconds
    _default_environment()
    from titan_integration import cpu

    if cpu.is_cpu_only():
        cpu.patch()
    from titan_integration.run import logs, telling

    telling.current = telling.Teller(_rank())
    logs.current = logs.Logs(_rank())
    config: Any = None
    try:
        config = _configuration()
        _run(config)
    except Stopped as stop:
        if _rank() == 0:
            print(stop, file=sys.stderr, flush=True)
        _leave(stop.code)
    except KeyboardInterrupt:
        _leave(128 + signal.SIGINT)
    except BaseException as error:  # not all of torch's own are an Exception
        if isinstance(error, SystemExit):
            raise
        _fail(error, getattr(config, "dump_folder", None))


def _configuration() -> Any:
    from titan_integration.run.command_line import parse
    from titan_integration.training.supported import check_tokenizer_folder
    from titan_integration.training.trainer import OdbTrainer

    if _rank() != 0 and {"-h", "--help", "--help-all"} & set(sys.argv):
        _leave(0)
    config = parse(sys.argv[1:], OdbTrainer.Config)
    if isinstance(config, OdbTrainer.Config):
        config.validate()
        if config.data.has_rows:
            check_tokenizer_folder(config.hf_assets_path)
    return config


def _run(config: Any) -> None:
    from titan_integration.run import logs
    from titan_integration.training.trainer import OdbTrainer
    from titan_integration.upstream import run_main

    ours = isinstance(config, OdbTrainer.Config) and config.data.has_rows and config.data.odb.enable
    if not ours and logs.current is not None:
        logs.current.show_upstream()
    run_main(config)


def _fail(error: BaseException, dump_folder: str | None) -> NoReturn:
    """Say one line where one explains the error, else print its trace; a file has both."""
    from titan_integration.run import logs, telling
    from titan_integration.run.failures import explain

    failure = explain(error)
    assert logs.current is not None
    assert telling.current is not None
    if dump_folder is not None and (failure is None or not isinstance(error, UserError)):
        logs.current.write_to(dump_folder)
    where = logs.current.note_trace(error)
    if failure is None:
        traceback.print_exception(error)
        _leave(1)
    plain = isinstance(error, UserError) and error.__cause__ is None
    line = failure.line + ("" if plain else where)
    if failure.secondary:
        told = telling.current.followed(line)
        _leave(BAD_INPUT if told else PEER_LOST)
    telling.current.own(line)
    _leave(BAD_INPUT)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _default_environment() -> None:
    """Fill in what torchrun would set, for a world of one."""
    if "RANK" in os.environ:
        return
    # The only rank is its own store server: port 0 lets the system choose, without a race.
    world = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(world, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


def _clean_up() -> None:
    telling = sys.modules.get("titan_integration.run.telling")
    if telling is not None:
        telling.clean_up()


def _leave(code: int) -> NoReturn:
    """End this process whatever its threads are doing, rank 0 first."""
    from titan_integration.run.telling import clean_up, leave

    if _rank() != 0 and code not in (0, 1):
        # All ranks come here. torchrun ends them when the first is gone: let that be rank 0.
        clean_up()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(RANK_ZERO_FIRST_S)
    leave(code)


if __name__ == "__main__":
    main()
