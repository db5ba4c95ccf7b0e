"""A run as one HTML page that opens anywhere."""

from adjudge.runs.report.page import ReportRow, write_report

__all__ = ["ReportRow", "write_report"]
