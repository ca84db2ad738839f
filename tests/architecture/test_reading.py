"""What a user names as a file is read in one place, which refuses what is endless, huge or no text."""

from __future__ import annotations

import ast
import pathlib
import re

import meshwright

SOURCE = pathlib.Path(meshwright.__file__).parent
OWN = {
    "frameworks/fsdp2/script.py": "a part of this package", "frameworks/maxtext/config.py": "data of this package",
    "frameworks/megatron_bridge/fields.py": "data of this package",
    "frameworks/nanotron/told.py": "data of this package", "frameworks/torchtitan/flavors.py": "data of this package",
    "frameworks/transformers/told.py": "data of this package",
    "models/hub.py": "a part of this package",
    "models/readers/huggingface.py": "models of this package", "validation/_page.py": "a part of this package",
    "report/size_page.py": "a part of this package",
    "writers/report_html/__init__.py": "a part of this package",
    "runtime/job/checkpoints.py": "what a run wrote itself", "runtime/job/checkpoint_folders.py": "what a run wrote itself",
    "runtime/job/job.py": "what a run wrote itself", "runtime/job/recording.py": "what a run wrote itself",
    "runtime/profile/kineto.py": "what a run wrote itself",
    "runtime/job/launch.py": "what a run wrote itself", "runtime/job/worker.py": "what a run wrote itself",
    "runtime/open/script_process.py": "what a run wrote itself", "runtime/profile/links.py": "what a run wrote itself",
}  # fmt: skip
"""Files that read others, and what these are."""


def _reads(text: str) -> list[str]:
    """Return the calls by which a module reads files or parses what they hold."""
    found: list[str] = []
    if not re.search(r"\b(read_text|read_bytes|open|yaml|tomllib)\b", text):
        return found
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        parses = name in ("yaml.load", "yaml.safe_load", "tomllib.loads", "tomllib.load", "open")
        if parses or (last in ("read_text", "read_bytes", "open") and not name.startswith(("files.", "_exact.", "os."))):
            found.append(name)
    return found


def test_files_of_users_are_read_in_one_place() -> None:
    found = {}
    for path in SOURCE.rglob("*.py"):
        place = str(path.relative_to(SOURCE))
        if not place.startswith(("base/", "_kernels/")) and (calls := _reads(path.read_text())):
            found[place] = calls
    assert set(found) == set(OWN), {place: found.get(place) for place in set(found) ^ set(OWN)}
