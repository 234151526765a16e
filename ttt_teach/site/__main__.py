"""``python -m ttt_teach.site build OUT [NAME ...]`` and ``python -m ttt_teach.site figures [NAME ...]``."""

import argparse
import sys
from pathlib import Path

from . import SiteError, build, figures


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ttt_teach.site", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="execute notebooks and write the static site of all")
    building.add_argument("out", type=Path, help="a new or empty folder, or an earlier site")
    drawing = commands.add_parser("figures", help="execute notebooks, write their twins and figures")
    for command in (building, drawing):
        command.add_argument("names", nargs="*", metavar="NAME", help="such as 02-correlated-keys (default: all)")
    asked = parser.parse_args(arguments)
    try:
        build(asked.out, *asked.names) if asked.command == "build" else figures(*asked.names)
    except SiteError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
