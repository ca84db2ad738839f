"""Lengths of documents: read from a file or drawn from a distribution, and what packing makes of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base import files, units
from meshwright.base.errors import InputError

__all__ = ["LONGEST", "Lengths", "drawn_pieces", "lengths", "mean_packed_pairs", "mean_piece", "packed_pairs"]

LONGEST = 10**9
"""Tokens that a document may have."""

_N_PARTS = 1 << 16  # documents that stand for a distribution where a mean is asked
_HELP = "write a file with one length a line, or lognormal:MEDIAN,SIGMA as in lognormal:2k,1"


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Lengths of the documents of a data set, in tokens.

    Parameters
    ----------
    source : str
        As told: a file, or ``lognormal:2k,1``.
    held : ndarray, shape (n_documents,), int64
        Those of the file; empty for a distribution. Read-only.
    median_tokens : int
        Median of the log-normal distribution.
    spread_ratio : float
        Its sigma, the standard deviation of the natural logarithm.
    """

    source: str
    held: NDArray[np.int64]
    median_tokens: int = 0
    spread_ratio: float = 0.0

    def drawn(self, n_documents: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return lengths of documents drawn independently (of a file: with replacement).

        Parameters
        ----------
        n_documents : int
            How many.
        rng : numpy.random.Generator
            Where chance comes from.

        Returns
        -------
        ndarray, shape (n_documents,), int64
            Tokens, at least 1 and at most `LONGEST`.
        """
        if len(self.held):
            return self.held[rng.integers(0, len(self.held), n_documents)]
        logs = math.log(self.median_tokens) + self.spread_ratio * rng.standard_normal(n_documents)
        return np.rint(np.exp(np.clip(logs, 0.0, math.log(LONGEST)))).astype(np.int64)

    def documents(self) -> NDArray[np.int64]:
        """Return the documents that means are taken over, each as likely as the others.

        Returns
        -------
        ndarray, shape (n_documents,), int64
            Tokens: all of a file; of a distribution the means of 65,536 parts that are as likely as each other, so that the
            mean of all is the distribution's, however far its tail goes.
        """
        return self.held if len(self.held) else _parts(self.median_tokens, self.spread_ratio)


def lengths(told: str) -> Lengths:
    """Return the lengths that a user names.

    Parameters
    ----------
    told : str
        ``lognormal:MEDIAN,SIGMA``, or a file: one length a line, a JSON list, or JSON lines (``.jsonl``) with a field
        ``length``.

    Returns
    -------
    Lengths
        The lengths.

    Raises
    ------
    InputError
        When it is none of these, with file and line.
    """
    if not isinstance(told, str) or not told.strip():
        raise InputError(f"--lengths {told!r}: names nothing; {_HELP}")
    kind, colon, rest = told.partition(":")
    if colon and kind == "lognormal":
        return _lognormal(told, rest)
    if not Path(told).is_file():
        raise InputError(f"--lengths {told}: there is no such file; {_HELP}")
    found = _from_file(told)
    if not found:
        raise InputError(f"--lengths {told}: holds no lengths; {_HELP}")
    held = np.array(found, dtype=np.int64)
    held.flags.writeable = False
    return Lengths(told, held)


def _lognormal(told: str, rest: str) -> Lengths:
    """Return the distribution."""
    words = rest.split(",")
    if len(words) != 2:
        raise InputError(f"--lengths {told}: a log-normal distribution has a median and a sigma, as in lognormal:2k,1")
    median = units.parse_count(words[0], place=f"--lengths {told}: median", binary=True)
    try:
        sigma = float(words[1])
    except ValueError:
        sigma = math.nan
    if not 1 <= median <= LONGEST:
        raise InputError(f"--lengths {told}: the median is {median} tokens; it must be between 1 and {LONGEST}")
    if not 0.0 <= sigma <= 10.0:
        raise InputError(
            f"--lengths {told}: sigma '{words[1]}' must be a number between 0 and 10 (of the natural logarithm), as in "
            "lognormal:2k,1"
        )
    return Lengths(told, np.empty(0, dtype=np.int64), median, sigma)


def _parts(median_tokens: int, spread_ratio: float) -> NDArray[np.int64]:
    """Return the mean of each of as many equally likely parts of a log-normal distribution that ends at `LONGEST`."""
    from scipy.special import ndtr, ndtri

    if not spread_ratio:
        return np.full(_N_PARTS, median_tokens)
    ends = ndtri(np.arange(_N_PARTS + 1) / _N_PARTS)
    longest = math.log(LONGEST / median_tokens) / spread_ratio
    below = np.diff(ndtr(np.minimum(ends, longest) - spread_ratio))
    beyond = np.diff(np.maximum(ends, longest), prepend=0.0)[1:] > 0.0
    share_beyond = np.where(beyond, ndtr(-np.maximum(ends[:-1], longest)) - ndtr(-np.maximum(ends[1:], longest)), 0.0)
    means = _N_PARTS * (median_tokens * math.exp(spread_ratio**2 / 2.0) * below + LONGEST * share_beyond)
    return np.asarray(np.maximum(1, np.rint(means)), dtype=np.int64)


def _from_file(path: str) -> list[int]:
    """Return the lengths in a file."""
    text = files.read_text(path, "one length a line")
    if text.lstrip().startswith("["):
        content = files.read_json(path, "a list of lengths")
        return [_length(value, f"{path}: entry {i}") for i, value in enumerate(content)]
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        word, place = line.strip(), f"{path}: line {number}"
        if not word:
            continue
        if word.startswith("{"):
            try:
                entry = json.loads(word)
            except (ValueError, RecursionError):
                raise InputError(f"{place}: is not valid JSON") from None
            if "length" not in entry:
                raise InputError(f"{place}: has no field 'length'")
            found.append(_length(entry["length"], place))
        else:
            found.append(_length(int(word) if word.isascii() and word.isdigit() and len(word) < 12 else word, place))
    return found


def _length(value: Any, place: str) -> int:
    """Return one length."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LONGEST:
        raise InputError(f"{place}: {str(value)[:40]!r} is no length; it must be a whole number of tokens from 1 to {LONGEST}")
    return value


def mean_piece(documents: NDArray[np.int64], sequence_length: int) -> float:
    """Return the mean tokens of the pieces that documents are cut into: full samples and the rest of each.

    Parameters
    ----------
    documents : ndarray, shape (n_documents,), int64
        Tokens of each.
    sequence_length : int
        Of a sample, in tokens.
    """
    return float(documents.sum()) / float((-(-documents // sequence_length)).sum())


def drawn_pieces(
    documents: NDArray[np.int64], sequence_length: int, n_pieces: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return pieces drawn from those that documents are cut into: one of each of as many parts, from short to long.

    Each is as likely to be any of them, and their mean is next to `mean_piece`, however far the tail of the lengths goes.

    Parameters
    ----------
    documents, sequence_length
        As of `mean_piece`.
    n_pieces : int
        How many.
    rng : numpy.random.Generator
        Where chance comes from.

    Returns
    -------
    ndarray, shape (n_pieces,), int64
        Tokens of each, at most `sequence_length`; in random order.
    """
    n_each = -(-documents // sequence_length)
    rests = np.sort(documents - (n_each - 1) * sequence_length)  # all other pieces are full
    places = (np.arange(n_pieces) + rng.random(n_pieces)) * (float(n_each.sum()) / n_pieces)
    chosen = np.where(places < len(rests), rests[np.minimum(places.astype(np.int64), len(rests) - 1)], sequence_length)
    return rng.permutation(chosen)


def packed_pairs(documents: NDArray[np.int64], sequence_length: int) -> NDArray[np.float64]:
    """Return the share of the pairs of tokens of each packed sample that lie in one document.

    Documents stand one after the other and are cut at every `sequence_length` tokens; what is left at the end is dropped.

    Parameters
    ----------
    documents : ndarray, shape (n_documents,), int64
        Tokens of each, in their order.
    sequence_length : int
        S, tokens of a sample.

    Returns
    -------
    ndarray, shape (n_samples,), float64
        sum l_i^2 / S^2 over the pieces of the documents in a sample; 1 where it holds a single one.
    """
    ends = np.cumsum(documents)
    n_samples = int(ends[-1]) // sequence_length if len(ends) else 0
    if not n_samples:
        return np.empty(0)
    total = n_samples * sequence_length
    cuts = np.union1d(ends[ends < total], np.arange(1, n_samples + 1, dtype=np.int64) * sequence_length)
    held = np.diff(cuts, prepend=0).astype(float)
    squares = np.bincount((cuts - 1) // sequence_length, weights=held * held, minlength=n_samples)
    return np.asarray(squares / float(sequence_length) ** 2)


def mean_packed_pairs(documents: NDArray[np.int64], sequence_length: int) -> float:
    """Return the mean of `packed_pairs` over an endless row of documents, each drawn from those given.

    Parameters
    ----------
    documents, sequence_length
        As of `packed_pairs`; their order does not count.

    Returns
    -------
    float
        sum_d (S - |d|) E[(l - |d|)+] / (S^2 E[l]), for d from -S to S: two places of a sample that are d apart lie in one
        document as often as a document has such places, since every place of a document comes first in a sample as often as
        every other. Where all lengths and S have a common divisor, places are counted in that.
    """
    unit = int(np.gcd.reduce(documents, initial=sequence_length))
    held, size = documents / unit, sequence_length / unit
    n = np.minimum(held, size)
    apart = n * (n - 1.0) / 2.0  # sum of d from 1 to n - 1; below that of (S - d) (l - d)
    pairs = size * held * (n - 1.0) - (size + held) * apart + apart * (2.0 * n - 1.0) / 3.0
    return float((size * held + 2.0 * pairs).mean() / (size * size * held.mean()))
