"""``bnmc simulate``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bnmc
from bnmc.cli.commands import simulate
from bnmc.experiments.training.images import digits

SMALL = ("--width", "50", "--depth", "6", "--chains", "8", "--seed", "0", "--batch", "4")


Run = Callable[..., tuple[int, str, str]]


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
        assert document["compile_seconds"] >= 0

    def test_has_what_the_library_computes(self, run: Run) -> None:
        _, out, _ = run("simulate", *SMALL, "--json")
        document = json.loads(out)
        chain = bnmc.Chain(50, 4, "relu")
        star = bnmc.MeanField(chain).fixed_point().gram
        expected = bnmc.simulate(
            chain, 6, chains=8, initial=bnmc.FirstLayer(digits(4)), rng=0,
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

    def test_a_scale_that_is_lost_is_said(self, run: Run) -> None:
        """Of vanilla relu networks it halves in each layer: 2^-1022 is the least normal number."""
        deep = "--norm", "none", "--width", "200", "--batch", "2", "--chains", "4", "--seed", "0"
        status, out, _ = run("simulate", *deep, "--depth", "2500")
        assert status == 0
        (layer,) = re.findall(r"from layer (\d+) on, the Gram matrix is too small", out)
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
            assert "a path other than that of the store" in err
            assert not Path("z.zarr").exists()

    def test_a_place_that_cannot_be_written_to_is_refused_before_the_run(self, run: Run) -> None:
        for path in ("a" * 250 + ".npz", "/proc/run.npz"):
            status, out, err = run("simulate", *SMALL, "--output", path)
            assert (status, out) == (2, "")
            assert f"output: got '{path[:20]}" in err
            assert "that you may write to (" in err


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
    def test_no_column_where_it_is_not_known(self, run: Run, options: tuple[str, ...]) -> None:
        status, out, _ = run("simulate", *SMALL, *options)
        assert status == 0
        assert "G*: unknown (" in out
        assert "layer  orthogonality gap  smallest eigenvalue" in out
        _, out, _ = run("simulate", *SMALL, *options, "--json")
        assert json.loads(out)["table"][0]["distance"] is None

    @pytest.mark.parametrize(("activation", "is_unstable"), [("silu", True), ("relu", False)])
    def test_says_so_where_it_is_unstable(
        self, run: Run, activation: str, is_unstable: bool
    ) -> None:
        options = "--batch", "32", "--activation", activation, "--depth", "1", "--chains", "2"
        _, out, _ = run("simulate", *SMALL, *options)
        assert ("it is unstable, so networks may not converge to it" in out) == is_unstable
        _, out, _ = run("simulate", *SMALL, *options, "--json")
        assert json.loads(out)["star"]["stable"] is not is_unstable


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
        assert said["input"] == "handwritten digits"

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
        monkeypatch.setattr(simulate, "_MOST_BYTES", 1000)
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

    @pytest.mark.parametrize(("suffix", "magic"), [
        pytest.param("png", b"\x89PNG", marks=pytest.mark.slow), ("pdf", b"%PDF"),
    ])  # fmt: skip
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

    def test_an_error_of_ours_keeps_its_traceback(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(simulate, "_read_batch", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run("simulate")
