"""Commands as a user types them, for several test files."""

from __future__ import annotations

import sys

import pytest

from actionpiece import cli


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["actionpiece", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
