"""One table for the page and for the terminal.

A cell is text, a number, an element or a list of these; an element that is a cell itself (``td``)
brings its own class and span. On the page all text is escaped. In the terminal control characters
are written by their numbers, brackets are no markup, ``bold`` is bold, ``small`` is dim, what
is ``lost`` is yellow, and charts are left out.

A terminal that is too narrow shows fewer columns, and says which it left out; nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from adjudge.report.page import Element, element_text, format_number, format_range
from adjudge.text import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as TerminalTable
    from rich.text import Text


_TERMINAL_STYLES: Mapping[str, str] = {
    "b": "bold", "small": "dim", "lost": "yellow", "good": "green", "bad": "red",
    "worst": "bold red", "name": "cyan",
}  # fmt: skip
_MOST_NARROW = 3
"""A narrow window has room for so many columns; of more, it shows a row as a card."""
_JUSTIFY: Mapping[str, Literal["right", "center"]] = {"n": "right", "i": "right", "c": "center"}


class Column(NamedTuple):
    """A heading and what stands under it.

    ``kind``: ``n`` numbers, ``i`` intervals beside them, ``w`` text that may wrap, ``plot`` charts,
    ``c`` marks in the middle; by default text. ``wrap``: whether a narrow terminal may break its
    lines before it leaves columns out.
    """

    heading: object
    kind: str = ""
    wrap: bool = True


def numeric(*headings: object) -> list[Column]:
    """Columns of numbers."""
    return [Column(heading, "n") for heading in headings]


def estimate_cells(one: Mapping[str, Any]) -> list[str]:
    """The cells of an estimate, a mapping: its value, and its interval or why there is none."""
    return [format_number(one["value"]), format_range(one["low"], one["high"], one["why"])]


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

    A narrow terminal leaves columns out, first those of ``drop`` in their order, then intervals,
    then the others, from the right. ``keep`` has room before a text is broken less well; the first
    column stays whatever happens, and the first of ``keep``, by default the first number.
    """

    def __init__(
        self,
        columns: Iterable[object],
        rows: Iterable[Sequence[object]],
        *,
        caption: object = None,
        kind: str = "data",
        row_heads: bool = True,
        drop: Sequence[str] = (),
        keep: Sequence[str] = (),
    ) -> None:
        self.columns = [one if isinstance(one, Column) else Column(one) for one in columns]
        self.rows = list(rows)
        self.caption, self.kind, self.row_heads = caption, kind, row_heads
        self.drop, self.keep = drop, keep

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
        wide = len(self.columns) > _MOST_NARROW - any(one.kind == "w" for one in self.columns)
        cards = self.kind == "said" or (self.kind == "data" and wide)
        labels = [_card_label(one) if cards else "" for one in self.columns]
        body = [Element("tr", *self._cells(row, labels)) for row in self.rows]
        head = (
            Element("thead", Element("tr", *heads))
            if any(one.heading for one in self.columns)
            else None
        )
        kind = f"{self.kind} cards" if cards else self.kind
        table = Element("table", titled, head, Element("tbody", body), class_=kind)
        return Element("div", table, class_="scroll").__html__()

    def _cells(self, row: Sequence[object], labels: Sequence[str]) -> Iterator[Element]:
        for place, (cell, column) in enumerate(zip(row, self.columns, strict=False)):
            label = labels[place]
            if isinstance(cell, Element) and cell.tag == "td":
                spans = "colspan" in cell.attributes
                named = {} if spans else {"data_label": label}
                yield Element("td", *cell.content, **cell.attributes, **named)
            elif place == 0 and self.row_heads:
                yield Element("th", cell, scope="row")
            else:
                yield Element("td", cell, class_=column.kind, data_label=label)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text  # noqa: PLC0415 (slow to load)

        columns = [
            _TerminalColumn(
                column,
                [row[place] if place < len(row) else "" for row in self.rows],
                first=not place,
            )
            for place, column in enumerate(self.columns)
        ]
        shown = self._fitting_places(columns, options.max_width)
        if self.caption is not None:
            yield terminal_text(self.caption, "bold")
        yield self._terminal_table([columns[place] for place in shown], options.max_width)
        left_out = [str(columns[place].heading) for place in range(len(columns))
                    if place not in shown and self.columns[place].kind != "plot"]  # fmt: skip
        if left_out:
            names = ", ".join(dict.fromkeys(name.replace("\n", " ") for name in left_out))
            yield Text(f"columns left out for width: {names}; --json has all", style="dim")

    def _fitting_places(self, columns: Sequence[_TerminalColumn], width: int) -> list[int]:
        """The columns that have room, by their places."""
        shown = [place for place, one in enumerate(self.columns) if one.kind != "plot"]
        for place in self._places_to_drop([str(one.heading) for one in columns]):
            if _total_width([columns[one] for one in shown]) <= width:
                break
            if place in shown:
                shown.remove(place)
        return shown

    def _places_to_drop(self, names: Sequence[str]) -> list[int]:
        """The columns that may be left out, in their order."""
        kept = [names.index(name) for name in self.keep if name in names]
        numbers = (place for place, one in enumerate(self.columns) if place and one.kind == "n")
        kept = kept or [next(numbers, 1)]
        from_right = range(len(names) - 1, 0, -1)
        order = [place for name in self.drop for place in from_right if names[place] == name]
        order += [place for place in from_right if self.columns[place].kind == "i"]
        order += from_right
        return [*(one for one in dict.fromkeys(order) if one not in kept), *kept[:0:-1]]

    def _terminal_table(self, columns: Sequence[_TerminalColumn], width: int) -> TerminalTable:
        from rich.table import Table as TerminalTable  # noqa: PLC0415

        has_room = _total_width(columns) <= width
        named = any(one.heading for one in self.columns)
        table = TerminalTable(box=None, pad_edge=False, header_style="bold", show_header=named)
        for one in columns:
            table.add_column(
                one.heading,
                justify=_JUSTIFY.get(one.kind, "left"),
                style="dim" if one.kind == "i" else "",
                overflow="fold",
                min_width=one.wanted if has_room else None,
            )
        for cells in zip(*(one.cells for one in columns), strict=True):
            table.add_row(*cells)
        return table


def _card_label(column: Column) -> str:
    """A heading in one line, for a cell that stands alone; an axis says nothing there."""
    if column.kind == "plot":
        return ""
    heading = column.heading
    parts = heading if isinstance(heading, list | tuple) else getattr(heading, "content", [heading])
    return " ".join(filter(None, map(element_text, parts)))


_GAP = 2
_UNBROKEN = 24
"""A longer cell is a text, which is broken between words, whatever its column."""
_WIDTHS = {"": 16, "c": 16, "w": 30}
"""A column of texts has this width before others are left out for it."""


class _TerminalColumn:
    """A column's heading and cells as a terminal shows them, and how much room they need."""

    def __init__(self, column: Column, cells: Sequence[object], *, first: bool) -> None:
        self.heading = terminal_text(column.heading)
        self.kind = column.kind
        self.cells = [terminal_text(cell) for cell in cells]
        widest = max((line.cell_len for text in self.cells for line in text.split("\n")), default=1)
        # What a row is about is read in one line, where it is not long.
        may_break = column.wrap and not first
        limit = _WIDTHS.get(column.kind, _UNBROKEN) if may_break else _UNBROKEN
        self.wanted = max([min(widest, limit), *(word.cell_len for word in self.heading.split())])


def _total_width(columns: Sequence[_TerminalColumn]) -> int:
    return sum(one.wanted + _GAP for one in columns) - _GAP


def terminal_text(content: object, style: str = "") -> Text:
    """Elements and texts as a terminal shows them."""
    from rich.text import Text  # noqa: PLC0415

    if isinstance(content, Element):
        if content.tag == "br":
            return Text("\n")
        kind = _TERMINAL_STYLES.get(str(content.attributes.get("class_", content.tag)), style)
        return Text.assemble(*(terminal_text(part, kind) for part in content.content))
    if isinstance(content, Iterable) and not isinstance(content, str):
        return Text.assemble(*(terminal_text(part, style) for part in content))
    plain = "" if content is None else str(content)
    return Text(printable(plain), style=style)
