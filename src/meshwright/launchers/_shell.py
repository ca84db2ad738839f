"""What the launchers' shell scripts share: comments, variables that must be set, and settings with their reasons."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from meshwright.core.launch import LaunchJob

__all__ = ["comments", "devices_of", "settings"]


def comments(lines: Sequence[str]) -> list[str]:
    """Return lines as comments of bearable length."""
    return [row for line in lines for row in textwrap.wrap(line, 118, initial_indent="# ", subsequent_indent="#   ")]


def settings(job: LaunchJob) -> list[str]:
    """Return the lines that ask for variables that must be set, and set those of the program."""
    lines = [f': "${{{name}:?{what}}}"' for name, what in job.program.needs]
    for name, value, why in job.program.environment:
        lines += [*comments([why]), f"export {name}={shlex.quote(value)}"]
    return lines


def devices_of(job: LaunchJob, host: int) -> str:
    """Return which devices of the cluster a host has, in words."""
    some = job.hosts.devices[host]
    kind = f", {job.hosts.kinds[host]}" if job.hosts.kinds[host] else ""
    return f"device {some[0]}{kind}" if len(some) == 1 else f"devices {some[0]} to {some[-1]}{kind}"
