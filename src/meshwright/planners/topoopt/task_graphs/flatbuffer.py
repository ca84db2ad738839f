"""FlatBuffers without generated code: tables, scalars and vectors at checked offsets."""

from __future__ import annotations

import struct

from meshwright.base.errors import InputError

__all__ = ["Table", "root"]


class Table:
    """One table of a buffer.

    Parameters
    ----------
    buffer : bytes
        The whole file.
    position : int
        Where the table begins.
    place : str
        The file, for messages.
    """

    __slots__ = ("_buffer", "_fields", "_position", "_where")

    def __init__(self, buffer: bytes, position: int, place: str) -> None:
        self._buffer, self._position, self._where = buffer, position, place
        fields = position - self._read("<i", position)
        size = self._read("<H", fields)
        if size < 4 or size % 2 or fields + size > len(buffer):
            raise self._cut(fields)
        self._fields = struct.unpack_from(f"<{(size - 4) // 2}H", buffer, fields + 4)

    def _cut(self, position: int) -> InputError:
        return InputError(
            f"{self._where}: broken at byte {position} of {len(self._buffer)}: is the file cut off, or no task graph?"
        )

    def _read(self, form: str, position: int) -> int:
        if position < 0 or position + struct.calcsize(form) > len(self._buffer):
            raise self._cut(position)
        value: int = struct.unpack_from(form, self._buffer, position)[0]
        return value

    def _at(self, slot: int) -> int:
        """Return where a field lies; 0 where it is absent."""
        offset = self._fields[slot] if slot < len(self._fields) else 0
        return self._position + offset if offset else 0

    def scalar(self, slot: int, form: str) -> float:
        """Return a number in the `struct` notation of one value (``<I``); 0 where it is absent."""
        at = self._at(slot)
        return self._read(form, at) if at else 0

    def integer(self, slot: int, form: str) -> int:
        """Return a whole number; 0 where it is absent."""
        return int(self.scalar(slot, form))

    def _vector(self, slot: int, size: int) -> tuple[int, int]:
        """Return where the elements of a vector begin, and how many there are."""
        at = self._at(slot)
        if not at:
            return 0, 0
        begin = at + self._read("<I", at)
        count = self._read("<I", begin)
        if begin + 4 + count * size > len(self._buffer):
            raise self._cut(begin)
        return begin + 4, count

    def numbers(self, slot: int, form: str) -> tuple[int, ...]:
        """Return a vector of numbers of the given `struct` letter (``Q``)."""
        begin, count = self._vector(slot, struct.calcsize(f"<{form}"))
        return struct.unpack_from(f"<{count}{form}", self._buffer, begin) if count else ()

    def tables(self, slot: int) -> list[Table]:
        """Return a vector of tables."""
        begin, count = self._vector(slot, 4)
        return [Table(self._buffer, at + self._read("<I", at), self._where) for at in range(begin, begin + 4 * count, 4)]

    def text(self, slot: int) -> str:
        """Return a string; empty where it is absent."""
        begin, count = self._vector(slot, 1)
        return self._buffer[begin : begin + count].decode("utf-8", "replace") if count else ""


def root(buffer: bytes, place: str) -> Table:
    """Return the first table of a buffer.

    Raises `InputError` when it is too short, or an offset leads out of it.
    """
    if len(buffer) < 8:
        raise InputError(f"{place}: {len(buffer)} bytes are no task graph")
    return Table(buffer, struct.unpack_from("<I", buffer, 0)[0], place)
