"""Tables, figures and the HTML report."""

from __future__ import annotations

from actionpiece.report.html import write_report

__all__ = ["write_report"]
