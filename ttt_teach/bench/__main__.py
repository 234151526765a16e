"""Print the tables asked for, or all; a claim about speed is a ratio within one of them."""

import argparse

from ttt_teach.bench import budget, lact, rules, sliders, solvers
from ttt_teach.bench.clock import device

TABLES = {
    "rules": rules.rows,
    "lact": lact.rows,
    "solvers": solvers.rows,
    "budget": budget.rows,
    "sliders": sliders.rows,
}


def main(names=None):
    parser = argparse.ArgumentParser(prog="python -m ttt_teach.bench", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; all if none is named")
    wanted = parser.parse_args(names).tables
    if unknown := [name for name in wanted if name not in TABLES]:
        parser.error(f"{unknown[0]} is no table; expected {', '.join(TABLES)}")
    print("{date}, {device}, {cores} cores, Python {python}, jax {jax}".format(**device()))
    for name in wanted or TABLES:
        print(f"\n{TABLES[name].__doc__}\n")
        for row in TABLES[name]():
            print(row, flush=True)


if __name__ == "__main__":
    main()
