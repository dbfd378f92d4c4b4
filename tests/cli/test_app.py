"""The command line: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bnmc
from bnmc import cli
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain import NORMS, WEIGHTS
from bnmc.cli import simulate

ROOT = Path(__file__).parents[2]
SMALL = ("--width", "50", "--depth", "6", "--chains", "8", "--seed", "0", "--batch", "4")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in an empty folder and return its status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(arguments)
        return status, *capsys.readouterr()

    return run


def listen() -> None:
    """Let a process be interrupted even if this one runs in the background and cannot be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "bnmc", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=listen if os.name == "posix" else None, **options,
    )  # fmt: skip


class TestTable:
    def test_is_plain_and_aligned(self, run: Run) -> None:
        status, out, err = run("simulate", *SMALL)
        assert (status, err) == (0, "")
        assert "\x1b" not in out
        assert not set(out) & set("│┃━─╭")
        assert all(line == line.rstrip() for line in out.splitlines())
        lines = out.splitlines()
        head = next(line for line in lines if line.startswith("layer"))
        rows = [line for line in lines if re.match(r" +\d+  ", line)]
        assert [int(row.split()[0]) for row in rows] == [0, 1, 2, 5, 6]
        for name in ("‖G − G*‖", "orthogonality gap", "smallest eigenvalue", "largest eigenvalue"):
            start = head.index(name)
            assert all(row[start - 1] == " " and row[start] != " " for row in rows)

    def test_says_how_to_repeat_the_run(self, run: Run) -> None:
        _, first, _ = run("simulate", *SMALL[:-4], "--batch", "4")
        seed = re.search(r"^seed (\d+), key (\d+), sampler conditional", first, re.MULTILINE)
        assert seed is not None
        _, again, _ = run("simulate", *SMALL, "--seed", seed[1], "--threads", "1")
        assert again.splitlines()[:10] == first.splitlines()[:10]
        assert f"key {seed[2]}," in again
        _, other, _ = run("simulate", *SMALL[:-4], "--batch", "4")
        assert f"seed {seed[1]}," not in other

    def test_shown_layers(self) -> None:
        def shown(layers: np.ndarray) -> list[int]:
            return [int(layers[row]) for row in simulate._shown(layers)]

        assert shown(np.arange(1)) == [0]
        assert shown(np.arange(101)) == [0, 1, 2, 5, 10, 20, 50, 100]
        assert shown(np.arange(1, 1001))[-2:] == [500, 1000]
        assert shown(np.arange(0, 50, 7)) == [0, 7, 21, 49]
        for last in (9, 137, 2000, 9999, 1_000_000):
            layers = np.arange(last + 1)
            assert len(simulate._shown(layers)) <= simulate.SHOWN_LAYERS
            assert shown(layers)[0] == 0
            assert shown(layers)[-1] == last

    @pytest.mark.parametrize(
        ("mean", "stderr", "text"),
        [
            (0.123456, 0.00123, "0.1235 ± 0.0012"),
            (12.3456, 0.456, "12.35 ± 0.46"),
            (1e-17, 2e-18, "1e-17 ± 2e-18"),
            (123456.0, 1200.0, "1.23e+05 ± 1e+03"),
            (0.25, None, "0.25"),
            (0.25, 0.0, "0.25"),
        ],
    )
    def test_number(self, mean: float, stderr: float | None, text: str) -> None:
        assert simulate._number(mean, stderr) == text


class TestJson:
    def test_is_one_document(self, run: Run) -> None:
        status, out, err = run("simulate", *SMALL, "--json", "--every", "2", "--dtype", "float32")
        assert (status, err) == (0, "")
        document = json.loads(out, parse_constant=lambda name: pytest.fail(name))
        assert document["seed"] == 0
        assert document["settings"]["width"] == 50
        assert document["settings"]["activation"] == "relu"
        assert document["input"]["features"] == 64
        assert document["input"]["samples"] == 4
        assert document["input"]["first_layer"] is True
        assert document["dtype"] == "float32"
        assert document["sampler"] == "conditional"
        assert document["star"]["b"] == pytest.approx(0.5)
        assert [row["layer"] for row in document["table"]] == [0, 2, 4, 6]
        assert document["seconds"] > 0

    def test_has_what_the_library_computes(self, run: Run) -> None:
        _, out, _ = run("simulate", *SMALL, "--json")
        document = json.loads(out)
        chain = bnmc.Chain(50, 4, "relu")
        star = bnmc.MeanField(chain).fixed_point().gram
        expected = bnmc.simulate(
            chain, 6, chains=8, initial=bnmc.FirstLayer(bnmc.experiments.digits.digits(4)), rng=0,
            observables=[bnmc.Distance(star), "eigenvalues", "orthogonality_gap"],
        )  # fmt: skip
        assert document["key"] == str(expected.key)
        last = document["table"][-1]
        spectrum = expected.eigenvalues[:, -1]
        for name, values in {
            "distance": expected.distance[:, -1],
            "orthogonality_gap": expected.orthogonality_gap[:, -1],
            "smallest_eigenvalue": spectrum[:, 0],
            "largest_eigenvalue": spectrum[:, 3],
        }.items():
            stderr = values.std(ddof=1) / np.sqrt(8)
            assert last[name] == pytest.approx({"mean": values.mean(), "stderr": stderr})

    def test_a_single_network_has_no_standard_error(self, run: Run) -> None:
        _, out, _ = run("simulate", *SMALL, "--json", "--chains", "1")
        assert json.loads(out)["table"][0]["distance"]["stderr"] is None
        status, out, err = run("simulate", *SMALL, "--chains", "1")
        assert (status, err) == (0, "")
        assert ": 1 network, " in out
        assert "±" not in out
        assert "nan" not in out
        assert simulate._number(0.25, np.nan) == "0.25"

    def test_a_scale_that_is_lost_is_said(self, run: Run) -> None:
        """Of vanilla relu networks it halves in each layer: 2^-1022 is the least normal number."""
        deep = "--norm", "none", "--width", "200", "--batch", "2", "--chains", "4", "--seed", "0"
        status, out, _ = run("simulate", *deep, "--depth", "2500")
        assert status == 0
        (layer,) = re.findall(r"from layer (\d+) on the Gram matrix is too small", out)
        assert 900 < int(layer) < 1200
        _, out, _ = run("simulate", *deep, "--depth", "500")
        assert "too small" not in out

    def test_the_output_may_not_be_the_store(self, run: Run) -> None:
        for output in ("z.zarr", "./z.zarr", "a/../z.zarr"):
            Path("a").mkdir(exist_ok=True)
            status, _, err = run(
                "simulate", *SMALL, "--store", "z.zarr", "--output", output, "--force"
            )
            assert status == 2
            assert "output: got" in err
            assert "another path than that of the store" in err
            assert not Path("z.zarr").exists()

    def test_results_are_shown_even_if_they_cannot_be_written(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, expected, _ = run("simulate", *SMALL)

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device", "run.npz")

        monkeypatch.setattr(np, "savez", full)
        monkeypatch.setattr(np, "savez_compressed", full)
        status, out, err = run("simulate", *SMALL, "--output", "run.npz")
        assert status == 2
        assert "run.npz: No space left on device" in err
        assert out.splitlines()[:8] == expected.splitlines()[:8]

    def test_a_place_that_cannot_be_written_to_is_refused_before_the_run(self, run: Run) -> None:
        for path in ("a" * 250 + ".npz", "/proc/run.npz"):
            status, out, err = run("simulate", *SMALL, "--output", path)
            assert (status, out) == (2, "")
            assert f"output: got '{path[:20]}" in err
            assert "that you may write to (" in err

    @pytest.mark.parametrize("option", ["--depth", "--chains", "--threads"])
    def test_a_demo_is_refused_before_any_work(self, run: Run, option: str) -> None:
        status, out, err = run("demo", option, "0")
        assert (status, out) == (2, "")
        assert f"{option[2:]}: got 0, allowed: an integer >= 1" in err


class TestStar:
    def test_vanilla_linear_keeps_the_input(self, run: Run) -> None:
        orthogonal = np.linalg.qr(np.random.default_rng(0).standard_normal((50, 3)))[0] * 50**0.5
        np.save("x.npy", orthogonal)
        _, out, _ = run(
            "simulate", *SMALL[:-2], "-i", "x.npy", "--norm", "none", "--activation", "linear",
            "--json",
        )  # fmt: skip
        document = json.loads(out)
        assert document["star"]["kind"] == "input"
        assert document["input"]["first_layer"] is False
        assert document["table"][0]["distance"]["mean"] < 1e-13
        assert document["table"][-1]["distance"]["mean"] > 0.1

    @pytest.mark.parametrize(
        "options",
        [
            ("--norm", "none"),
            ("--skip", "1"),
            ("--eps", "1e-5"),
            ("--norm", "none", "--activation", "linear", "--gain", "2"),
        ],
    )
    def test_dash_where_it_is_not_known(self, run: Run, options: tuple[str, ...]) -> None:
        status, out, _ = run("simulate", *SMALL, *options)
        assert status == 0
        assert "G*: not known (" in out
        rows = [line.split() for line in out.splitlines() if re.match(r" +\d+  ", line)]
        assert all(row[1] == "-" for row in rows)
        _, out, _ = run("simulate", *SMALL, *options, "--json")
        assert json.loads(out)["table"][0]["distance"] is None

    @pytest.mark.parametrize(("activation", "is_unstable"), [("silu", True), ("relu", False)])
    def test_says_so_where_it_is_unstable(self, activation: str, is_unstable: bool) -> None:
        star = simulate._star(bnmc.Chain(50, 32, activation), np.zeros((50, 32)))
        assert star.facts["stable"] is not is_unstable
        assert ("unstable" in star.note) == is_unstable


class TestInput:
    X = np.random.default_rng(1).standard_normal((50, 4))

    def test_width_many_features_are_layer_0(self, run: Run) -> None:
        np.savetxt("x.csv", self.X, delimiter=",", fmt="%.17g")
        np.savez("x.npz", noise=np.zeros(3), x=self.X.T)
        _, first, _ = run("simulate", *SMALL, "-i", "x.csv", "--json")
        _, second, _ = run(
            "simulate", *SMALL, "-i", "x.npz", "--array", "x", "--samples-first", "--json"
        )
        assert json.loads(first)["table"] == json.loads(second)["table"]
        assert json.loads(first)["input"]["first_layer"] is False
        assert json.loads(first)["table"][0]["distance"]["stderr"] == pytest.approx(0, abs=1e-15)
        _, wrapped, _ = run("simulate", *SMALL, "-i", "x.csv", "--first-layer", "--json")
        assert json.loads(wrapped)["table"][0]["distance"]["stderr"] > 0

    def test_batch_takes_the_first_samples(self, run: Run) -> None:
        np.save("four.npy", self.X)
        np.save("three.npy", self.X[:, :3])
        _, some, _ = run("simulate", *SMALL, "-i", "four.npy", "--batch", "3", "--json")
        _, all_, _ = run("simulate", *SMALL[:-2], "-i", "three.npy", "--json")
        assert json.loads(some)["table"] == json.loads(all_)["table"]


class TestOutput:
    def test_holds_all_layers(self, run: Run) -> None:
        status, out, _ = run("simulate", *SMALL, "-o", "run.npz", "--depth", "30")
        assert status == 0
        with np.load("run.npz") as stored:
            assert stored["gram"].shape == (8, 31, 4, 4)
            np.testing.assert_allclose(
                stored["distance"], bnmc.gram.distance(stored["gram"], stored["star"])
            )
            said = json.loads(str(stored["attributes"]))
        assert said["seed"] == 0
        assert f"key {said['key']}" in out
        assert said["input"] == "handwritten digits of scikit-learn"

    @pytest.mark.parametrize("suffix", ["nc", "zarr"])
    def test_other_formats(self, run: Run, suffix: str) -> None:
        import xarray as xr

        status, _, err = run("simulate", *SMALL, "-o", f"run.{suffix}")
        assert (status, err) == (0, "")
        engine: Any = "h5netcdf" if suffix == "nc" else "zarr"
        options = {} if suffix == "nc" else {"consolidated": False}
        with xr.open_dataset(f"run.{suffix}", engine=engine, **options) as stored:
            assert stored.gram.dims == ("chain", "layer", "sample_i", "sample_j")
            assert stored.attrs["seed"] == 0

    def test_large_ensembles_are_reduced(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        _, values, _ = run("simulate", *SMALL, "--json")
        monkeypatch.setattr(cli, "MOST_BYTES", 1000)
        status, out, _ = run("simulate", *SMALL, "--json", "-o", "run.npz", "--plot", "run.png")
        assert status == 0
        document = json.loads(out)
        assert "means and variances" in document["notes"][0]
        for first, second in zip(document["table"], json.loads(values)["table"], strict=True):
            assert first["distance"] == pytest.approx(second["distance"], rel=1e-9)
        with np.load("run.npz") as stored:
            assert stored["gram_mean"].shape == (7, 4, 4)

    def test_is_not_replaced_unless_forced(self, run: Run) -> None:
        Path("run.npz").write_text("precious")
        status, out, err = run("simulate", *SMALL, "-o", "run.npz")
        assert (status, out) == (2, "")
        assert "--force" in err
        assert Path("run.npz").read_text() == "precious"
        assert run("simulate", *SMALL, "-o", "run.npz", "--force")[0] == 0
        assert np.load("run.npz")["layer"].shape == (7,)

    @pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
    def test_plot(self, run: Run, suffix: str, magic: bytes) -> None:
        assert run("simulate", *SMALL, "--plot", f"run.{suffix}")[0] == 0
        assert Path(f"run.{suffix}").read_bytes().startswith(magic)
        assert run("simulate", *SMALL, "--plot", f"run.{suffix}")[0] == 2


BAD = {
    "width": ["--width", "0"],
    "width -1": ["--width", "-1"],
    "depth": ["--depth", "-1"],
    "chains": ["--chains", "0"],
    "batch": ["--batch", "0"],
    "batch too large": ["--batch", "100000"],
    "batch 1 with centring": ["--batch", "1"],
    "every": ["--every", "0"],
    "seed": ["--seed", "-1"],
    "threads": ["--threads", "0"],
    "eps": ["--eps", "-1"],
    "eps nan": ["--eps", "nan"],
    "skip inf": ["--skip", "inf"],
    "gain nan": ["--gain", "nan"],
    "gain 0": ["--gain", "0"],
    "activation": ["--activation", "rleu"],
    "norm": ["--norm", "batched"],
    "weights": ["--weights", "gausian"],
    "sampler": ["--sampler", "weight"],
    "sampler that is not valid": ["--sampler", "conditional", "--weights", "rademacher"],
    "dtype": ["--dtype", "float16"],
    "dtype unknown": ["--dtype", "real"],
    "too large": ["--chains", "100000", "--width", "1000000", "--sampler", "weights"],
    "no such option": ["--wdith", "3"],
    "no number": ["--width", "wide"],
    "no integer": ["--depth", "3.5"],
    "no value": ["--activation"],
    "extra argument": ["batch.npy"],
    "missing file": ["--input", "missing.npy"],
    "missing folder": ["--input", "missing/x.npy"],
    "folder": ["--input", "."],
    "input format": ["--input", "x.txt"],
    "array without input": ["--array", "x"],
    "samples first without input": ["--samples-first"],
    "output format": ["--output", "run.h5"],
    "output folder": ["--output", "missing/run.npz"],
    "plot format": ["--plot", "run.npz"],
    "plot folder": ["--plot", "missing/run.png"],
    "loses its variance in mid-run": ["--activation", "abs", "--batch", "2", "--chains", "9"],
}

NAMED = {
    "activation": "activation: got 'rleu'.*did you mean 'relu'",
    "weights": "did you mean 'gaussian'",
    "batch 1 with centring": "batch: got 1",
    "missing file": "^bnmc: error: missing.npy: No such file or directory$",
    "no such option": "--wdith",
    "no number": "--width",
    "seed": "seed: got -1",
    "loses its variance in mid-run": "chain 0, layer 1, row ",
}


class TestBadInput:
    def refuses(self, run: Run, *arguments: str) -> str:
        status, out, err = run("simulate", *SMALL, *arguments)
        assert (status, out) == (2, "")
        assert re.fullmatch(r"bnmc: error: [^\n]+\n", err)
        assert os.listdir() == [] or not {"run.npz", "run.png"} & {*os.listdir()}
        return err

    @pytest.mark.parametrize("kind", BAD)
    def test_options(self, run: Run, kind: str) -> None:
        assert re.search(NAMED.get(kind, ""), self.refuses(run, *BAD[kind]).strip())

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, run: Run, bad: float) -> None:
        x = np.ones((50, 4))
        x[3, 1] = bad
        np.save("x.npy", x)
        assert "(3, 1)" in self.refuses(run, "-i", "x.npy")

    @pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (0, 4), (4, 0)])
    def test_shapes(self, run: Run, shape: tuple[int, ...]) -> None:
        np.save("x.npy", np.ones(shape))
        assert "input: got " in self.refuses(run, "-i", "x.npy")

    def test_row_without_variance(self, run: Run) -> None:
        x = np.random.default_rng(0).standard_normal((50, 4))
        x[7] = 2.0
        np.save("x.npy", x)
        assert "row 7" in self.refuses(run, "-i", "x.npy")

    def test_equal_samples(self, run: Run) -> None:
        np.save("x.npy", np.ones((20, 4)))
        assert "zero variance" in self.refuses(run, "-i", "x.npy")

    def test_pickled_and_truncated(self, run: Run) -> None:
        np.save("pickled.npy", np.array([[{}]], dtype=object), allow_pickle=True)
        assert "pickled.npy" in self.refuses(run, "-i", "pickled.npy")
        np.save("x.npy", np.ones((50, 4)))
        Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-1])
        assert "cut.npy" in self.refuses(run, "-i", "cut.npy")

    def test_too_few_samples(self, run: Run) -> None:
        np.save("x.npy", np.ones((50, 3)))
        assert "batch: got 4" in self.refuses(run, "-i", "x.npy")

    def test_from_outside(self, tmp_path: Path) -> None:
        done = started("simulate", "--activation", "rleu", cwd=tmp_path)
        out, err = done.communicate(timeout=60)
        assert (done.returncode, out) == (2, "")
        assert err.count("\n") == 1
        assert err.startswith("bnmc: error: activation: got 'rleu'")

    def test_demo(self, run: Run) -> None:
        for arguments in (["--depth", "0"], ["--chains", "0"], ["--seed", "-1"], ["--plot", "x.q"]):
            status, _, err = run("demo", *arguments)
            assert status == 2
            assert re.fullmatch(r"bnmc: error: [^\n]+\n", err)

    def test_an_error_of_ours_keeps_its_traceback(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cli, "_read", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("simulate")


def _seconds_of_children() -> float:
    """Processor time of processes that have ended, which other work on the machine leaves alone."""
    spent = os.times()
    return spent.children_user + spent.children_system


class TestProcess:
    def test_help_comes_at_once(self) -> None:
        script = "import sys; from bnmc.cli import main; main(['simulate', '-h']); " \
            "assert not {'numpy', 'numba'} & set(sys.modules)"  # fmt: skip
        begun = _seconds_of_children()
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "--first-layer" in done.stdout
        assert _seconds_of_children() - begun < 1.0  # 0.15, of the processor

    def test_help_names_all_there_is(self, run: Run) -> None:
        _, out, _ = run("simulate", "--help")
        words = set(re.findall(r"[\w-]+", out))
        assert {*BUILTIN, *NORMS, *WEIGHTS} <= words

    @pytest.mark.parametrize("command", ["simulate", "demo"])
    def test_help_has_examples(self, run: Run, command: str) -> None:
        assert f"Example: bnmc {command}" in " ".join(run(command, "--help")[1].split())

    def test_features_that_are_not_the_width_are_pointed_out(
        self, run: Run, tmp_path: Path
    ) -> None:
        np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((12, 4)))
        arguments = ("simulate", "--depth", "1", "--chains", "2", "--input", f"{tmp_path}/x.npy")
        status, _, err = run(*arguments, "--width", "8")
        assert status == 0
        assert "12 features and layers are 8 wide" in err
        assert "--width 12" in err
        for quiet in (("--width", "12"), ("--width", "8", "--first-layer")):
            assert run(*arguments, *quiet)[2] == ""

    def test_version_and_no_command(self, run: Run) -> None:
        assert run("--version") == (0, f"bnmc {bnmc.__version__}\n", "")
        status, out, err = run()
        assert (status, err) == (0, "")
        assert "simulate" in out

    def test_without_typer(self) -> None:
        script = (
            "import sys; sys.modules['typer'] = None\n"
            "from bnmc.cli import main\nsys.exit(main(['demo']))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("bnmc: error: typer is not installed")
        assert "bnmc[cli]" in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("module", "options", "extra"),
        [
            ("matplotlib.figure", ("--plot", "x.png"), "plot"),
            ("h5netcdf", ("--output", "x.nc"), "xarray"),
            ("zarr", ("--output", "x.zarr"), "xarray"),
            ("sklearn.datasets", (), "demo"),
        ],
    )
    def test_missing_extras_are_named(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, module: str, options: Any, extra: str
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        status, out, err = run("simulate", *SMALL, *options)
        assert (status, out) == (2, "")
        assert f"bnmc[{extra}]" in err

    def test_interrupt(self, tmp_path: Path) -> None:
        process = started(
            "simulate", "--depth", "4000000", "--every", "100000", "--chains", "64", "--progress",
            "--output", "run.npz", cwd=tmp_path,
        )  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline().startswith("bnmc: layer ")  # it is at work
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130
        assert err.splitlines()[-1] == "bnmc: interrupted"
        assert "Traceback" not in err
        # What was finished is shown and written.
        assert "ended before its time, after layer" in out
        with np.load(tmp_path / "run.npz") as stored:
            assert 1 <= len(stored["layer"]) < 41
            assert len(stored["gram"][0]) == len(stored["layer"])
            assert np.isfinite(stored["gram"]).all()

    def test_reader_that_stops_reading(self, tmp_path: Path) -> None:
        process = started("simulate", *SMALL, cwd=tmp_path)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
        assert process.wait(timeout=60) == 1

    def test_encoding_that_lacks_the_symbols(self, tmp_path: Path) -> None:
        environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        process = started("simulate", *SMALL, cwd=tmp_path, env=environment)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert "orthogonality gap" in out

    @pytest.mark.skipif(os.name != "posix", reason="needs a pseudoterminal")
    def test_terminal_gets_lines_and_a_bar(self, tmp_path: Path) -> None:
        import pty

        master, terminal = pty.openpty()
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
        environment.pop("NO_COLOR", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "bnmc", "simulate", *SMALL, "--depth", "3000"],
            stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, env=environment,
        )  # fmt: skip
        os.close(terminal)
        printed = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # how Linux says that the other end was closed
                break
            if not chunk:
                break
            printed += chunk
        os.close(master)
        assert process.wait(timeout=60) == 0
        assert "┃".encode() in printed
        assert b"\x1b[1m" in printed
        assert b"layers" in printed

    def test_progress_elsewhere_is_in_lines(self, run: Run) -> None:
        status, _, err = run("simulate", *SMALL, "--progress")
        assert status == 0
        assert err.splitlines()[-1] == "bnmc: layer 6 of 6"
        assert "\x1b" not in err


class TestDemo:
    def test_tables_and_picture(self, run: Run) -> None:
        status, out, err = run("demo", "--depth", "20", "--chains", "10")
        assert (status, err) == (0, "")
        assert "\x1b" not in out
        assert Path("bnmc-demo.png").read_bytes().startswith(b"\x89PNG")
        rows = [line.split() for line in out.splitlines() if re.match(r" +\d+  ", line)]
        assert [int(row[0]) for row in rows] == [0, 1, 2, 5, 10, 20, 40, 1, 2, 5, 10, 20]
        relu_distance = [float(row[1]) for row in rows[:7]]
        assert relu_distance[-1] < 0.5 * relu_distance[0]
        normalised = [float(row[1]) for row in rows[7:]]
        vanilla = [float(row[4]) for row in rows[7:]]
        assert max(normalised) < 2 * min(normalised)
        assert vanilla == sorted(vanilla)
        assert vanilla[-1] > 3 * vanilla[0]
        assert float(rows[-1][-1]) == pytest.approx(np.exp(20 / 1000), abs=1e-3)

    def test_runs_again(self, run: Run) -> None:
        Path("picture.png").write_text("of the last time")
        status, *_ = run("demo", "--depth", "3", "--chains", "4", "--plot", "picture.png")
        assert status == 0
        assert Path("picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_readme(tmp_path: Path) -> None:
    """Its programs, one after the other, print what it shows."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\s+```text\n(.*?)```", readme, re.S)
    assert len(blocks) == readme.count("```python") == 4
    program = 'print("# next")\n'.join(code for code, _ in blocks)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("# next\n") == [shown for _, shown in blocks]
    for name in re.findall(r"\]\(((?!https:)[^)]+)\)", readme):
        assert (ROOT / name).exists()
