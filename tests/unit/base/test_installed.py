"""The quick look at what is installed never says no where `importlib.metadata` finds a group."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import pathlib
import sys
import zipfile
from unittest import mock

import pytest

from meshwright.base.installed import may_have_group

GROUP = "[meshwright.search]\nmine = mine\n"


def seen(places: list[str]) -> bool:
    """Look without the finders that packages imported by other tests have added: any of them may know of further packages."""
    with mock.patch.object(sys, "meta_path", [importlib.machinery.PathFinder]):
        return may_have_group(places, "meshwright.")


def installed(folder: pathlib.Path, text: str, kind: str = "dist-info") -> str:
    info = folder / f"mine-1.0.{kind}"
    info.mkdir(parents=True)
    (info / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)
    return str(folder)


@pytest.mark.parametrize("kind", ["dist-info", "egg-info"])
def test_a_group_is_seen_wherever_it_lies(tmp_path: pathlib.Path, kind: str) -> None:
    other = installed(tmp_path / "other", "[console_scripts]\nmeshwright = meshwright.cli:main\n")
    assert not seen([other, str(tmp_path / "none")])
    mine = installed(tmp_path / "mine", f"[console_scripts]\nx = y:z\n\n{GROUP}", kind)
    found = importlib.metadata.Distribution.discover(path=[mine])
    assert [point.group for one in found for point in one.entry_points if point.name == "mine"] == ["meshwright.search"]
    assert seen([other, mine])


def test_a_package_without_entry_points_is_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plain-1.0.dist-info").mkdir()
    assert not seen([str(tmp_path)])


def test_what_is_no_folder_may_hold_anything(tmp_path: pathlib.Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("mine-1.0.dist-info/entry_points.txt", GROUP)
    assert may_have_group([str(tmp_path / "all.zip")], "meshwright.")
    (tmp_path / "eggs" / "mine-1.0.egg").mkdir(parents=True)
    assert may_have_group([str(tmp_path / "eggs")], "meshwright.")


def test_another_way_to_find_packages_may_find_anything(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_distributions(self, *_: object) -> list[object]:
            return []

    finders = [
        one for one in sys.meta_path if not hasattr(one, "find_distributions") or one.__module__ == "_frozen_importlib_external"
    ]
    monkeypatch.setattr(sys, "meta_path", finders)
    assert not seen([str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [*finders, Finder()])
    assert may_have_group([str(tmp_path)], "meshwright.")
