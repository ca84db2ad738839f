"""Names of repositories on huggingface.co: the built-in model that each is, looked up in data, never on the network."""

from __future__ import annotations

import difflib
from pathlib import Path

from meshwright.base.errors import InputError

__all__ = ["built_in", "repositories", "unknown"]

_SPELLING_RATIO = 0.5


def repositories() -> dict[str, str]:
    """Return the built-in model of every repository that is known, by the repository's name as the hub spells it."""
    import tomllib

    file = Path(__file__).parent / "data" / "hub.toml"
    listed: dict[str, list[str]] = tomllib.loads(file.read_text(encoding="utf-8"))
    return {repository: name for name, held in listed.items() for repository in held}


def built_in(spec: str) -> str:
    """Return the built-in model that a repository's name stands for; empty where it is none of those known, or a file.

    Parameters
    ----------
    spec : str
        As typed: ``"meta-llama/Llama-3.1-8B"``.
    """
    if ("/" not in spec and "-uncased" not in spec) or Path(spec).exists():
        return ""
    return {repository.lower(): name for repository, name in repositories().items()}.get(spec.lower(), "")


def unknown(spec: str) -> InputError:
    """Return the error that answers a name on the hub's pattern that is no file and no repository known here.

    Parameters
    ----------
    spec : str
        As typed.
    """
    known = {repository.lower(): repository for repository in repositories()}
    close = difflib.get_close_matches(spec.lower(), known, n=3, cutoff=_SPELLING_RATIO)
    near = f"near ones that are: {', '.join(known[name] for name in close)}" if close else "none is near"
    return InputError(
        f"{spec}: no such file, and not among the repositories on huggingface.co that are built in ({near}); nothing is looked "
        "up on the network: give the path of its config.json"
    )
