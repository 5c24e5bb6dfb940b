"""Tables in Markdown as the benchmarks print them: into CSV, and the share of a copy's bandwidth as a picture."""

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


def shares_of_copy(tables):
    """operation -> [(shape and implementation, share of a copy's bandwidth in percent)]."""
    groups = {}
    for rows in tables:
        for row in rows:
            share = row.get("of copy", "")
            if share.endswith("%") and row["operation"] != "copy":
                label = f"{row['shape']}, {row['implementation']}"
                groups.setdefault(row["operation"], []).append((label, float(share.rstrip(" %"))))
    return groups


def picture_of_shares(tables, title):
    """SVG, or None where no table has such shares."""
    groups = shares_of_copy(tables)
    return chart.bars(groups, title, "%", full=100.0) if groups else None
