"""The Trainer's arguments on a command line: a shell script that starts a training script of transformers, TRL or one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.frameworks import _command_line, _exact

__all__ = ["beside", "said", "starts", "table"]

_LAUNCHERS = r"\b(torchrun|accelerate launch|deepspeed|torch\.distributed\.(run|launch))\b"
_PROCESSES = ("nproc_per_node", "num_gpus", "num_processes")
_LAUNCHED = (
    *_PROCESSES, "nnodes", "num_nodes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "hostfile",
    "include", "exclude", "master_addr", "master_port", "node_rank", "gpu_ids", "multi_gpu", "launcher",
    "dynamo_backend", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone", "max_restarts", "no_python", "tee",
    "log_dir", "module", "same_network", "use_env",
)  # fmt: skip
"""Options of torchrun, DeepSpeed's and Accelerate's launchers that say how many processes there are, or nothing of a plan."""

_LENGTHS = ("block_size", "max_length", "max_seq_length", "max_seq_len", "model_max_length", "cutoff_len")
"""What training scripts call the tokens of a sample: run_clm.py, TRL (two names), others."""

_DEGREES = ("use_fsdp", "use_deepspeed", "use_megatron_lm", "tp_size")


def starts(text: str) -> bool:
    """Return whether a text is a shell script that starts a training script with arguments of the Trainer."""
    lines = _without_comments(text)
    told = re.search(r"--per[_-]device[_-]train[_-]batch[_-]size\b", lines) is not None
    return told and re.search(_LAUNCHERS, lines) is not None and "<<" not in lines


def said(path: str, text: str) -> tuple[dict[str, Any], dict[str, int], int, int, tuple[str, ...]]:
    """Return what a script says.

    Returns
    -------
    arguments : dict of str to object
        As in Python; ``deepspeed`` and ``fsdp_config`` as their files hold them.
    lines : dict of str to int
        The line that each stands in.
    sequence_length : int
        Tokens of a sample; 0 where it does not say.
    n_devices : int
        Processes; 0 where it does not say.
    warnings : tuple of str
        What of the script was not decided or not read.

    Raises
    ------
    InputError
        When it starts several trainings, or says degrees in a way that is not read.
    """
    asked = re.findall(r"^#SBATCH\s+(?:--nodes[= ]|-N ?)(\d{1,7})\s*$", text, re.M)
    text = _without_comments(text)
    read = _command_line.read(text, path)
    given = {name[2:].replace("-", "_"): values for name, values in read.options.items()}
    lines = {name[2:].replace("-", "_"): line for name, line in read.lines.items()}
    for name in _DEGREES:
        if name in given:
            value = " ".join(("", *given[name]))
            raise InputError(
                f"{path}: line {lines[name]}: --{name}{value}: says degrees outside of the script; say them by --fsdp, "
                "--deepspeed or accelerate's --config_file"
            )
    per_node = next((_count(given, name, path) for name in _PROCESSES if name in given and not _open(given[name])), 0)
    nodes = 1 if "num_processes" in given else _nodes(given, asked, path)
    lengths = [name for name in _LENGTHS if name in given]
    length = _count(given, lengths[0], path) if lengths else 0
    left = {*_LAUNCHED, *lengths}
    arguments = {name: _value(values, name, path) for name, values in given.items() if name not in left}
    return arguments, lines, length, per_node * nodes, read.warnings


def _without_comments(text: str) -> str:
    """Return a text whose lines of comment are empty."""
    return "\n".join("" if line.lstrip().startswith("#") else line for line in text.splitlines())


def _open(values: tuple[str, ...]) -> bool:
    """Return whether a number is left to where the script runs: a variable that it does not set, or all devices there are."""
    return bool(values) and ("$" in values[0] or values[0] in ("gpu", "auto"))


def _nodes(given: Mapping[str, tuple[str, ...]], asked: Sequence[str], path: str) -> int:
    """Return how many hosts there are, of an elastic range the most; 0 where neither the script nor Slurm is told (`asked`)."""
    values = next((given[name] for name in ("nnodes", "num_nodes") if given.get(name)), ("1",))
    if _open(values):
        return int(asked[0]) if asked else 0
    word = values[0].rpartition(":")[2]
    if not re.fullmatch(r"[1-9]\d{0,6}", word):
        raise InputError(f"{path}: --nnodes is {word}; write the number of hosts")
    return int(word)


def _count(given: Mapping[str, tuple[str, ...]], name: str, path: str) -> int:
    word = given[name][0] if given[name] else ""
    if not re.fullmatch(r"[1-9]\d{0,8}", word):
        raise InputError(f"{path}: --{name} is '{word}'; it must be a whole number from 1 on")
    return int(word)


def _value(values: tuple[str, ...], name: str, path: str) -> Any:
    """Return a value as Python has it: an option alone is true; files of settings as what they hold."""
    word = " ".join(values) if values else "True"
    if name in ("deepspeed", "fsdp_config", "parallelism_config", "accelerator_config"):
        return table(word, name, path)
    if word in ("True", "true", "False", "false"):
        return word in ("True", "true")
    return int(word) if re.fullmatch(r"\d{1,12}", word) else word


def table(word: str, name: str, path: str) -> dict[str, Any]:
    """Return a table that an argument says in JSON, or by the name of a JSON file beside the one that is read.

    Raises
    ------
    InputError
        When there is no such file, or it holds no JSON.
    """
    text = word if word.lstrip().startswith("{") else beside(word, name, path)
    place = f"{path}: {name}" if text is word else word
    try:
        content, repeated = files.load_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: is no JSON: {error}") from None
    if repeated or not isinstance(content, dict):
        raise InputError(f"{place}: {repeated or 'holds no table of settings'}")
    return content


def beside(word: str, name: str, path: str) -> str:
    """Return the text of a file that an argument names, as seen from the folder of the file that is read or from here.

    Raises
    ------
    InputError
        When it is in neither.
    """
    for place in (Path(path).parent / word, Path(word)):
        if place.is_file():
            return _exact.read_text(str(place))
    raise InputError(f"{path}: {name} is the file {word}, which is not there; put it beside this one")
