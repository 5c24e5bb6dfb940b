"""A program with each way in which OpenMP's threads may wait, alone and beside processes that compute without pause.

  .venv/bin/python benchmarks/run_beside_load.py [--runs 5] [--competitors 2] [--limit 120] -- PROGRAM ARGUMENTS

Variants take turns. Prints wall seconds: median, least, most; and the median of user seconds.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import subprocess
import time

VARIANTS = {"ours, by what is measured": {}, "active, OpenMP's default": {"GOMP_SPINCOUNT": "300000"},
            "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"}, "passive": {"OMP_WAIT_POLICY": "passive"}}
CHOICES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "D9D_CHOSE_SPINCOUNT")


def compute():
    while True:
        pass


def timed(command, environment, limit):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.monotonic()
    try:
        inherited = {name: value for name, value in os.environ.items() if name not in CHOICES}
        subprocess.run(command, env={**inherited, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       timeout=limit, check=True)
    except subprocess.TimeoutExpired:
        return limit, float("nan")
    return time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--competitors", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds, after which a run is stopped")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    print(f"cores {os.cpu_count()}, load before {os.getloadavg()[0]:.1f}")
    print("| beside | threads wait | wall s, median | least | most | user s |\n|---|---|---|---|---|---|", flush=True)
    for competitors in (0, options.competitors):
        load = [multiprocessing.Process(target=compute, daemon=True) for _ in range(competitors)]
        for process in load:
            process.start()
        results = {name: [] for name in VARIANTS}
        for _ in range(options.runs):
            for name, environment in VARIANTS.items():
                results[name].append(timed(options.command, environment, options.limit))
        for process in load:
            process.terminate()
        for name, runs in results.items():
            wall, user = zip(*runs, strict=True)
            print(f"| {competitors} | {name} | {statistics.median(wall):.1f} | {min(wall):.1f} | {max(wall):.1f} | "
                  f"{statistics.median(user):.1f} |", flush=True)


if __name__ == "__main__":
    main()
