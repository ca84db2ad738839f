"""Cuts a trace into layers: the children of lists of modules, and what stands before, between and after them."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.runtime.capture.trace import Trace

__all__ = ["OperatorSegment", "segments"]

_WRAPPER_RATIO = 0.99  # of a layer's operators in one list inside it: the layer is nothing but that list
_BODY_RATIO = 0.5  # of a part's FLOPs or operators in lists inside it: the lists are its layers


@dataclass(frozen=True, slots=True)
class OperatorSegment:
    """Operators that follow each other and belong to one part of the module.

    `name`: name of the layer.
    `path`: path of the part in the module.
    `listed`: whether the part is a child of a list.
    `operators`: ids, views and constants left out.
    """

    name: str
    path: str
    listed: bool
    operators: tuple[int, ...]


def segments(trace: Trace) -> tuple[OperatorSegment, ...]:
    """Return the layers of a trace in the order they ran.

    Returns: every computing operator in exactly one. What stands before the first list is one layer (``embed`` where it
    looks up a table, else ``stem``), what stands after the last one is ``head``; a module without lists is cut into its
    children.
    """
    split = _split_paths(trace)
    runs: list[tuple[str, bool, list[int]]] = []
    for i, operator in enumerate(trace.operators):
        if operator.view or not operator.trained:
            continue
        path, listed = _part(operator.module, split, trace.lists)
        own = path in split
        if runs and (runs[-1][0] == path or (own and not runs[-1][1])):
            runs[-1][2].append(i)
        else:
            runs.append((path, listed, [i]))
    runs = _joined(runs, split)
    listed_at = [k for k, (_, listed, _) in enumerate(runs) if listed]
    if listed_at:
        first, last = listed_at[0], listed_at[-1]
        ends = [_merged("", runs[:first])] if first else []
        tail = [_merged("head", runs[last + 1 :])] if last + 1 < len(runs) else []
        if ends:
            word = "embed" if any(trace.operators[i].name == "embedding" for i in ends[0][2]) else "stem"
            ends = [(word, False, ends[0][2])]
        runs = ends + runs[first : last + 1] + tail
    names = _short([path for path, _, _ in runs])
    return tuple(OperatorSegment(name, path, listed, tuple(ids)) for name, (path, listed, ids) in zip(names, runs, strict=True))


def _split_paths(trace: Trace) -> frozenset[str]:
    """Return the paths that are cut into their children: the module itself, lists, and what mostly consists of lists."""
    computing = [(op.module, op.forward_flops) for op in trace.operators if op.trained and not op.view]
    split: set[str] = set()

    def is_wrapper(path: str) -> bool:
        inside = [module for module, _ in computing if module == path or module.startswith(path + ".")]
        lists = tuple(other + "." for other in trace.lists if other.startswith(path + "."))
        return bool(lists) and sum(module.startswith(lists) for module in inside) >= _WRAPPER_RATIO * len(inside)

    def visit(path: str, in_list: bool) -> None:
        prefix = path + "." if path else ""
        inside = [(module, flops) for module, flops in computing if module == path or module.startswith(prefix)]
        if not inside:
            return
        lists = tuple(other + "." for other in trace.lists if other.startswith(prefix) and other != path)
        in_lists = [module.startswith(lists) if lists else False for module, _ in inside]
        n_listed = sum(in_lists) / len(inside)
        total = sum(flops for _, flops in inside)
        flops_listed = (
            sum(flops for (_, flops), there in zip(inside, in_lists, strict=True) if there) / total if total else n_listed
        )
        if path and path not in trace.lists and not in_list and max(flops_listed, n_listed) < _BODY_RATIO:
            return
        split.add(path)
        children = dict.fromkeys(module[len(prefix) :].partition(".")[0] for module, _ in inside if module != path)
        if path in trace.lists:  # of one class all are cut or none
            whole = {trace.classes[prefix + child] for child in children if not is_wrapper(prefix + child)}
            children = {
                child: None for child in children if trace.classes[prefix + child] not in whole or prefix + child in trace.lists
            }
        for child in children:
            visit(prefix + child, path in trace.lists)

    visit("", False)
    return frozenset(split)


def _part(module: str, split: frozenset[str], lists: frozenset[str]) -> tuple[str, bool]:
    """Return the part of the model that a module belongs to, and whether it is a child of a list."""
    path = ""
    rest = module
    while path in split and rest:
        head, _, rest = rest.partition(".")
        parent, path = path, f"{path}.{head}".lstrip(".")
        if path not in split:
            return path, parent in lists
    return path, False


def _joined(runs: list[tuple[str, bool, list[int]]], split: frozenset[str]) -> list[tuple[str, bool, list[int]]]:
    """Put operators of a part that was cut (sums between its children) with the part before; the first with the one after.

    After the last child of a list they stay apart: they belong to the head.
    """
    last_listed = max((k for k, run in enumerate(runs) if run[1]), default=len(runs))
    joined: list[tuple[str, bool, list[int]]] = []
    for k, (path, listed, ids) in enumerate(runs):
        if (path in split and joined and k < last_listed) or (joined and joined[-1][0] == path):
            joined[-1][2].extend(ids)
        else:
            joined.append((path, listed, ids))
    if len(joined) > 1 and joined[0][0] in split:
        path, listed, ids = joined[1]
        joined[:2] = [(path, listed, joined[0][2] + ids)]
    return joined


def _merged(path: str, runs: list[tuple[str, bool, list[int]]]) -> tuple[str, bool, list[int]]:
    return path, False, [i for _, _, ids in runs for i in ids]


def _short(paths: list[str]) -> list[str]:
    """Return unique names without the beginning that all dotted paths share; a part that runs again gets a number."""
    dotted = [path.split(".") for path in paths if "." in path]
    shared = 0
    while dotted and all(len(parts) > shared + 2 and parts[shared] == dotted[0][shared] for parts in dotted):
        shared += 1
    names: list[str] = []
    seen: dict[str, int] = {}
    for path in paths:
        parts = path.split(".")
        name = ".".join(parts[shared:] if len(parts) > 1 else parts) or "model"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}@{seen[name]}")
    return names
