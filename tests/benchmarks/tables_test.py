"""Tests how benchmarks/tables.py reads the tables that benchmarks print."""

import csv
import importlib.machinery
import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import tables  # noqa: E402: found by the line above

TEXT = """some words

| operation | shape | implementation | us (p10 to p90) | of copy |
|---|---|---|---|---|
| copy | 1 GiB | ATen | 507.3 (507.1 to 507.6) | 100.6 % |
| silu forward | 8 x 3 | ours | 1,030.4 (30.2 to 30.5) | 81.9 % |
| silu forward | 8 x 3 | ATen | 64.9 (64.7 to 65.2) | 38.4 % |

| row | step ms (p10..p90) |
|---|---|
| alone | 188.0 (185.5..193.7) |
"""


def tables_in(path):
    """What tables.write_csv wrote: a row that names microseconds begins a table of other columns."""
    found = []
    with path.open(newline="") as file:
        for row in csv.reader(file):
            if "us" in row:
                columns = row
                found.append([])
            else:
                found[-1].append(dict(zip(columns, row)))
    return found


class Tables(unittest.TestCase):
    def test_every_table_is_found(self):
        first, second = tables.tables_of(TEXT)
        self.assertEqual([len(first), len(second)], [3, 1])
        self.assertEqual(first[1]["implementation"], "ours")

    def test_a_row_with_too_few_cells_is_an_error(self):
        with self.assertRaises(ValueError):
            tables.tables_of("| a | b |\n|---|---|\n| 1 |\n")

    def test_spreads_become_columns(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.csv"
            tables.write_csv(tables.tables_of(TEXT), path)
            lines = path.read_text().splitlines()
        self.assertEqual(lines[0], "operation,shape,implementation,us,us p10,us p90,of copy")
        self.assertEqual(lines[2], "silu forward,8 x 3,ours,1030.4,30.2,30.5,81.9 %")
        self.assertEqual(lines[4:], ["row,step ms,step ms p10,step ms p90", "alone,188.0,185.5,193.7"])

    def test_shares_leave_the_copy_out(self):
        self.assertEqual(tables.rates(tables.tables_of(TEXT), "of copy"),
                         {"silu forward": [("8 x 3, ours", 81.9), ("8 x 3, ATen", 38.4)]})
        self.assertIsNone(tables.picture(tables.tables_of(TEXT)[1:], "none"))
        self.assertIn("81.9 %", tables.picture(tables.tables_of(TEXT), "shares"))

    def test_the_first_three_columns_may_have_other_names(self):
        found = tables.tables_of("| product | experts | by | us | TFLOP/s |\n|---|---|---|---|---|\n| forward | E8 | ours | 3 | 7 |\n")
        self.assertEqual(tables.rates(found, "TFLOP/s"), {"forward": [("E8, ours", 7.0)]})

    def test_pictures_of_results_are_those_of_their_tables(self):
        for page in sorted((BENCHMARKS / "results").glob("*.md")):
            if page.with_suffix(".csv").exists():
                drawn = tables.picture(tables.tables_of(page.read_text()), page.stem)
                self.assertEqual(drawn, page.with_suffix(".svg").read_text(), page.name)

    def test_pictures_in_folders_of_results_are_those_of_the_tables_beside_them(self):
        pictures = sorted((BENCHMARKS / "results").glob("*/*.svg"))
        self.assertTrue(pictures)
        for picture in pictures:
            drawn = tables.picture(tables_in(picture.with_suffix(".csv")), picture.stem)
            self.assertEqual(drawn, picture.read_text(), picture.name)

    def test_rows_of_a_peer_stand_beside_ours_of_the_same_shape(self):
        head = "| operation | shape | implementation | TFLOP/s |\n|---|---|---|---|\n"
        text = head + "| mm | a | ours | 7 |\n| mm | b | ours | 5 |\n\n" + head + "| mm | a | compiled | 6 |\n| copy | a | x | |\n"
        self.assertEqual(tables.rates(tables.tables_of(text), "TFLOP/s"),
                         {"mm": [("a, ours", 7.0), ("a, compiled", 6.0), ("b, ours", 5.0)]})
        self.assertIn("6 TFLOP/s", tables.picture(tables.tables_of(text), "products"))


class Run(unittest.TestCase):
    def test_every_benchmark_of_operators_is_in_the_list(self):
        loader = importlib.machinery.SourceFileLoader("run", str(BENCHMARKS / "run"))
        run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
        loader.exec_module(run)
        names = {table.name for table in run.TABLES}
        for area in ("kernels", "optim"):
            files = {f"{area}_{path.stem.removesuffix('_device')}" for path in (BENCHMARKS / area).glob("*.cpp")}
            self.assertEqual({name for name in names if name.startswith(f"{area}_")}, files)


if __name__ == "__main__":
    unittest.main()
