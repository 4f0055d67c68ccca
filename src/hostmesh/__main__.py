"""`python -m hostmesh`: commands about data and saved steps; without one, what there is."""

from __future__ import annotations

import sys

USAGE = """\
usage: python -m hostmesh COMMAND

  look SPEC          see the data: fields, shapes, ranges, rows, pictures, speed
                     python -m hostmesh look digits:train
                     python -m hostmesh look --help
  checkpoint FOLDER  which data the saved steps were trained on, and how much of it
                     python -m hostmesh checkpoint saved

The launcher is a command of its own: launch --help, or python -m hostmesh.launcher --help."""


def main(argv: list[str]) -> int:
    if argv[:1] == ["look"]:
        from hostmesh.worker.looking.command import main as look

        return look(argv[1:])
    if argv[:1] == ["checkpoint"]:
        from hostmesh.worker.looking.checkpoint import main as show_checkpoint

        return show_checkpoint(argv[1:])
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    print(
        f"hostmesh: unknown command {argv[0]}, wanted look or checkpoint; the launcher is launch, not this",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
