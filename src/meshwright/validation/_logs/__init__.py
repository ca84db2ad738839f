"""Runs read from logs of the programs that trained: seconds of a step after warm-up, rates, memory, settings."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.validation._logs import beside, deepspeed, maxtext, megatron, nanotron, nemo, torchtitan, trainer
from meshwright.validation._logs.entries import Line, Reading, TimedLine

__all__ = ["AGREEMENT", "MeasuredRun", "alike", "is_log", "measured_run", "measured_runs"]

WARM_UP_STEPS = 10
"""First steps that are left out: kernels are chosen and compiled, the allocator and communicators set up in them."""

LAG = 2
"""So many lines may ranks that write into one log lag behind each other; a step further back is another run's."""

MOST_BYTES = 2**30
"""What a packed log may hold."""

FEWEST = 3
"""Timed entries that are to be left after warm-up; of shorter logs less is left out."""

SLOW = 1.5
"""An entry that took so many times the median is counted as an outlier: a checkpoint, an evaluation, a fault."""

AGREEMENT = 0.1
"""Figures of one line that say the same thing in two units are to agree to this share."""

KNOWN = "Megatron-LM's iteration lines, NeMo's, nanotron's, torchtitan's, MaxText's, DeepSpeed's or the Hugging Face Trainer's"
"""Whose lines are read, in words."""

ALIKE = (
    {"megatron", "megatron_bridge", "megatron_deepspeed"},
    {"deepspeed", "megatron_deepspeed", "transformers", "accelerate"},
    {"accelerate", "transformers", "fsdp2", "deepspeed"},
)
"""Frameworks of which one's log may time another's configuration: one starts the other, or prints its lines."""

Read = Callable[[Sequence[Line]], Reading | None]
"""A reader of one kind of log."""

READERS = (
    nanotron.reading, nemo.reading, megatron.reading, torchtitan.reading, maxtext.reading, deepspeed.reading, trainer.reading,
    deepspeed.without_timer,
)  # fmt: skip
"""Tried in this order: lines of nanotron and NeMo begin as Megatron-LM's do; DeepSpeed's and the Trainer's stand in others'."""


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What the log of one run says.

    Parameters
    ----------
    file : str
        The log.
    framework : str
        Who wrote it, as after ``--for``.
    step_seconds : float
        Median over the timed entries that count; 0 where the log tells rates only and not of how much (`seconds_of`).
    n_entries, n_steps : int
        Entries that count, and steps between the first and the last of them.
    n_warm_up, n_slow : int
        Entries left out at the start, and those of the rest that took more than `SLOW` times the median.
    spread_ratio : float
        Distance of the quartiles over the median.
    samples_per_second, device_tokens_per_second, device_flops_per_second : float
        Medians of rates that it tells: of all devices, of one, of one; 0 for none.
    global_batch : int
        Samples of a step in these entries; 0 where they do not say.
    allocated_bytes, reserved_bytes : float
        Largest memory of a device that it tells; 0 for none.
    settings : mapping of str to str
        What it says of the plan, in the columns of runs of one's own, and ``devices``.
    options : mapping of str to tuple of str
        Options of Megatron-LM that it prints.
    notes : tuple of str
        What was assumed or left out, each with its line.
    refused : str
        What it says of the run that cells of a row cannot, in a sentence; empty for nothing.
    n_weights : float
        Weights of the model that it tells; 0 for none.
    device : tuple of (int, str)
        The line that names its device, and the kind; (0, "") for none.
    out_of_memory : int
        The line at which the run ended for want of memory; 0 where it says no such thing.
    denied : tuple of str
        Options of Megatron-LM that it prints as not set.
    device_bytes : float
        Memory of its device that it tells; 0 for none.
    trained : tuple of (int, float)
        The line that tells how many weights are trained, and how many; (0, 0.0) for none.
    """

    file: str
    framework: str
    step_seconds: float
    n_entries: int
    n_steps: int
    n_warm_up: int
    n_slow: int
    spread_ratio: float
    samples_per_second: float
    device_tokens_per_second: float
    device_flops_per_second: float
    global_batch: int
    allocated_bytes: float
    reserved_bytes: float
    settings: Mapping[str, str]
    options: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    refused: str = ""
    n_weights: float = 0.0
    device: tuple[int, str] = (0, "")
    out_of_memory: int = 0
    denied: tuple[str, ...] = ()
    trained: tuple[int, float] = (0, 0.0)
    device_bytes: float = 0.0

    def seconds_of(self, global_batch: int, sequence_length: int, n_devices: int) -> float:
        """Return the seconds of a step of so many samples and tokens on so many devices.

        Parameters
        ----------
        global_batch, sequence_length, n_devices : int
            What a configuration says of the run.

        Raises
        ------
        InputError
            When the log contradicts it: rates times seconds make another amount of work.
        """
        tokens = float(global_batch) * sequence_length
        from_rates = {
            f"{self.device_tokens_per_second:.6g} tokens/s a device": tokens
            / n_devices
            / (self.device_tokens_per_second or float("inf")),
            f"{self.samples_per_second:.6g} samples/s": global_batch / (self.samples_per_second or float("inf")),
        }
        told = {words: seconds for words, seconds in from_rates.items() if seconds > 0.0}
        for words, seconds in told.items():
            if self.step_seconds and abs(seconds / self.step_seconds - 1.0) > AGREEMENT:
                raise InputError(
                    f"{self.file}: {words} make {seconds:.4g} s for {global_batch} samples of {sequence_length} tokens "
                    f"on {n_devices} devices, but its steps take {self.step_seconds:.4g} s: another batch, length or number?"
                )
        return self.step_seconds or next(iter(told.values()), 0.0)

    @property
    def words(self) -> str:
        """What was measured, in a sentence."""
        time = (
            f"{self.step_seconds:.4g} s a step"
            if self.step_seconds
            else f"{self.device_tokens_per_second:.6g} tokens/s a device"
        )
        slow = f", {self.n_slow} of them more than {SLOW} times as long" if self.n_slow else ""
        left = f", {self.n_warm_up} before them left out as warm-up" if self.n_warm_up else ""
        return (
            f"{time}, the median of {self.n_entries} timed line{'s' * (self.n_entries != 1)}{slow}"
            f" (quartiles {self.spread_ratio:.1%} apart){left}"
        )


def alike(one: str, other: str) -> bool:
    """Tell whether the log of one framework may time the configuration of another."""
    return one == other or any({one, other} <= names for names in ALIKE)


def is_log(path: str | Path) -> bool:
    """Tell whether a file is to be read as a log rather than as a table or the name of a built-in set: by its name."""
    return Path(path).suffix.lower() != ".csv" and (bool(Path(path).suffix) or Path(path).is_file())


def measured_runs(paths: Iterable[str | Path]) -> tuple[MeasuredRun, ...]:
    """Return what several logs say, in their order; as `measured_run`."""
    return tuple(measured_run(path) for path in paths)


def measured_run(path: str | Path) -> MeasuredRun:
    """Return what the log of a run says.

    Parameters
    ----------
    path : str or Path
        What Megatron-LM, Megatron-DeepSpeed, NeMo, nanotron, torchtitan, MaxText, DeepSpeed or the Hugging Face Trainer
        printed, or the last one's ``trainer_state.json``.

    Returns
    -------
    MeasuredRun
        Seconds of a step after warm-up, memory, and what it says of the plan.

    Raises
    ------
    InputError
        When it cannot be read, is none of these, times no step, or contradicts itself.
    """
    found, lines = _reading(path)
    if not found.entries:
        raise InputError(f"{path}: times no step: {'; '.join(found.notes[:3]) or 'it has no timed line after the first'}")
    notes = list(found.notes)
    batch = next((entry.batch for entry in reversed(found.entries) if entry.batch), 0)
    whole = [entry for entry in found.entries if entry.batch in (0, batch)]
    if len(whole) < len(found.entries):
        notes.append(f"{len(found.entries) - len(whole)} lines have another batch than the last ones' {batch}; left out")
    kept = [entry for entry in whole if entry.step > _begun(found.entries) + WARM_UP_STEPS]
    if len(kept) < FEWEST:
        kept = [entry for entry in whole if entry is not found.entries[0]] or whole
    if kept == found.entries[:1] and kept[0].step == 1:
        raise InputError(
            f"{path}: line {kept[0].line}: times the first step alone, in which kernels are chosen and memory is set up; a log "
            "of a few more steps is needed"
        )
    seconds = np.array([entry.seconds for entry in kept])
    median = float(np.median(seconds))
    _check_samples(path, kept, batch)
    if out := beside.out_of_memory(lines, found.entries[-1].line):
        notes.append(f"line {out} of the log: memory ran out; the run counts as failed")
    low, high = np.quantile(seconds, [0.25, 0.75])
    return MeasuredRun(
        str(path), found.framework, median, len(kept), kept[-1].step - kept[0].step + 1, len(whole) - len(kept),
        int((seconds > SLOW * median).sum()) if median else 0, float(high - low) / median if median else 0.0,
        _median(entry.samples_per_second for entry in kept), _median(entry.device_tokens_per_second for entry in kept),
        _median(entry.device_flops_per_second for entry in kept), batch, found.allocated_bytes, found.reserved_bytes,
        MappingProxyType(dict(found.settings)), MappingProxyType(dict(found.options)), tuple(notes),
        found.refused, beside.weights(lines), beside.device(lines), out, found.denied, beside.trained(lines),
        beside.memory(lines),
    )  # fmt: skip


def _reading(path: str | Path) -> tuple[Reading, list[Line]]:
    """Return what the first format that knows the file says (DeepSpeed's and the Trainer's stand in others'), and its lines."""
    text = _text(path).replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text[:4096]:
        raise InputError(f"{path}: is a binary file; a log with {KNOWN} is needed")
    if (of_state := trainer.state(text)) is not None:
        return of_state, []
    lines = _lines(text)
    for read in READERS:
        found = read(lines)
        if found is not None:
            return _last_run(read, lines, found), lines
    out = beside.out_of_memory(lines, 0)
    why = (
        f"; by line {out} memory ran out before a step: say oom in the column step_seconds of a row without a log"
        if out
        else ""
    )
    raise InputError(f"{path}: has none of {KNOWN}{why}")


def _text(path: str | Path) -> str:
    """Return the text of a log: packed by gzip or not, in UTF-8, or in UTF-16 as PowerShell writes it."""
    content = files.read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        content = _unpacked(path, content)
    wide = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return content.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _unpacked(path: str | Path, content: bytes) -> bytes:
    """Return what gzip packed; parts that were appended follow each other."""
    found, n_bytes = list[bytes](), 0
    while content[:2] == b"\x1f\x8b":
        part = zlib.decompressobj(wbits=31)
        try:
            found.append(part.decompress(content, MOST_BYTES + 1 - n_bytes))
        except zlib.error:
            raise InputError(f"{path}: is no whole gzip file; was it cut off while it was written?") from None
        n_bytes += len(found[-1])
        if n_bytes > MOST_BYTES:
            raise InputError(f"{path}: holds more than a gibibyte unpacked, the most that is read")
        if not part.eof:
            raise InputError(f"{path}: is no whole gzip file; was it cut off while it was written?")
        content = part.unused_data
    return b"".join(found)


def _last_run(read: Read, lines: Sequence[Line], found: Reading) -> Reading:
    """Return what is said of the last run of a log that holds several, one after the other; of the one before it where the
    last was cut off after a few lines.

    `found`: what all `lines` say together.
    """
    at = _restart(found.entries, found.begun)
    before = found.entries[at - 1].line if at else 0
    if not at or found.entries[at].line == before:
        return found
    last, earlier = (read([line for line in lines if (line[0] > before) is after]) for after in (True, False))
    first, steps = found.entries[at], (found.entries[at].step, found.entries[at - 1].step)
    said = f"line {first.line}: step {steps[0]} after step {steps[1]}: a run of its own"
    if last is None or len(last.entries) < FEWEST:
        if earlier is None:
            return found
        earlier = _last_run(read, [line for line in lines if line[0] <= before], earlier)
        earlier.notes.append(f"{said}, of too few lines; left out")
        return earlier
    last.settings = {**found.settings, **last.settings}
    if not last.options:
        last.options, last.denied, last.framework = found.options, found.denied, found.framework
    last.notes.append(f"{said}; the run before it is left out")
    return last


def _restart(entries: Sequence[TimedLine], begun: Sequence[int]) -> int:
    """Return where the last run of a log begins; 0 where there is one run: ranks that write beside each other are `LAG` lines
    apart at most.

    `begun`: lines at which other settings are printed.
    """
    at, above = 0, list[int]()
    for i, entry in enumerate(entries):
        anew = i > 0 and any(entries[i - 1].line < line < entry.line for line in begun)
        strayed = i + 1 < len(entries) and entries[i + 1].step > max(above, default=0)  # one odd figure
        if anew or (sum(step > entry.step for step in above) > LAG and not strayed):
            at, above = i, []
        above = sorted({*above, entry.step})[-LAG - 1 :]
    return at


def _begun(entries: Sequence[TimedLine]) -> int:
    """Return the step after which a run began that was resumed; 0 for one that began at its first step."""
    if len(entries) < FEWEST:
        return 0
    apart = int(np.median(np.diff([entry.step for entry in entries])))
    begun = entries[0].step - max(apart, 1)
    return begun if begun >= WARM_UP_STEPS else 0


def _lines(text: str) -> list[Line]:
    """Return the lines with their numbers, without colours; what a progress bar overwrote stands in lines of its own."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return [(row, part) for row, line in enumerate(plain.split("\n"), 1) for part in line.split("\r") if part.strip()]


def _check_samples(path: str | Path, entries: Sequence[TimedLine], batch: int) -> None:
    """Refuse a log whose seconds, samples per second and samples of a step contradict each other: a unit is wrong."""
    rate = _median(entry.samples_per_second for entry in entries)
    seconds = _median(entry.seconds for entry in entries)
    if batch and rate and seconds and abs(rate * seconds / batch - 1.0) > AGREEMENT:
        raise InputError(
            f"{path}: line {entries[-1].line}: {seconds:.4g} s a step at {rate:.4g} samples/s make {rate * seconds:.4g} "
            f"samples, but the batch is {batch}: is one of the figures in another unit?"
        )


def _median(values: Iterable[float]) -> float:
    """Return the median of the values above 0; 0 for none."""
    told = [value for value in values if value > 0.0]
    return float(np.median(told)) if told else 0.0
