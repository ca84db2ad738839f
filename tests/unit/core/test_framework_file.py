"""Frameworks from files: every entry reaches its field in base units, variants stand on the plain one and apply as told."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from meshwright.base import files
from meshwright.base.errors import InputError
from meshwright.core import framework_file
from meshwright.core.framework import Framework

ENTRY: dict[str, Any] = {
    "title": "Ours", "version": "1.2",
    "how": {"issue_seconds": {"value": "90 us", "source": "measured"}, "buffer_bytes": "2 GiB", "dispatches_once": True,
            "shard_bytes_per_second": "10 GB/s", "tensor_overlap_ratio": 1.0, "memory_passes_ratio": 1.5, "attention": "cudnn"},
    "limits": {"degrees": ["tensor"], "shards": [0, 3], "virtual_stages": False, "recompute_scope": "plan"},
    "variants": {
        "arm": {"title": "on Arm", "when": {"host": "arm"}, "how": {"issue_seconds": "60 us"}},
        "old": {"when": {"release_before": "25.04", "experts": True}, "version": "1.1", "limits": {"shards": [0]}},
        "new": {"when": {"release_from": "25.04"}}, "by_name": {},
    },
}  # fmt: skip


def test_figures_and_limits_reach_their_fields_in_base_units() -> None:
    base = Framework(loss_bytes=7.0, issue_seconds=1.0)
    plain, _ = framework_file.of_content(ENTRY, "ours", "ours.toml", base)
    assert (plain.name, plain.word, plain.version, plain.loss_bytes) == ("ours", "ours", "1.2", 7.0)
    assert plain.issue_seconds == pytest.approx(90e-6) and plain.buffer_bytes == 2 * 2**30
    assert plain.shard_bytes_per_second == 10e9 and plain.dispatches_once and plain.attention == "cudnn"
    assert (plain.tensor_overlap_ratio, plain.memory_passes_ratio) == (1.0, 1.5)
    assert plain.limits.degrees == ("tensor",) and plain.limits.shards == (0, 3) and not plain.limits.virtual_stages
    assert plain.limits.recompute_scope == "plan" and plain.limits.uneven_stages


def test_a_variant_is_the_plain_one_with_what_differs() -> None:
    plain, variants = framework_file.of_content(ENTRY, "ours", "ours.toml", Framework())
    arm, old, new, by_name = variants
    assert [one.framework.word for one in variants] == ["ours:arm", "ours:old", "ours:new", "ours:by_name"]
    assert arm.framework.issue_seconds == pytest.approx(60e-6) and arm.framework.buffer_bytes == plain.buffer_bytes
    assert (arm.title, arm.framework.version, old.framework.version) == ("on Arm", "1.2", "1.1")
    assert old.framework.limits.shards == (0,) and old.framework.limits.degrees == ("tensor",)
    assert arm.applies({"host": "arm"}) and not arm.applies({"host": "x86"}) and not arm.applies({})
    assert old.applies({"release": "25.03", "experts": True})
    assert not old.applies({"release": "25.03"}) and not old.applies({"release": "25.04", "experts": True})
    assert not old.applies({"experts": True}) and new.applies({})  # a release that is not told is the newest
    assert new.applies({"release": "25.04"}) and not new.applies({"release": "25.03"})
    assert not by_name.applies({"host": "arm", "experts": True})


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("how", "issue_seconds", "3 GB"), ("how", "dispatches_once", 1), ("how", "attention", 1), ("how", "unknown", 1),
        ("how", "tensor_overlap_ratio", 1.1), ("how", "memory_passes_ratio", -1.0), ("how", "name", "x"),
        ("how", "loss_bytes", {"valu": 1}), ("limits", "shards", [4]), ("limits", "shards", [-1]), ("limits", "unknown", 1),
        ("limits", "degrees", ["data"]), ("limits", "recompute", ["sometimes"]), ("limits", "recompute_scope", "stage"),
        ("limits", "virtual_stages", "no"), ("limits", "schedules", [1]), ("variants", "x", {"when": {"weather": "fine"}}),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_refused_with_its_place(table: str, key: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"ours.toml: {table}"):
        framework_file.of_content({**ENTRY, table: {key: value}}, "ours", "ours.toml", Framework())


def test_a_file_is_called_like_its_framework_and_described_by_title_and_version(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('title = "Mine"\nversion = "3"\n[how]\nloss_bytes = "6 B"\n')
    plain, variants = framework_file.read(path)
    assert (plain.name, plain.loss_bytes, variants) == ("mine", 6.0, ())
    assert framework_file.described(files.read_toml(path)) == "Mine (3)"
    assert framework_file.described({"title": "Mine"}) == "Mine"
    path.write_text("title = ")
    with pytest.raises(InputError, match="is no TOML"):
        files.read_toml(path)
    with pytest.raises(InputError, match="cannot be read"):
        files.read_toml(tmp_path / "none.toml")
