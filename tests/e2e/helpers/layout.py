"""What a window is too narrow for, and what a finger is too wide for."""

from __future__ import annotations

from typing import cast

from playwright.sync_api import Page

_FOUND = """() => {
    const width = document.documentElement.clientWidth, found = [];
    const name = (e) => `${e.tagName} ${e.className} ${e.textContent.trim().slice(0, 40)}`;
    const clipped = (e) => {  // by an ellipsis, say: what is cut off there is meant to be
        for (let up = e.parentElement; up !== document.body; up = up.parentElement)
            if (/hidden|clip/.test(getComputedStyle(up).overflowX)
                && up.getBoundingClientRect().right <= width + 1) return true;
        return false;
    };
    if (document.documentElement.scrollWidth > width) found.push("the page scrolls sideways");
    for (const e of document.querySelectorAll("body *")) {
        const box = e.getBoundingClientRect();
        if (!box.width || e.closest("svg") || e.matches(".unseen")) continue;
        if (box.right > width + 1 && !clipped(e)) found.push("outside: " + name(e));
        if (/auto|scroll/.test(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1)
            found.push("scrolls sideways: " + name(e));
        if (e.matches("button, a, input, select, summary, [role=button]"))
            if (Math.min(box.width, box.height) < 23.5 && !e.matches("[type=checkbox]"))
                found.push("too small to touch: " + name(e));
    }
    return found;
}"""


def layout_faults(page: Page) -> list[str]:
    """What stands outside the window, scrolls sideways, or is smaller than 24 pixels to touch."""
    return cast("list[str]", page.evaluate(_FOUND))
