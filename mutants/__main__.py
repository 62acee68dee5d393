"""Run the gate: `python -m mutants [--part PART] [--name TEXT]`."""

from __future__ import annotations

import argparse
import sys

from faults.commits import last_change
from mutants.catalogue import MUTANTS
from mutants.gate import Alive, Killed, complaints, judge
from mutants.results import PAGE, Result, load, save
from mutants.sound import unsound
from mutants.tree import ROOT, copied


def main() -> int:
    """1 if any of them is alive or broken, or if the tests fail where nothing is broken."""
    parts = sorted({mutant.part for mutant in MUTANTS})
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--part", choices=parts, help="only these")
    parser.add_argument("--name", default="", help="only those whose name contains this")
    parser.add_argument(
        "--old", action="store_true", help="only those that ran on another version of the product"
    )
    parser.add_argument("--list", action="store_true", help="only say which there are")
    given = parser.parse_args()
    results, commit = load(), last_change()
    chosen = [
        each
        for each in MUTANTS
        if given.part in (None, each.part)
        and given.name.lower() in each.name.lower()
        and not (given.old and each.name in results and results[each.name].commit == commit)
    ]
    if given.list:
        for mutant in chosen:
            print(f"{mutant.part:10}  {mutant.name}: {mutant.why}")
        return 0
    if not chosen:
        print("none of them is old" if given.old else "there is no such mutant", file=sys.stderr)
        return 0 if given.old else 2
    with copied() as copy:
        if broken := unsound(copy, chosen):
            for name, what in broken.items():
                print(f"BROKEN  {name}: it cannot run, so any test would fail ({what})", file=sys.stderr)
            return 1
        print(f"without a mutant: the tests of {len(chosen)}", flush=True)
        if wrong := complaints(copy, chosen):
            print("\n".join(wrong), file=sys.stderr)
            return 1
        alive = []
        for mutant in chosen:
            match judge(copy, mutant):
                case Killed(by, hung, seconds):
                    how = "hung" if hung else "killed"
                    print(f"{how:6}  {seconds:5.1f} s  {mutant.part:10}  {mutant.name}  ({by})", flush=True)
                    results[mutant.name] = Result(
                        digest=mutant.digest, by=by, hung=hung, seconds=round(seconds, 1), commit=commit
                    )
                    save(results, MUTANTS)
                case Alive(why, seconds):
                    print(f"ALIVE   {seconds:5.1f} s  {mutant.part:10}  {mutant.name}\n{why}", flush=True)
                    alive.append(mutant.name)
                    # What an earlier run said holds no longer: without a result the page and `make test` fail.
                    results.pop(mutant.name, None)
                    save(results, MUTANTS)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} killed")
    if not alive:
        missing = len(MUTANTS) - len(load())
        print(
            f"{PAGE.relative_to(ROOT)} is written" if not missing else f"{missing} others have no result yet"
        )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
