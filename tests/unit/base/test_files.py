"""Files are written whole or not at all."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from meshwright.base import files
from meshwright.base.errors import InputError


def test_text_and_bytes_are_written_whole(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.txt", "µ")
    files.write(tmp_path / "b.bin", b"\0\1")
    assert (tmp_path / "a.txt").read_bytes() == "µ".encode()
    assert (tmp_path / "b.bin").read_bytes() == b"\0\1"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.bin"]


def test_the_file_can_be_read_by_others(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.txt", "a")
    assert (tmp_path / "a.txt").stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    (tmp_path / "plan.json").write_text("old")

    def stop(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(error):
        files.write(tmp_path / "plan.json", "new")
    assert os.listdir(tmp_path) == ["plan.json"] and (tmp_path / "plan.json").read_text() == "old"


def test_a_full_disk_is_told_in_one_sentence(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"plan\.json: cannot be written: No space left"):
        files.write(tmp_path / "plan.json", "new")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [".", "no/plan.json", "x" * 300], ids=["a folder", "no folder", "too long"])
def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(InputError, match="--out"):
        files.check_target(tmp_path / name, "--out")
    assert os.listdir(tmp_path) == []


def test_two_outputs_need_two_files(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "a")
    files.check_targets([("--out", path), ("--trace", path + "b")])
    with pytest.raises(InputError, match="--out and --trace: both name"):
        files.check_targets([("--out", path), ("--trace", str(tmp_path / "." / "a"))])


def test_an_output_is_no_file_that_is_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.json").write_text("here")
    (tmp_path / "link.json").symlink_to(tmp_path / "plan.json")
    read = [str(tmp_path / "plan.json")]
    files.check_targets([("--trace", str(tmp_path / "trace.json"))], read)
    for name in ("plan.json", "./plan.json", "link.json"):
        with pytest.raises(InputError, match=r"--trace .*json: this file is read, and would be written over; name another"):
            files.check_targets([("--trace", f"{tmp_path}/{name}")], read)


def test_a_key_that_stands_twice_in_one_object_of_a_json_text_is_told() -> None:
    content, repeated = files.load_json('{"a": 1, "list": [{"id": 3, "b": 1, "b": 2}]}')
    assert content == {"a": 1, "list": [{"id": 3, "b": 2}]}
    assert repeated == "the key 'b' stands twice in the object with id: 3; keep one of the two"
    assert files.load_json('{"a": {"b": 1}, "c": {"b": 1}}') == ({"a": {"b": 1}, "c": {"b": 1}}, "")


def test_a_whole_number_that_no_float_holds_reads_as_infinite() -> None:
    content, _ = files.load_json('{"small": ' + "9" * 30 + ', "large": 1' + "0" * 400 + "}")
    assert content == {"small": int("9" * 30), "large": float("inf")}


def test_what_a_link_points_to_is_written_and_keeps_its_mode(tmp_path: pathlib.Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "real.txt").chmod(0o600)
    (tmp_path / "link").symlink_to("real.txt")
    files.write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real.txt").read_text() == "new"
    assert (tmp_path / "real.txt").stat().st_mode & 0o777 == 0o600


def test_devices_pipes_and_circles_of_links_are_left_as_they_are(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    for path, told in (
        (tmp_path / "pipe", "a device or a pipe"),
        ("/dev/null", "a device or a pipe"),
        (tmp_path / "one", "cannot be"),
    ):
        with pytest.raises(InputError, match=told):
            files.write(path, "text")
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "one").is_symlink()


@pytest.mark.parametrize("read", [files.read_bytes, files.read_text, files.read_json, files.read_toml])
def test_what_is_no_file_or_too_large_is_refused_before_it_is_read(tmp_path: pathlib.Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2**30 + 1)  # takes no room
    for path, word in (
        ("/dev/zero", "is a device or a pipe"), (tmp_path / "pipe", "is a device or a pipe"), (tmp_path, "is a folder"),
        (tmp_path / "huge", "holds more than a gibibyte"), (tmp_path / "none", "no such file"),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: cannot be read: ") and word in str(caught.value)


def test_a_file_that_grows_while_it_is_read_is_read_up_to_the_limit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grows").write_bytes(b"12345")
    for most, told in ((5, ""), (4, "gibibyte")):
        monkeypatch.setattr(files, "_MOST_BYTES", most)
        monkeypatch.setattr(os, "stat", lambda path, stat=os.stat: os.stat_result((stat(path).st_mode, *[0] * 9)))
        if told:
            with pytest.raises(InputError, match=told):
                files.read_bytes(tmp_path / "grows")
        else:
            assert files.read_bytes(tmp_path / "grows") == b"12345"
        monkeypatch.undo()


def test_text_is_read_with_one_kind_of_end_of_line_and_binary_files_are_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes("é\r\nb\rc\n".encode())
    assert files.read_text(tmp_path / "a") == "é\nb\nc\n"
    (tmp_path / "a").write_bytes(b"\xff")
    for read in (files.read_text, files.read_toml):
        with pytest.raises(InputError, match="cannot be read: is no text in UTF-8"):
            read(tmp_path / "a")


def test_toml_is_read_and_what_is_none_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.toml").write_text("[a]\nb = 1\n")
    assert files.read_toml(tmp_path / "a.toml") == {"a": {"b": 1}}
    for text in ("a = 1\na = 2\n", "a = "):
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(InputError, match=r"a\.toml: is no TOML"):
            files.read_toml(tmp_path / "a.toml")


def test_drafts_are_kept_in_memory_and_only_there(tmp_path: pathlib.Path) -> None:
    with files.drafts() as kept:
        files.write(tmp_path / "none" / "plan.py", "text")
    assert kept == {str(tmp_path / "none" / "plan.py"): "text"} and not list(tmp_path.iterdir())
    files.write(tmp_path / "plan.py", "text")
    assert (tmp_path / "plan.py").read_text() == "text"


def test_a_link_to_a_pipe_is_no_file_to_write_to(tmp_path: pathlib.Path) -> None:
    reads, writes = os.pipe()
    try:
        (tmp_path / "out").symlink_to(f"/proc/self/fd/{writes}" if os.path.isdir("/proc/self/fd") else f"/dev/fd/{writes}")
        with pytest.raises(InputError, match="is a device or a pipe; name a file"):
            files.check_target(tmp_path / "out", "--out")
    finally:
        os.close(reads)
        os.close(writes)
