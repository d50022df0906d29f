"""What a command says while somebody waits for it."""

import io
import sys
import time

import pytest

from headroom.cli import waiting
from headroom.cli.waiting import CLEARED, waiting_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_says_what_for_at_once_and_how_long_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(waiting, "EVERY", 0.05)
    with waiting_for("importing ComfyUI"):
        time.sleep(1.2)
    told = terminal.getvalue().split(CLEARED)
    assert told[1] == "importing ComfyUI · 0 s"
    assert told[-2] == "importing ComfyUI · 1 s"
    assert told[-1] == ""


def test_it_goes_away_before_an_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(ValueError, match="no workflow"), waiting_for("reading"):
        raise ValueError("no workflow")
    assert terminal.getvalue().endswith(CLEARED)


def test_where_no_terminal_is_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that reads the error output gets errors alone."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with waiting_for("importing ComfyUI"):
        pass
    assert stream.getvalue() == ""
