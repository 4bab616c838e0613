"""bench/plot.py on a table made by hand: python3 plot_test.py"""

import os
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

PLOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "plot.py")
SHARED = ("kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_label,x_value,y_value_50,"
          "y_value_20,y_value_80,extra_benchmark_config_str,gpu_name,timestamp,liger_version")
OURS = ",gbytes_per_s,gflops_per_s,limit_ms,fraction_of_limit,limit_kind,shape,reason"


def row(backend="highway", x_name="BT", x="1024", y="2,1,3", mode="forward", metric="speed", dtype="f32", device="CPU 1T",
        reason="", op="softmax"):
    unit = "ms" if metric == "speed" else "MB"
    return (f'{op},{backend},{mode},{metric},{unit},{x_name},tokens,{x},{y},"{{""dtype"":""{dtype}"",""threads"":1}}",'
            f"{device},2026-01-02 03:04:05,0.1.0,1,NaN,0.5,0.25,stream_1r1w,,{reason}")


class Plot(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def draw(self, rows, *options, header=SHARED + OURS):
        """Exit status, and name to text of every picture."""
        table = os.path.join(self.folder.name, "table.csv")
        pictures = tempfile.mkdtemp(dir=self.folder.name)
        with open(table, "w") as file:
            file.write("\n".join([header] + rows) + "\n")
        run = subprocess.run([sys.executable, PLOT, table, "--out", pictures, *options], capture_output=True, text=True)
        texts = {}
        for name in os.listdir(pictures):
            with open(os.path.join(pictures, name)) as file:
                texts[name] = file.read()
            xml.dom.minidom.parseString(texts[name])
        return run.returncode, texts

    def test_a_picture_an_operator_and_sweep(self):
        rows = [row(), row(x="2048"), row(x_name="model_config", x="llama_2_7b"), row(x_name="shape", x="8x64"),
                row(op="rope", x_name="T")]
        status, pictures = self.draw(rows)
        self.assertEqual(status, 0)
        self.assertEqual(sorted(pictures), ["rope_token_length.svg", "softmax.svg", "softmax_model_config.svg",
                                            "softmax_token_length.svg"])

    def test_backends_stand_side_by_side_with_their_spread(self):
        rows = [row(b, x=x, y=y) for x in ("1024", "2048") for b, y in (("eigen", "4,3.5,5"), ("highway", "2,1,3"))]
        for x_name, name in (("BT", "softmax_token_length.svg"), ("model_config", "softmax_model_config.svg")):
            _, pictures = self.draw([r.replace(",BT,", f",{x_name},") for r in rows])
            picture = pictures[name]
            self.assertIn(">eigen<", picture)
            self.assertIn(">highway<", picture)
            self.assertEqual(picture.count("<circle"), 4)
        _, pictures = self.draw(rows)
        picture = pictures["softmax_token_length.svg"]
        self.assertIn("eigen 1024: 4 ms, 3.5 to 5", picture)
        # Equal medians at one x: the marks are apart.
        _, pictures = self.draw([row("eigen"), row("highway")])
        circles = [c.split('"')[1] for c in pictures["softmax_token_length.svg"].split("<circle cx=")[1:]]
        self.assertEqual(len(set(circles)), 2)

    def test_slower_is_higher_and_more_tokens_lie_to_the_right(self):
        _, pictures = self.draw([row(x="1024", y="1,1,1"), row(x="4096", y="8,8,8")])
        parts = pictures["softmax_token_length.svg"].split("<circle ")[1:]
        (x0, y0), (x1, y1) = ([float(p.split(f'{c}="')[1].split('"')[0]) for c in ("cx", "cy")] for p in parts)
        self.assertLess(x0, x1)
        self.assertGreater(y0, y1)  # SVG counts downwards

    def test_what_was_not_measured_says_why(self):
        for x_name in ("BT", "shape"):
            rows = [row(x_name=x_name), row("eigen", x_name=x_name, y="NaN,NaN,NaN", reason="too much <memory>")]
            _, pictures = self.draw(rows)
            (picture,) = pictures.values()
            self.assertIn("not measured: too much &lt;memory&gt;", picture)
        status, _ = self.draw([row(y="NaN,NaN,NaN", reason="nothing at all")])
        self.assertEqual(status, 0)

    def test_rows_are_chosen(self):
        rows = [row(), row(mode="backward"), row(dtype="bf16"), row(metric="memory", y="7,7,7"), row(op="rope"),
                row(x_name="shape", x="8x64"), row(device="old CPU 1T").replace("2026", "2025")]
        self.assertEqual(set(self.draw(rows, "--op", "rope")[1]), {"rope_token_length.svg"})
        self.assertEqual(set(self.draw(rows, "--sweep", "shape")[1]), {"softmax.svg"})
        self.assertIn("softmax_memory_token_length.svg", self.draw(rows, "--metric", "memory")[1])
        count = lambda *options: self.draw(rows, "--op", "softmax", "--sweep", "token_length", *options)[1][
            "softmax_token_length.svg"].count("<circle")
        self.assertEqual(count(), 3)
        self.assertEqual(count("--mode", "backward"), 1)
        self.assertEqual(count("--config", "dtype=bf16"), 1)
        self.assertEqual(count("--config", "bf16"), 1)
        self.assertEqual(count("--device", "old"), 1)
        self.assertEqual(self.draw(rows, "--op", "nothing")[0], 2)

    def test_reads_a_table_of_the_fifteen_columns_alone(self):
        short = ",".join(row().split(",")[:-7])
        status, pictures = self.draw([short], header=SHARED)
        self.assertEqual((status, len(pictures)), (0, 1))

    def test_refuses_what_is_no_table(self):
        self.assertEqual(self.draw(["1,2,3"], header="a,b,c")[0], 2)


if __name__ == "__main__":
    unittest.main()
