"""One process of a script of the user's own, started as ``python -m meshwright.runtime.open.script_process FILE``."""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.base.errors import MeshwrightError
from meshwright.runtime.job import lifeline

__all__ = ["main", "run_here"]


def run_here(path: str, arguments: Sequence[str]) -> None:
    """Run a script as ``python path arguments`` would, in this process."""
    sys.argv[:] = [path, *arguments]
    sys.path.insert(0, str(Path(path).absolute().parent))
    runpy.run_path(path, run_name="__main__")


def main() -> int:
    """Run the script; leave the error that ends it, or a result where it ends well; return the exit status."""
    lifeline.hold()
    path = Path(sys.argv[1])
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    os.environ.update(told["environment"])
    rank = int(os.environ["RANK"])
    with (path.parent / f"where-{rank}").open("w") as place:
        faulthandler.register(signal.SIGUSR1, file=place, all_threads=False)  # sent where the time given is up
        try:
            run_here(told["script"], told["arguments"])
        except SystemExit as ended:
            if ended.code not in (None, 0):
                _fail(path.parent, rank, f"exit status {ended.code}", wrong=False)
        except MeshwrightError as error:
            _fail(path.parent, rank, str(error), wrong=True)
        except ArithmeticError as error:
            ours = type(error).__module__.startswith("meshwright.")  # NonFiniteError: torch is not imported for its name here
            _fail(path.parent, rank, str(error) if ours else "".join(traceback.format_exception(error)), wrong=False)
        except BaseException as error:
            _fail(path.parent, rank, "".join(traceback.format_exception(error)), wrong=False)
        sys.stdout.flush()
        (path.parent / f"ended-{rank}").write_text(str(time.time()))  # others may miss it before this process is gone
        if rank == 0:
            if "MESHWRIGHT_PLAN_USED" not in os.environ:
                what = "never called meshwright.parallelize(model) without a plan of its own"
                print(f"meshwright: {told['script']} {what}: --plan was not used", file=sys.stderr)
            (path.parent / "result.json").write_text("{}")
        faulthandler.unregister(signal.SIGUSR1)
    return 0


def _fail(folder: Path, rank: int, text: str, *, wrong: bool) -> None:
    """Leave the error for the launcher, and end at once."""
    (folder / f"error-{rank}.json").write_text(json.dumps({"wrong_input": wrong, "text": text, "time": time.time()}))
    sys.stdout.flush()
    os._exit(2 if wrong else 1)  # other ranks may be gone: no orderly end is possible


if __name__ == "__main__":
    sys.exit(main())
