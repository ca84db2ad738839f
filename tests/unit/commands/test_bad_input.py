"""Wrong input to any command: one line on stderr that names the place, exit code 2, nothing on stdout, nothing written."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest

from meshwright import api

CLUSTER = ("--cluster", "flat:4")

OPTIONS = {
    "an unknown cluster": (("--cluster", "dgx-h100x:8"), "did you mean 'dgx-h100'"),
    "no cluster": ((), "--cluster"),
    "a cluster without its size": (("--cluster", "dgx-h100"), "how many devices"),
    "no devices": (("--cluster", "dgx-h100:0"), "between 1 and"),
    "fewer than no devices": (("--cluster", "dgx-h100:-3"), "between 1 and"),
    "a size that is no number": (("--cluster", "dgx-h100:nan"), "'nan'"),
    "too many devices": (("--cluster", "dgx-h100:99999999999"), "between 1 and"),
    "an unknown unit": (("--cluster", "flat:4,bandwidth=3 parsecs"), "unknown unit 'parsecs'"),
    "a unit of another dimension": (("--cluster", "flat:4,bandwidth=3 GiB"), "bytes_per_second is needed"),
    "a negative bandwidth": (("--cluster", "flat:4,bandwidth=-3"), "out of range"),
    "a zero bandwidth": (("--cluster", "flat:4,bandwidth=0"), "out of range"),
    "an infinite bandwidth": (("--cluster", "flat:4,bandwidth=1e999"), "out of range"),
    "an unknown parameter of a topology": (("--cluster", "flat:4,colour=red"), "'colour'"),
    "an empty side of a torus": (("--cluster", "torus:4xx4"), "lacks a size"),
    "a cluster file that is not there": (("--cluster", "nowhere.yaml"), "no such file"),
    "an unknown search": ((*CLUSTER, "--search", "pyper"), "did you mean 'piper'"),
    "a search outside its folder": ((*CLUSTER, "--search", "../best"), "no search"),
    "a hidden file as a search": ((*CLUSTER, "--search", "_joint_search"), "no search"),
    "an unknown cost model": ((*CLUSTER, "--costs", "exact"), "no cost model"),
    "an unknown format": ((*CLUSTER, "--format", "onnx"), "no format"),
    "another format than the file's": ((*CLUSTER, "--format", "piper_json"), "tiny_llama.json"),
    "an unknown option": ((*CLUSTER, "--colour", "red"), "--colour"),
    "a batch that is no number": ((*CLUSTER, "--global-batch", "many"), "--global-batch"),
    "a negative batch": ((*CLUSTER, "--global-batch", "-8"), "--global-batch -8"),
    "a huge batch": ((*CLUSTER, "--global-batch", "9" * 20), "--global-batch"),
    "an infinite batch": ((*CLUSTER, "--global-batch", "1e400"), "--global-batch"),
    "a micro-batch that does not divide": ((*CLUSTER, "--global-batch", "7", "--micro-batch", "2"), "does not divide"),
    "a negative micro-batch": ((*CLUSTER, "--micro-batch", "-1"), "--micro-batch -1"),
    "a negative sequence": ((*CLUSTER, "--sequence-length", "-5"), "--sequence-length -5"),
    "a negative number of alternatives": ((*CLUSTER, "--top", "-1"), "--top -1"),
    "a negative seed": ((*CLUSTER, "--seed", "-1"), "--seed -1"),
    "a huge seed": ((*CLUSTER, "--seed", "9" * 30), "--seed"),
    "an unknown precision": ((*CLUSTER, "--precision", "int3"), "bf16"),
    "a setting without a value": ((*CLUSTER, "--set", "tensor"), "KEY=VALUE"),
    "a setting without a key": ((*CLUSTER, "--set", "=3"), "KEY=VALUE"),
    "an unknown setting": ((*CLUSTER, "--set", "tensr=2"), "did you mean 'tensor'"),
    "a setting that is no number": ((*CLUSTER, "--set", "tensor=x"), "whole number"),
    "a setting of zero": ((*CLUSTER, "--set", "tensor=0"), "at least 1"),
    "a setting that is not a number": ((*CLUSTER, "--set", "tensor=nan"), "whole number"),
    "an empty setting": ((*CLUSTER, "--set", "recompute="), "empty"),
    "a setting given twice": ((*CLUSTER, "--set", "tensor=2", "--set", "tensor=4"), "twice"),
    "a micro-batch given twice": ((*CLUSTER, "--micro-batch", "2", "--set", "micro_batch=4"), "say it once"),
    "a sharding level there is not": ((*CLUSTER, "--set", "shard=9"), "at most 3"),
    "an unknown word": ((*CLUSTER, "--set", "schedules=2f2b"), "choose one of"),
    "a degree that cannot be": ((*CLUSTER, "--global-batch", "8", "--set", "tensor=7"), "search best, with these options"),
    "a simpler answer of a search that has none": (
        (*CLUSTER, "--search", "data_parallel", "--within", "2%"),
        "looks for the quickest plan only",
    ),
    "an option whose variable was not set": ((*CLUSTER, "--within", ""), "--within: its value is empty"),
    "an option with nothing after the sign": ((*CLUSTER, "--why-not="), "--why-not: its value is empty"),
    "a batch no replica divides": ((*CLUSTER, "--search", "data_parallel", "--global-batch", "7"), "multiple of 4"),
    "a folder that does not exist": ((*CLUSTER, "--out", "no/such/plan.json"), "no/such does not exist"),
    "a trace in a folder that does not exist": ((*CLUSTER, "--trace", "no/trace.json"), "--trace"),
    "a report in a folder that does not exist": ((*CLUSTER, "--report", "no/report.html"), "--report"),
    "a folder instead of a file": ((*CLUSTER, "--out", "."), "is a folder"),
    "a file name that is too long": ((*CLUSTER, "--out", "x" * 300), "cannot be written"),
    "a limit that is no time": ((*CLUSTER, "--time-limit", "nan"), "must be a time above 0, for example 30s"),
    "one file for two outputs": ((*CLUSTER, "--out", "same", "--report", "same"), "both name same"),
}


def _is_refused(done: Any, *words: str) -> None:
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.count("\n") == 1 and done.err.startswith("meshwright: ") and "Traceback" not in done.err, done.err
    for word in words:
        assert word in done.err, done.err


@pytest.mark.parametrize("case", OPTIONS)
def test_a_wrong_option_is_refused_in_one_line(meshwright: Any, tiny: str, tmp_path: pathlib.Path, case: str) -> None:
    options, word = OPTIONS[case]
    _is_refused(meshwright("plan", tiny, *options), word)
    assert list(tmp_path.iterdir()) == []


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing field": ({"hidden_size": None}, "'hidden_size' is missing"),
    "a negative field": ({"hidden_size": -4}, "hidden_size is -4"),
    "a field of zero": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "a field that is not a number": ({"hidden_size": float("nan")}, "hidden_size is nan"),
    "an infinite field": ({"hidden_size": float("inf")}, "hidden_size is inf"),
    "a huge field": ({"hidden_size": 10**30}, "between 1 and"),
    "a field of the wrong kind": ({"hidden_size": "wide"}, "'wide'"),
    "a truth value for a size": ({"hidden_size": True}, "whole number"),
    "heads that do not divide": ({"num_attention_heads": 7}, "7"),
    "an unknown family": ({"model_type": "crystal"}, "'crystal' is not supported"),
    "a misspelled field": ({"hidden_size": None, "hidden_sise": 64}, "hidden_si"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_wrong_configuration_is_refused_in_one_line(meshwright: Any, tiny: str, tmp_path: pathlib.Path, case: str) -> None:
    changes, word = CONFIGS[case]
    config = json.loads(pathlib.Path(tiny).read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    _is_refused(meshwright("plan", "config.json", *CLUSTER, "--out", "plan.json"), "config.json", word)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "config.json", *CLUSTER, "--out", "./config.json"),
        ("plan", "gpt2", "--cluster", "machine.yaml", "--report", "machine.yaml"),
        ("plan", ".", *CLUSTER, "--trace", "config.json"),
        ("size", "config.json", "--tokens", "1B", "--out", "config.json"),
        ("sweep", "config.json", "--global-batches", "8", *CLUSTER, "--out", "config.json"),
        ("export", "config.json", "--to", "megatron", "--out", "config.json"),
        ("simulate", "config.json", "--trace", "config.json"),
        ("validate", "machine.yaml", "--report", "machine.yaml"),
        ("calibrate", "config.json", "--for", "fsdp2", "--out", "config.json"),
        ("codesign", "config.json", "--servers", "2", "--degree", "1", "--link-bandwidth", "1 GB/s", "--out", "config.json"),
    ],
    ids=lambda words: words[0],
)
def test_no_command_writes_over_what_it_reads(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path, words: tuple[str, ...]
) -> None:
    for name in ("config.json", "machine.yaml"):
        (tmp_path / name).write_bytes(pathlib.Path(tiny).read_bytes())
    _is_refused(meshwright(*words), words[-1], "this file is read, and would be written over")
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {pathlib.Path(tiny).read_bytes()}


FILES = {
    "cut off": (b'{"model_type": "llama", "hidd', "cut off"),
    "binary": (bytes(range(256)), "binary"),
    "empty": (b"", "file.json"),
    "a list": (b"[1, 2]", "not recognised"),
    "not UTF-8": (b'{"model_type": "\xe9"}', "file.json"),
    "nested too deeply": (b"[" * 100_000, "file.json"),
    "half a plan": (b'{"format": "meshwright/plan/1", "feasible": true}', "file.json"),
    "a plan with stages of the wrong kind": (
        b'{"format": "meshwright/plan/1", "feasible": true, "model": {"name": "x", "spec": "gpt2"}, "stages": 3}',
        "file.json",
    ),
}


@pytest.mark.parametrize("command", [("plan", *CLUSTER), ("show",), ("simulate",), ("check",)], ids=lambda words: words[0])
@pytest.mark.parametrize("case", FILES)
def test_a_broken_file_is_refused_in_one_line(
    meshwright: Any, tmp_path: pathlib.Path, case: str, command: tuple[str, ...]
) -> None:
    content, word = FILES[case]
    (tmp_path / "file.json").write_bytes(content)
    _is_refused(meshwright(command[0], "file.json", *command[1:]), "file.json" if command[0] != "plan" else word)
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.parametrize(
    "content", [b"nodes: [1,", b"\0\1", b"", b"- 1", b"[" * 5000, b"\xff\xfe"], ids=lambda content: repr(content[:10])
)
def test_a_broken_cluster_file_is_refused_in_one_line(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path, content: bytes
) -> None:
    (tmp_path / "lab.yaml").write_bytes(content)
    _is_refused(meshwright("plan", tiny, "--cluster", "lab.yaml"), "lab.yaml")


@pytest.mark.parametrize(
    "model",
    ["llama-3.1-8c", "nowhere.json", "", "x" * 5000, "pase:nothing", "topoopt:nothing", "."],
    ids=lambda name: name[:20],
)
@pytest.mark.parametrize("command", [("plan", *CLUSTER), ("show",)], ids=lambda words: words[0])
def test_a_model_that_is_not_there_is_refused_in_one_line(meshwright: Any, model: str, command: tuple[str, ...]) -> None:
    _is_refused(meshwright(command[0], model, *command[1:]))


def test_an_unreadable_file_is_refused_in_one_line(meshwright: Any, tmp_path: pathlib.Path, tiny: str) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    (tmp_path / "secret.json").write_text(pathlib.Path(tiny).read_text())
    (tmp_path / "secret.json").chmod(0)
    _is_refused(meshwright("plan", "secret.json", *CLUSTER), "secret.json")


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--global-batch", "-8", "--searches", "best"),
        ("compare", "--micro-batch", "-8", "--searches", "best"),
        ("compare", "--sequence-length", "-8", "--searches", "best"),
        ("compare", "--searches", ""),
        ("compare", "--searches", "best,pyper"),
        ("compare",),
    ],
    ids=" ".join,
)
def test_compare_refuses_wrong_options_in_one_line(meshwright: Any, tiny: str, words: tuple[str, ...]) -> None:
    _is_refused(meshwright(words[0], tiny, *CLUSTER, *words[1:]))


@pytest.mark.parametrize(
    "words",
    [
        ("list", "nothing"),
        ("list",),
        ("plan",),
        ("show",),
        ("simulate", "nowhere.json"),
        ("check", "nowhere.json"),
        ("fly",),
        ("--fly",),
    ],
    ids=" ".join,
)
def test_a_wrong_command_is_refused_in_one_line(meshwright: Any, words: tuple[str, ...]) -> None:
    _is_refused(meshwright(*words))


def test_what_a_full_disk_does_not_take_is_told_all_the_same(
    meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for more, begin in (((), "tiny_llama on flat:4: "), (("--json",), '{"format": "meshwright/plan/1"')):
        done = meshwright("plan", tiny, *CLUSTER, "--global-batch", "16", "--no-what-if", "--out", "plan.json", *more)
        assert done.code == 2 and done.out.startswith(begin) and "plan.json: cannot be written: No space left" in done.err
    assert not list(pathlib.Path.cwd().iterdir())


def test_an_interrupted_plan_leaves_no_file(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    done = meshwright("plan", tiny, *CLUSTER, "--global-batch", "8", "--json", "--out", "plan.json")
    assert done.code == 130 and done.out == "" and "nothing was written" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_after_the_first_file_names_it(meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.writers import chrome_trace

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chrome_trace, "write", interrupted)
    words = ("--global-batch", "8", "--no-what-if", "--search", "data_parallel", "--out", "plan.json", "--trace", "trace.json")
    done = meshwright("plan", tiny, *CLUSTER, *words)
    assert done.code == 130 and done.out == "" and pathlib.Path("plan.json").exists()
    assert done.err.splitlines()[-1] == "meshwright: interrupted; written before that: plan.json"


def test_what_was_written_and_is_gone_is_not_named(
    meshwright: Any, tiny: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what processes of a run tell each other in a folder of their own."""
    from meshwright.base import files
    from meshwright.writers import chrome_trace

    def interrupted(*_: object) -> None:
        with files.temporary_folder("job-") as folder:
            files.write(pathlib.Path(folder) / "job.json", "{}")
            raise KeyboardInterrupt

    monkeypatch.setattr(chrome_trace, "write", interrupted)
    words = ("--global-batch", "8", "--no-what-if", "--search", "data_parallel", "--trace", "trace.json")
    done = meshwright("plan", tiny, *CLUSTER, *words)
    assert done.code == 130 and done.err.splitlines()[-1] == "meshwright: interrupted; nothing was written"


def test_too_little_memory_is_one_line(meshwright: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr(api, "make_problem", full)
    _is_refused(meshwright("plan", tiny, *CLUSTER), "too little memory for what was asked (Unable to allocate 3 TiB)")


def test_a_file_that_holds_null_is_told_as_it_is(meshwright: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "null.json").write_text("null\n")
    _is_refused(meshwright("plan", "null.json", *CLUSTER), "null.json: holds null and nothing else")
