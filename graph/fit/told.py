"""Lines about a workflow that was made to fit, with what they are made of."""

from __future__ import annotations

from ..kinds import TITLES


class Told(str):
    """A line for people in English that knows what it says, for whoever says it in another language.

    Attributes:
        code: which sentence it is.
        values: what stands in it, by names.
    """

    code: str
    values: dict[str, str]

    def __new__(cls, line: str, code: str, **values: str) -> Told:
        """The line, its code and its values."""
        told = super().__new__(cls, line)
        told.code, told.values = code, values
        return told

    @property
    def parts(self) -> dict[str, object]:
        """Code and values, as JSON takes them."""
        return {"code": self.code, "values": self.values}


def added(**values: str) -> Told:
    """Which node was added for which: ``node``, ``kind``, ``other``, ``other_kind``, ``subgraph`` (empty: none)."""
    line = f"node {values['node']}, {TITLES[values['kind']]}, for node {values['other']} ({values['other_kind']})"
    return Told(line + _place(values["subgraph"]), "added", **values)


def left_alone(code: str, why: str, **values: str) -> Told:
    """Which node was left alone, and why: ``node``, ``kind``, ``subgraph`` (empty: none), and what ``why`` names."""
    place = _place(values["subgraph"])
    return Told(f"node {values['node']} ({values['kind']}){place} is left alone: {why}", code, **values)


def _place(subgraph: str) -> str:
    return f" in subgraph {subgraph}" if subgraph else ""
