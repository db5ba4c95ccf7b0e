"""The style of the lab's reports stands in their pages under the same policy as the core's."""

from __future__ import annotations

import base64
import hashlib
import re

from adjudge.runs.report.frame import render_page


def test_the_policy_admits_exactly_the_style() -> None:
    html = render_page("Run", [], [], styles=[("adjudge_lab.rl", "report.css")])
    style = re.search("<style>(.*)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'" in html
    assert "style=" not in html.replace("default-src", "")
