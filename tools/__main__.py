"""`python3 -m tools <command>`; see `commands`."""

import sys

OLDEST = (3, 10)


def main() -> int:
    """Refuse an old Python in a sentence; everything newer than its syntax is imported only after that."""
    if sys.version_info < OLDEST:
        text = "Headroom needs Python {}.{} or newer and this is {}.{}: run it with a newer one.\n"
        sys.stderr.write(text.format(*(OLDEST + sys.version_info[:2])))
        return 2
    from .commands import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
