"""Frameworks that run plans: what each can run, how it runs it, how it is told, what its own files say. One file per framework.

Promises of a framework's module, checked by ``tests/contract/test_frameworks.py``:

* ``FRAMEWORK``: the `Framework`, its name the file's, its figures and limits from ``data/NAME.toml`` with the source of each;
* ``VARIANTS``, if any: what is different under circumstances (hosts, releases, captured graphs), the first that applies counts;
* ``refusals(plan, problem) -> tuple[str, ...]``: all that the framework cannot run of a plan, in sentences; empty where it runs
  the plan exactly. What is outside ``FRAMEWORK.limits`` is among them;
* ``write(result, path)``, if it can be told: its own configuration of a plan, or an `ExportError` and no file; it returns in
  sentences what the configuration cannot say, where there is any;
* ``read(path, graph, n_devices) -> RunConfig``, if its files say enough: the plan that such a file holds of a model, with the
  precision and length of samples where it says them, and warnings. ``n_devices`` is how many devices there are, for files that
  leave the data degree to the launcher. What was written and is read again is the same plan;
* ``on_devices(said, problem, path) -> (refusals, notes)``, beside ``read``, if what a run finds in its environment decides
  whether it starts on some devices;
* ``model_of(path, sequence_length) -> ModelSpec``, beside ``read``, if its files name or describe the model;
* ``program(result, path) -> StartCommand``, if launchers can start it: what every host starts once `path` is written;
* ``recognises(text)``, beside ``read``, or so that another's ``read`` does not take it: whether a file is one of its own;
* ``OWN_MODELS = True``, if it trains only models that it has: answers do not name it for others, which ``write`` refuses;
* ``limits_for(limits, spec, optimizer) -> FrameworkLimits``, where some models are split less than others, or for some
  optimizers: its limits for one of each, which searches keep to; ``refusals`` says the same of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

from meshwright.base import files, registry
from meshwright.base.errors import ExportError, InputError, PluginError, UnknownNameError
from meshwright.core import framework_file
from meshwright.core.cluster import Cluster
from meshwright.core.framework import Framework, FrameworkLimits
from meshwright.core.framework_file import Variant
from meshwright.core.graph import Graph
from meshwright.core.launch import hosts_of
from meshwright.core.plan import Plan
from meshwright.core.plan_forms.exceeded import exceeded
from meshwright.core.problem import ModelSpec, Problem

__all__ = [
    "ASSUMED", "calibrated_on", "circumstances", "find", "for_problem", "load", "names", "not_there", "plain", "recognised",
    "refusals", "searched", "suited", "unstarted", "variant", "variants",
]  # fmt: skip

ASSUMED = "meshwright"
"""What is assumed where nobody names one: our own runtime, which runs every plan that there is."""


_FIELDS = tuple(field.name for field in fields(Framework))
_NOT_OF_MEMORY = frozenset({"name", "variant", "version", "limits", "base", "compute_ratio"})
"""Fields of a framework that change nothing of what its runs hold."""


def names() -> tuple[str, ...]:
    """Return the frameworks there are, sorted."""
    return registry.names("frameworks")


def load(name: str) -> ModuleType:
    """Return a framework's module.

    Raises
    ------
    UnknownNameError
        When there is none of this name.
    PluginError
        When it is broken.
    """
    module = registry.load("frameworks", name, "framework")
    registry.checked(module.FRAMEWORK, Framework, "frameworks", name)
    called = registry.title("frameworks", name, "framework")
    if module.FRAMEWORK.name.replace("-", "_") != name.replace("-", "_").lower():
        raise PluginError(f"{called} has a FRAMEWORK with the name '{module.FRAMEWORK.name}'; it must be its own")
    others = getattr(module, "VARIANTS", ())
    if not isinstance(others, tuple) or not all(isinstance(one, Variant) for one in others):
        raise PluginError(f"{called} has VARIANTS that are no tuple of Variant")
    return module


def plain(name: str) -> Framework:
    """Return a framework without circumstances."""
    framework: Framework = load(name).FRAMEWORK
    return framework


def find(word: str, told: Mapping[str, str | bool] | None = None, which: str = "") -> Framework:
    """Return a framework by what is typed after ``--for``.

    Parameters
    ----------
    word : str
        ``megatron``, ``megatron:experts_x86`` (one of its variants) or a TOML file of one's own, after a colon with the
        variant of its base (`which`).
    told : mapping of str to str or bool or None
        What is known of the circumstances: they decide the variant where the word does not.
    which : str
        The variant that a configuration starts, where the word, or the base of the file, is a plain name that has it; empty
        where it does not say.

    Raises
    ------
    InputError
        When there is no such framework or variant, or the file is wrong.
    """
    if ".toml:" in word:
        word, _, which = word.rpartition(":")
    if word.endswith(".toml") or (word.partition(":")[0] not in names() and Path(word).is_file()):
        entry = files.read_toml(word)
        named = str(entry.get("base", "")) if isinstance(entry, dict) else ""
        if named.endswith(".toml") or (named and Path(named).is_file()):
            raise InputError(f"framework {word}: base: is the file {named}; name one of {', '.join(names())}")
        base = find(named, told, which) if named else Framework()
        own, others = framework_file.of_content(entry, word, f"framework {word}", base)
        found = _chosen(own, others, told or {})
        changed = {name for name in _FIELDS if getattr(found, name) != getattr(base, name)}
        return replace(found, base=base.name) if changed <= _NOT_OF_MEMORY else found
    name, colon, own_variant = word.partition(":")
    module = load(name)
    if colon:
        return _beside(name, own_variant, told) if own_variant.startswith("+") else variant(name, own_variant)
    known = {one.framework.variant for one in _variants(module)}
    if which and set(which.removeprefix("+").split("+")) <= known:
        return _beside(name, which, told) if which.startswith("+") else variant(name, which)
    return _chosen(module.FRAMEWORK, _variants(module), told or {})


def base_of(word: str) -> str:
    """Return the framework that a file of one's own starts from, as its ``base`` says; empty for none, and for a name."""
    entry = files.read_toml(word) if word.endswith(".toml") else {}
    return str(entry.get("base", "")) if isinstance(entry, dict) else ""


def calibrated_on(word: str) -> tuple[str, ...]:
    """Return the kinds of device that a file of one's own, as `find` has it, was calibrated on; none where it does not say."""
    path = word.partition(".toml:")[0] + ".toml" if ".toml:" in word else word
    if path in names() or not path.endswith(".toml"):
        return ()
    return framework_file.calibrated_on(files.read_toml(path), path)


def writer(word: str) -> str:
    """Return the name of the framework whose files a run has that `word`, as in `find`, names."""
    return (base_of(word) or word).partition(":")[0]


def variant(name: str, which: str) -> Framework:
    """Return a variant of a framework, or several together (``experts_x86+late_reduce``); the plain one for an empty word.

    Raises
    ------
    UnknownNameError
        When there is none of this name.
    """
    module = load(name)
    if not which:
        return plain(name)
    known = {one.framework.variant: one for one in _variants(module)}
    first, *others = which.split("+")
    for word in (first, *others):
        if word not in known or (word in others and not known[word].beside):
            raise UnknownNameError(f"variant of {name}", word, [one for one in known if word == first or known[one].beside])
    own, found = module.FRAMEWORK, known[first].framework
    for word in others:
        other = known[word].framework
        changed = {one: getattr(other, one) for one in _FIELDS if one != "variant" and getattr(other, one) != getattr(own, one)}
        found = replace(found, **changed, variant=f"{found.variant}+{word}") if word not in found.variants else found
    return found


def variants(name: str) -> tuple[Variant, ...]:
    """Return the variants of a framework, the first that applies first."""
    return _variants(load(name))


def _beside(name: str, which: str, told: Mapping[str, str | bool] | None) -> Framework:
    """Return the variant that circumstances choose with others beside it; `which`: as ``+late_reduce``."""
    usual = _chosen(plain(name), variants(name), told or {}).variant
    return variant(name, f"{usual}{which}" if usual else which[1:] or which)


def _variants(module: ModuleType) -> tuple[Variant, ...]:
    return tuple(getattr(module, "VARIANTS", ()))


def _chosen(own: Framework, others: tuple[Variant, ...], told: Mapping[str, str | bool]) -> Framework:
    """Return the first variant that applies, else the plain one."""
    return next((one.framework for one in others if one.applies(told)), own)


def circumstances(graph: Graph | None, cluster: Cluster | None, precision: str = "") -> dict[str, str | bool]:
    """Return what a model and a cluster say of the circumstances that variants ask for.

    `precision`: of products; empty where it is not known.
    """
    told: dict[str, str | bool] = {"precision": precision}
    if graph is not None:
        told["experts"] = any(operator.expert for op in graph.ops for operator in op.body)
        told["reference_copy"] = graph.has_copy
    if cluster is not None:
        arm = all(kind.name.lower().startswith(("gb", "gh")) for kind in cluster.kinds)  # Grace hosts
        told["host"] = "arm" if arm else "x86"
    return told


def for_problem(
    word: str, graph: Graph | None, cluster: Cluster | None, precision: str = "", which: str = ""
) -> Framework:  # fmt: skip
    """Return the framework that a word names, in the variant that suits a model on a cluster.

    `word`, `which`: as in `find`; an empty word for `ASSUMED`.

    Raises
    ------
    InputError
        As `find`.
    """
    return find(word or ASSUMED, circumstances(graph, cluster, precision), which)


def recognised(text: str) -> tuple[str, ...]:
    """Return the frameworks that say of a file's text that it is a configuration of their own."""
    modules = registry.asked(
        "frameworks", "framework", lambda module: hasattr(module, "recognises") and module.recognises(text)
    )
    return tuple(name for name, _, its_own in modules if its_own)


def suited(framework: Framework, spec: ModelSpec, optimizer: str) -> Framework:
    """Return a framework with the limits that it has for a model and an optimizer; itself where they are those for all.

    Raises
    ------
    PluginError
        When its module answers otherwise than the room asks.
    """
    module = load(framework.name) if framework.name in names() else None
    if module is None or not hasattr(module, "limits_for"):
        return framework
    limits = module.limits_for(framework.limits, spec, optimizer)
    registry.checked(limits, FrameworkLimits, "frameworks", framework.name)
    return framework if limits == framework.limits else replace(framework, limits=limits)


def refusals(framework: Framework, plan: Plan, problem: Problem) -> tuple[str, ...]:
    """Return all that a framework cannot run of a plan, in sentences; empty where it runs the plan exactly.

    `framework`: one of the room, or of a file of one's own, whose limits alone count.

    Raises
    ------
    PluginError
        When its module answers otherwise than the room asks.
    """
    devices = not_there(framework, problem.cluster)
    if framework.name in names():
        found = load(framework.name).refusals(plan, problem)
        registry.checked(found, tuple, "frameworks", framework.name)
        return (*devices, *(str(reason) for reason in found))
    return (
        *devices,
        *exceeded(framework.limits, plan, problem.graph, problem.training.precision, problem.training.optimizer),
    )


def searched(name: str) -> str:
    """Return, to begin a sentence, what finds a plan that a framework runs."""
    return f"'meshwright plan ... --for {name}' finds the best plan that it can run"


def unstarted(framework: Framework, plan: Plan, cluster: Cluster | None) -> tuple[str, ...]:
    """Return why a framework that starts equally many devices of every host cannot start a plan; empty where it can."""
    try:
        hosts_of(plan, None if framework.limits.uneven_hosts else cluster)
    except ExportError as error:
        return (str(error),)
    return ()


def not_there(framework: Framework, cluster: Cluster | None) -> tuple[str, ...]:
    """Return why a framework does not run on the devices of a cluster, in a sentence; empty where it does.

    TPUs are told by their names, as kinds of device have no other mark.
    """
    kinds = [kind.name for kind in cluster.kinds if kind.name.upper().startswith("TPU")] if cluster else []
    if framework.limits.tpus or not kinds:
        return ()
    others = ", ".join(name for name in names() if plain(name).limits.tpus)
    return (f"it runs on GPUs, not on {kinds[0]} (for TPUs: {others})",)
