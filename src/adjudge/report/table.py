"""One table for the page and for the terminal.

A cell is text, a number, an element or a list of these; an element that is a cell itself (``td``)
brings its own class and span. On the page all text is escaped. In the terminal control characters
are written by their numbers, brackets are no markup, ``bold`` is bold, ``small`` is dim, and what
is ``lost`` is yellow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from adjudge.report.elements import Element

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable
    from rich.text import Text


_TERMINAL_STYLES: Mapping[str, str] = {
    "b": "bold", "small": "dim", "lost": "yellow", "good": "green", "bad": "red",
    "worst": "bold red", "name": "cyan",
}  # fmt: skip
_JUSTIFY: Mapping[str, Literal["right", "center"]] = {"n": "right", "i": "right", "c": "center"}


class Column(NamedTuple):
    """A heading and what stands under it.

    ``kind``: ``n`` numbers, ``i`` intervals beside them, ``w`` text that may wrap, ``plot`` charts,
    ``c`` marks in the middle; by default text. ``wrap``: whether a narrow terminal may break its
    lines.
    """

    heading: object
    kind: str = ""
    wrap: bool = True
    min_width: int | None = None


def numeric(*headings: object) -> list[Column]:
    """Columns of numbers."""
    return [Column(heading, "n") for heading in headings]


def styled(text: object, kind: str) -> Element:
    """Text in the terminal's colour of its ``kind``: ``good``, ``bad``, ``worst``, ``name``."""
    return Element("span", text, class_=kind)


def lost(text: str) -> Element:
    """What failed, in the colour of an alarm."""
    return styled(text, "lost")


class Table:
    """Rows under headings. Without rows it is false and a section leaves it out.

    ``columns``: headings, or :class:`Column`. ``kind`` is a class of the stylesheet.
    ``row_heads``: whether a row's first cell is its heading.
    """

    def __init__(
        self,
        columns: Iterable[object],
        rows: Iterable[Sequence[object]],
        *,
        caption: object = None,
        kind: str = "data",
        row_heads: bool = True,
    ) -> None:
        self.columns = [one if isinstance(one, Column) else Column(one) for one in columns]
        self.rows = list(rows)
        self.caption, self.kind, self.row_heads = caption, kind, row_heads

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __html__(self) -> str:
        titled = Element("caption", self.caption) if self.caption else None
        heads = [
            Element("th", one.heading, scope="col", class_=one.kind)
            if one.heading
            else Element("td")
            for one in self.columns
        ]
        body = [Element("tr", *self._cells(row)) for row in self.rows]
        head = (
            Element("thead", Element("tr", *heads))
            if any(one.heading for one in self.columns)
            else None
        )
        table = Element("table", titled, head, Element("tbody", body), class_=self.kind)
        return Element("div", table, class_="scroll").__html__()

    def _cells(self, row: Sequence[object]) -> Iterator[Element]:
        for place, (cell, column) in enumerate(zip(row, self.columns, strict=False)):
            if isinstance(cell, Element) and cell.tag == "td":
                yield cell
            elif place == 0 and self.row_heads:
                yield Element("th", cell, scope="row")
            else:
                yield Element("td", cell, class_=column.kind)

    def __rich__(self) -> TerminalTable:
        from rich.table import Table as TerminalTable  # noqa: PLC0415 (slow to load)

        named = any(one.heading for one in self.columns)
        table = TerminalTable(
            box=None, pad_edge=False, header_style="bold", show_header=named, title_justify="left",
            title_style="bold",
            title=None if self.caption is None else _terminal_text(self.caption),
        )  # fmt: skip
        for one in self.columns:
            table.add_column(
                _terminal_text(one.heading),
                justify=_JUSTIFY.get(one.kind, "left"),
                style="dim" if one.kind == "i" else "",
                # A number that is broken reads as another one.
                overflow="fold" if one.wrap and one.kind not in ("n", "i") else "ellipsis",
                no_wrap=not one.wrap,
                min_width=one.min_width,
            )
        for row in self.rows:
            table.add_row(*map(_terminal_text, row))
        return table


def _terminal_text(content: object, style: str = "") -> Text:
    from rich.text import Text  # noqa: PLC0415

    if isinstance(content, Element):
        if content.tag == "br":
            return Text("\n")
        kind = _TERMINAL_STYLES.get(str(content.attributes.get("class_", content.tag)), style)
        return Text.assemble(*(_terminal_text(part, kind) for part in content.content))
    if isinstance(content, Iterable) and not isinstance(content, str):
        return Text.assemble(*(_terminal_text(part, style) for part in content))
    plain = "" if content is None else str(content)
    return Text("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in plain), style=style)
