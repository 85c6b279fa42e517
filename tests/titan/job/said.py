"""What a run says when something goes wrong: the table of docs/troubleshooting.md, as data.

Every line is looked for, by its key, in the output of a run that a test brought into that state.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        happens: What happened to the run.
        printed: What it says; ``<words>`` stand for what differs.
        code: Exit code of the command.
        do: What to do about it.
    """

    happens: str
    printed: str
    code: int
    do: str

    def pattern(self) -> str:
        """As a regular expression."""
        return re.sub(r"<[^<>]+>", ".*", re.escape(self.printed).replace("\\ ", " "))


CASES = {
    "signal": Case(
        "SIGTERM, SIGINT or SIGHUP, to the launcher or to any rank",
        "stopped by SIGTERM after step <N>, saved in <folder>/step-<N>; the same command goes on "
        "from there",
        143,
        "Run the same command again. All ranks stop on the same step; it takes the step and the "
        "save, and never more than `--data.stop_within_s` (120 s). SIGINT gives 130, SIGHUP 129.",
    ),
    "time limit": Case(
        "`--data.stop_after_s` seconds are over",
        "stopped by data.stop_after_s after step <N>, saved in <folder>/step-<N>; the same "
        "command goes on from there",
        143,
        "Run the same command again. Set it below your scheduler's limit by a step and a save.",
    ),
    "second signal": Case(
        "A second signal while the first one's save is going on",
        "stopped by SIGTERM for the second time, at once: nothing was saved; the same command "
        "goes on from the newest whole checkpoint, if there is one",
        143,
        "Run the same command again; what came after the last checkpoint is trained once more.",
    ),
    "early signal": Case(
        "A signal before the first step",
        "stopped by SIGTERM with nothing to save; the same command starts again",
        143,
        "Run the same command again.",
    ),
    "not saved": Case(
        "A signal to a run that saves nothing",
        "stopped by SIGTERM after step <N>, nothing was saved, because checkpoint.enable is off "
        "or load_only is on",
        143,
        "Leave `--checkpoint.enable` on.",
    ),
    "passed over": Case(
        "The newest checkpoint is damaged, half saved, or only weights",
        "warning: passed over damaged or partial checkpoints: step-<N>: <why>",
        0,
        "Nothing: the newest whole one is used. The folders named are written anew when the run "
        "gets there.",
    ),
    "nothing whole": Case(
        "No checkpoint in the folder is whole",
        "error: no checkpoint in <folder> is whole (step-<N>: <why>); move the folder away to "
        "begin anew, or set another --dump_folder",
        2,
        "Look at them with `python -m tools.inspect_checkpoint`; begin anew.",
    ),
    "disk full": Case(
        "No space is left when a checkpoint is saved",
        "error: cannot save step-<N>: <where>No space left on device; free some space and run the "
        "same command again; step-<N> is whole",
        2,
        "Free some space. The checkpoint before stays whole.",
    ),
    "file limit": Case(
        "A limit on file sizes (`ulimit -f`) is reached",
        "error: cannot save step-<N>: File too large; raise the limit on file sizes (ulimit -f) "
        "and run the same command again; there is no whole checkpoint",
        2,
        "Raise the limit.",
    ),
    "not writable": Case(
        "The dump folder cannot be written",
        "error: cannot write to <folder>: <why>; set --dump_folder",
        2,
        "Mount it writable, or set another one. It is tried before training starts.",
    ),
    "other rows": Case(
        "Rows of a data file are not what they were",
        "error: what is trained on is not what it was: <file> has other rows; undo that, or go "
        "on with it by --data.accept_changed",
        2,
        "Put the file back, or accept it: positions trained on stay trained on.",
    ),
    "other template": Case(
        "Another tokenizer or chat template",
        "error: what is trained on is not what it was: the chat template is another one; undo "
        "that, or go on with it by --data.accept_changed",
        2,
        "Put it back, or accept it.",
    ),
    "other options": Case(
        "Options that change samples are others",
        "error: what is trained on is not what it was: data.format was <one> and is <another>; "
        "undo that, or go on with it by --data.accept_changed",
        2,
        "Put them back, or accept them.",
    ),
    "more rows": Case(
        "Rows were appended to the data",
        "error: what is trained on is not what it was: <N> rows were appended; they join epoch "
        "<N>; undo that, or go on with it by --data.accept_changed",
        2,
        "Accept them: the epoch in progress ends as it was, the next one has them.",
    ),
    "locked": Case(
        "Another run works in the folder",
        "error: another run works in <folder>: process <pid> on <host>, since <time>; wait for "
        "its end, stop it, or set another --dump_folder",
        2,
        "One run per folder. The lock of a run that is gone is recognised and taken over.",
    ),
    "finished": Case(
        "The same command again, or a smaller quota, after the run has finished",
        "Nothing left to train: the run was finished at step <N> with <N> samples; raise "
        "--data.epochs, --data.sample_quota or --training.steps to go on",
        0,
        "Nothing; the summary stays as it is.",
    ),
    "fewer epochs": Case(
        "Fewer epochs than were trained",
        "error: the run has begun epoch <N>, beyond data.epochs <N>; raise --data.epochs, or set "
        "another --dump_folder",
        2,
        "Raise `--data.epochs`.",
    ),
    "not finite": Case(
        "The loss or the gradient norm is not finite",
        "error: step <N> was not finite: loss <x>, gradient norm <x> on <file>:<line><more> (all "
        "samples of the step in <folder>/not_finite_step_<N>.json); no checkpoint holds it: look "
        "at these rows or set a lower learning rate, and the same command goes on from before",
        2,
        "Look at the rows; set a lower learning rate.",
    ),
    "out of memory": Case(
        "The device or the machine has no memory left",
        "error: <rank>out of memory on a batch of <N> x <N> = <N> padded tokens with "
        "data.odb.token_budget <N> (<why>); <remedy>, and the same command goes on<where>",
        2,
        "Set the budget that the line names; no sample is lost or repeated.",
    ),
    "killed": Case(
        "A rank was killed",
        "error: rank <N> (process <pid>) was killed by SIGKILL; out of memory? see dmesg; the "
        "same command goes on from the newest whole checkpoint",
        2,
        "See why (`dmesg`); run the same command again.",
    ),
    "port": Case(
        "The port of the ranks' store is taken",
        "error: the ranks cannot be started: <why>",
        2,
        "Take another `--master_port`, or `--standalone`.",
    ),
    "unreachable": Case(
        "The ranks cannot reach each other",
        "error: the ranks cannot reach each other: <why>; check that all of them run, MASTER_ADDR "
        "and MASTER_PORT, and that the port is free<where>",
        2,
        "Check addresses, ports and that all ranks were started.",
    ),
    "shrunk": Case(
        "A data file shrinks while it is trained on",
        "error: <file> had <N> bytes when it was opened and has <N> now: rows are missing; put "
        "the file back as it was and run the same command again",
        2,
        "Put it back; run the same command again.",
    ),
    "grown": Case(
        "A data file grows while it is trained on",
        "warning: <file> has grown from <N> to <N> bytes since it was opened: its new rows are no "
        "part of this run",
        0,
        "Nothing: the run goes on with the rows it began with. A resume asks about the new ones.",
    ),
    "unknown flag": Case(
        "A flag that does not exist",
        "error: unknown flag --data.odb.token_budge; did you mean --data.odb.token_budget? --help "
        "lists the flags",
        2,
        "Take the flag that it suggests.",
    ),
    "no tokenizer": Case(
        "A folder without a tokenizer",
        "error: hf_assets_path must be a folder with a tokenizer, got <folder><why>; set "
        "--hf_assets_path",
        2,
        "Name the model's folder.",
    ),
    "not built": Case(
        "A configuration that torchtitan refuses",
        "error: the trainer cannot be built: <why>; trace in <folder>/logs/rank0.log",
        2,
        "Change the setting that the line names.",
    ),
    "refused weights": Case(
        "The checkpoint is of another model",
        "error: cannot load step-<N>: <why>; is it of this model and configuration?<where>",
        2,
        "Take the configuration that it was saved with.",
    ),
}


def table() -> str:
    """The cases as a Markdown table."""
    lines = ["| what happens | what is printed | code | what to do |", "| --- | --- | --- | --- |"]
    for case in CASES.values():
        printed = case.printed.replace("|", "\\|")
        lines.append(f"| {case.happens} | `{printed}` | {case.code} | {case.do} |")
    return "\n".join(lines) + "\n"
