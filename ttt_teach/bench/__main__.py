"""Print the tables asked for, or all; a claim about speed is a ratio within one of them. Or measure on a GPU."""

import argparse
import importlib

from ttt_teach.bench import clock, device

TABLES = ("rules", "lact", "solvers", "budget", "sliders")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m ttt_teach.bench", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all if none is named")
    device.options(parser)
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.tables if name not in TABLES]:
        parser.error(f"{unknown[0]} is no table; expected {', '.join(TABLES)}")
    try:
        if device.wanted(asked):
            return device.run(asked)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    print("{date}, {device}, {cores} cores, Python {python}, jax {jax}".format(**clock.device()))
    for name in asked.tables or TABLES:
        rows = importlib.import_module(f"ttt_teach.bench.{name}").rows
        print(f"\n{rows.__doc__}\n")
        for row in rows():
            print(row, flush=True)


if __name__ == "__main__":
    main()
