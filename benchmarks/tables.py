"""Tables in Markdown as the benchmarks print them: into CSV, and shares of a copy's bandwidth or FLOP/s as a picture.

    benchmarks/tables.py benchmarks/results/RESULT.md...      writes RESULT.csv and RESULT.svg beside each
"""

import csv
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import chart  # noqa: E402: found by the line above

SPREAD = re.compile(r"^([\d.,]+) \(([\d.,]+)(?: to |\.\.)([\d.,]+)\)$")  # 30.4 (30.2 to 30.5)


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables_of(text):
    """Lists of rows, dictionaries by the names of columns."""
    tables, header, rows = [], None, []
    for line in [*text.splitlines(), ""]:
        if not line.startswith("|"):
            if rows:
                tables.append(rows)
            header, rows = None, []
        elif header is None:
            header = cells(line)
        elif not re.fullmatch(r"[|\s:-]+", line):
            rows.append(dict(zip(header, cells(line), strict=True)))
    return tables


def plain(row):
    """A cell of a median and its spread as three."""
    result = {}
    for name, cell in row.items():
        spread = SPREAD.match(cell)
        if not spread:
            result[name] = cell
            continue
        name = re.sub(r" \(.*\)", "", name)
        for suffix, value in zip(("", " p10", " p90"), spread.groups()):
            result[name + suffix] = value.replace(",", "")
    return result


def write_csv(tables, path):
    """One file; a table that has other columns than the one before it begins with its header."""
    with open(path, "w", newline="") as file:
        before = None
        for rows in tables:
            for row in map(plain, rows):
                if list(row) != before:
                    before = list(row)
                    csv.writer(file).writerow(before)
                csv.writer(file).writerow(row.values())


def rates(tables, column):
    """operation -> [(shape and implementation, number)] of the rows that have one, the same shapes side by side. These three
    are the first columns, whatever they are called."""
    groups = {}
    for rows in tables:
        for row in rows:
            number = row.get(column, "").rstrip(" %")
            if not number or next(iter(row.values())) == "copy":
                continue
            operation, shape, implementation = list(row.values())[:3]
            groups.setdefault(operation, {}).setdefault(shape, []).append((implementation, float(number)))
    return {operation: [(f"{shape}, {implementation}", number) for shape, found in shapes.items() for implementation, number in found]
            for operation, shapes in groups.items()}


def picture(tables, name):
    """SVG of shares of a copy's bandwidth, else of FLOP/s; None where no table has either."""
    shares = rates(tables, "of copy")
    if shares:
        return chart.bars(shares, f"{name}: share of a copy's bandwidth", "%", full=100.0)
    flops = rates(tables, "TFLOP/s")
    return chart.bars(flops, f"{name}: TFLOP/s", "TFLOP/s") if flops else None


def main():
    for path in map(Path, sys.argv[1:]):
        found = tables_of(path.read_text())
        drawn = picture(found, path.stem)
        if not drawn:
            sys.exit(f"tables.py: expected a table with the column 'of copy' or 'TFLOP/s' in {path}, got none")
        write_csv(found, path.with_suffix(".csv"))
        path.with_suffix(".svg").write_text(drawn)


if __name__ == "__main__":
    main()
