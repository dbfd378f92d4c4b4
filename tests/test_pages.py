"""The tables and pictures of the README and the pages have the numbers of today's code."""

import ast
import inspect
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import bnmc
from bnmc import cli, experiments
from bnmc.experiments.registry import function_of
from bnmc.torch.result import _HEADS as HEADS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
IMAGES = DOCS / "images"
#: Scripts beside those that draw numbers: a module, and one that writes an SVG file.
OTHERS = {"saving", "logo"}
#: Pictures of the mean field, and of kernels that most tests compile.
QUICK = {"pytorch", "start"}

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not here")


def text_of(path):
    return path.read_text(encoding="utf-8")


def number(text):
    return float(text.replace("−", "-"))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])
        for path in sorted(IMAGES.glob("*.py"))
        if path.stem not in OTHERS
    ],
)
def test_pictures_have_the_numbers_of_today(script, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(IMAGES))
    from saving import saved

    shown = saved(script.with_suffix(".png"))
    numbers = runpy.run_path(str(script))["numbers"]()
    assert numbers.keys() == shown.keys()
    for name, values in numbers.items():
        # Numbers are saved to 7 digits; on other processors they agree up to rounding.
        np.testing.assert_allclose(shown[name], np.ravel(values), rtol=1e-5, atol=1e-9)


def test_the_logo_is_drawn_by_its_script():
    svg = runpy.run_path(str(IMAGES / "logo.py"))["svg"]()
    assert text_of(IMAGES / "logo.svg") == svg


def test_pictures_of_the_pages_are_small_and_have_a_program_that_draws_them():
    pictures = [path for path in IMAGES.iterdir() if path.suffix in (".png", ".svg")]
    assert pictures
    for path in pictures:
        assert path.stat().st_size < 62_000, path.name
        assert path.suffix == ".svg" or path.with_suffix(".py").exists(), path.name


FIGURES = IMAGES / "figures"
#: Experiments whose tables contain speeds of a machine.
MEASURED = {"scale"}
#: Ends of an interval of a table.
INTERVAL = re.compile(r"\[([^],]+), ([^],]+)\]")
#: A number of a table.
PRINTED = re.compile(r"[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def test_each_experiment_has_a_kept_picture_and_table():
    names = set(experiments.names())
    assert {path.stem for path in FIGURES.glob("*.txt")} == names
    assert {path.stem for path in FIGURES.glob("*.png")} == names
    for name in names:
        assert 1_000 < (FIGURES / f"{name}.png").stat().st_size < 62_000, name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in experiments.names() if name not in MEASURED])
def test_kept_tables_are_those_of_today(name):
    """The same words, and the same numbers up to rounding, which differs between processors."""
    for importable in ("xarray", "matplotlib"):
        pytest.importorskip(importable)
    shown, figure = text_of(FIGURES / f"{name}.txt"), experiments.run(name)
    printed = f"{figure.text(len(figure.table.rows), len(figure.findings))}\n"
    if {"data", "adam"} & {*inspect.signature(function_of(name)).parameters}:  # they train
        require_same_intervals(printed, shown)
        return
    assert PRINTED.sub("", printed).split() == PRINTED.sub("", shown).split()
    for ours, theirs in zip(PRINTED.findall(printed), PRINTED.findall(shown), strict=True):
        difference = abs(number(ours) - number(theirs))
        assert difference <= 1.01 * max(last_digit(ours), last_digit(theirs)), (ours, theirs)


def require_same_intervals(printed, shown):
    """Require that the intervals of two tables overlap: training multiplies rounding errors."""
    heads, theirs = (re.split(r"\s{2,}", text.splitlines()[2]) for text in (printed, shown))
    assert heads == theirs
    compared = 0
    for lines in zip(printed.splitlines(), shown.splitlines(), strict=True):
        ours, theirs = (INTERVAL.findall(line) for line in lines)
        for first, second in zip(ours, theirs, strict=False):  # a network may have diverged
            assert float(first[0]) <= float(second[1]), lines
            assert float(second[0]) <= float(first[1]), lines
            compared += 1
    assert compared > 3


def last_digit(text):
    """Return the unit of the last printed digit; of an error of rounding, its bound 1e-10."""
    digits, _, exponent = text.partition("e")
    return max(1e-10, 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2])))


# ---------------------------------------------------------------- numbers of kept tables

PAGES = sorted(DOCS.glob("*.rst"))
#: A role of `kept_tables.py` or `bench_tables.py` in `docs/_extensions`, with its words.
ROLE = re.compile(r":(cell|finding|number|test|bench|machine):`([^`]+)`")
#: A typed number with a decimal point; no name of a paper.
TYPED = re.compile(r"(?<![\w.:/{])\d*\.\d+(?!\d*(?:\.\d|\}))")


@pytest.fixture(scope="module")
def extensions():
    """Return the modules with the roles: of tables of experiments, and of benchmarks."""
    pytest.importorskip("docutils")
    sys.path.insert(0, str(DOCS / "_extensions"))
    try:
        import bench_tables
        import kept_tables
    finally:
        sys.path.remove(str(DOCS / "_extensions"))
    return kept_tables, bench_tables


@pytest.fixture(scope="module")
def kept_tables(extensions):
    return extensions[0]


def roles():
    """Return each role of the pages with its words, without line breaks."""
    return [
        (page, kind, " ".join(words.split()))
        for page in PAGES
        for kind, words in ROLE.findall(text_of(page))
    ]


def test_numbers_of_pages_are_in_the_kept_tables(extensions):
    shown = [(kind, words) for _, kind, words in roles() if kind != "test"]
    assert len(shown) > 50
    functions = extensions[0].ROLES | extensions[1].ROLES
    for kind, words in shown:
        assert functions[kind]([word.strip() for word in words.split(";")])


def test_numbers_of_benchmarks(extensions):
    digits, cell = extensions[1].digits, extensions[1].cell
    assert list(map(digits, (0.00270, 609.6, 1117.2, 3398.0, 23_000_000.0))) == [
        "0.0027", "610", "1120", "3400", "23\u202f000\u202f000",
    ]  # fmt: skip
    words = ["2026-11-21-mean_field", "Mean field", "fixed point, n = 10", "ms"]
    assert cell(words) == "11.6"
    assert cell([*words[:2], f"{words[2]} / {words[2]}", "ms"]) == "1"
    for wrong in (["Mean field", "fixed point", "ms"], ["", words[2], "s"]):
        with pytest.raises(LookupError):
            cell([words[0], *wrong])


def test_kept_tables_are_read(kept_tables):
    heads, rows, sentences = kept_tables.kept("orthogonalizes-6")
    assert heads == ["activation", "width", "L", "in theory", "networks"]
    assert rows[-1][:2] + rows[-1][3:] == ["sigmoid(x/2)", "256", "", "64"]  # an empty cell
    assert sentences[0].startswith("linear: L falls")
    shown = kept_tables.cell(["rank-collapse-2", "relu", "vanilla", "gaussian", "4096", "r"])
    assert shown == "1 [1, 1]"
    assert kept_tables.rounded("-0.51234 [-5e-07, 123456]") == "−0.512 [−5e-07, 1.23e+05]"
    for words in (
        ["orthogonalizes-6", "relu", "17", "L"], ["orthogonalizes-6", "relu", "L"],
        ["orthogonalizes-6", "relu", "16", "M"],
    ):  # fmt: skip
        with pytest.raises(LookupError):
            kept_tables.cell(words)
    for function, words in ((kept_tables.finding, "relu"), (kept_tables.number, "no such words")):
        assert function(["orthogonalizes-6", "relu: L falls with a slope of"])
        with pytest.raises(LookupError):
            function(["orthogonalizes-6", words if function is kept_tables.number else "no"])


def test_tests_that_pages_name_exist():
    named = [(page.name, words) for page, kind, words in roles() if kind == "test"]
    assert len(named) > 30
    functions = {}
    for page, words in named:
        file, _, name = words.partition("::")
        if file not in functions:
            nodes = ast.walk(ast.parse(text_of(ROOT / "tests" / file)))
            functions[file] = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert name in functions[file], (page, words)
        assert name.startswith("test_"), (page, words)


def rows_of_lists(page):
    """Return each row of the list tables of a page as its cells."""
    parts = re.findall(r"^   \* - (.*\n(?:     .*\n)*)", text_of(page), re.M)
    return [re.split(r"^     - ", row, flags=re.M) for row in parts]


#: Pages with typed numbers, and what they are or what holds them.
TYPED_ELSEWHERE = {
    "papers_code": "tests/experiments/test_authors.py",
    "practitioners": "its table has a test here; pytorch.json has the measurements",
    "testing": "numbers of `pytest bench`",
    "estimators": "run times",
    "reading": "examples of output",
    "torch": "thresholds of verdicts",
    "verdict": "thresholds; tests/torch/test_outlook.py has the counts",
    "cluster": "versions", "embedding": "versions", "installation": "versions",
}  # fmt: skip
#: A doctest, or a command with its output.
CODE = re.compile(r"^ *(?:>>> |\$ bnmc )(?:.|\n)*?(?=\n\n *[^ >]|\Z)", re.M)
#: Formulas, code in a line, links and names of papers.
QUOTED = re.compile(r":math:`[^`]*`|``[^`]*``|`[^`]*<[^>]*>`_*|arXiv:?\s*\d{4}\.\d{5}")


def typed_numbers(page):
    """Return the typed numbers of a page that no doctest prints and no row with a test contains."""
    text = text_of(page)
    printed = "\n".join(re.findall(r"^ *>>> (?:.|\n)*?(?=\n\n|\Z)", text, re.M))
    for row in rows_of_lists(page):
        if ":test:`" in row[-1]:
            text = text.replace("     - ".join(row), "")
    prose = ROLE.sub("", QUOTED.sub("", CODE.sub("", text)))
    return [number for number in TYPED.findall(prose) if number not in printed]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_typed_numbers_have_a_test(page):
    """A number of a page is in a kept table, in a doctest, or in a row that names a test."""
    assert bool(typed_numbers(page)) == (page.stem in TYPED_ELSEWHERE), typed_numbers(page)


def test_rows_of_the_results_name_a_figure_or_a_test():
    tables = [row for row in rows_of_lists(DOCS / "results.rst") if len(row) == 4]
    assert len(tables) > 60
    for _, status, _, where in tables:
        figures = re.findall(r"``figure ([\w-]+)``", where)
        assert status.strip() in ("status", "not run") or figures or ":test:`" in where
        assert set(figures) <= set(experiments.names())


#: The figures of each seed, by the beginning of its section of `results.rst`.
OF_SEEDS = {
    "On bridging": "1a 1b 2", "Batch normalization orth": "1 2a 2b 3 4 6 7",
    "Batch normalization prov": "1 2 3a 3b 4 5 6 7 8 9 10 11 12 13",
}  # fmt: skip


@pytest.mark.parametrize("section", OF_SEEDS)
def test_every_figure_of_a_seed_has_a_row(section):
    rest = text_of(DOCS / "results.rst").partition(f"\n{section}")[2]
    heads = re.findall(r"^   \* - (.*)", re.split(r"\n\S.*\n---", rest, maxsplit=1)[0], re.M)
    for number in OF_SEEDS[section].split():
        row = re.compile(rf"(?<!poster, )Figs?\.? (?:\d+[ab]?, )*{number}\b")
        assert any(map(row.search, heads)), number


#: What the kept tables must say for the status of these rows of `results.rst`.
VERDICTS = {
    "orthogonalizes-4": ("undecided at 8, larger at 12",),
    "orthogonalizes-7": ("The claim is not tested at 2, 6 ",),
    "rank-collapse-4": ("with batch norm, by hidden layers: undecided at 4, larger at 14",),
    "rank-collapse-6": ("Pre-trained, 25 steps: r before training is", "undecided"),
    "edge-of-chaos": ("in 6 of 6 intervals", "in 5 of 6 intervals"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_statuses_are_those_of_the_kept_tables(name):
    assert all(words in text_of(FIGURES / f"{name}.txt") for words in VERDICTS[name])


def test_statuses_are_defined_on_the_page():
    page = text_of(DOCS / "results.rst")
    words = re.findall(r"\*\*([a-z ]+)\*\*", page.partition("Words after a status")[0])
    assert len(words) > 8
    allowed = re.compile("|".join([*words, "holds?", "fails?"]))
    for row in rows_of_lists(DOCS / "results.rst"):
        if len(row) == 4 and row[1].strip() != "status":
            for part in re.split("[,;] ", row[1].strip()):
                assert allowed.match(part), row[:2]


def test_pictures_agree_with_what_pages_say_of_them():
    """The points of pytorch.png are within 10 % of the lines."""
    measured = json.loads(text_of(IMAGES / "pytorch.json"))
    for name in ("relu", "tanh", "elu"):
        star = bnmc.MeanField(bnmc.Chain(measured["width"], measured["batch"], name)).fixed_point()
        norms = np.array(measured["activations"][name]["norms"])
        lines = np.log(star.backward_rate) * np.arange(len(norms))[::-1]
        assert np.abs(np.expm1((norms - lines) / 2)).max() < 0.1


def test_every_promise_names_a_test():
    rows = [row for row in rows_of_lists(DOCS / "promises.rst") if row[0].strip() != "promise"]
    assert len(rows) > 30
    for sentence, held in rows:
        assert sentence.strip().endswith((".", ")."))
        assert ":test:`" in held, sentence


# ---------------------------------------------------------------- tables of pages


def rows_of_the_readme():
    for line in text_of(ROOT / "README.md").splitlines():
        if re.match(r"\| `\w+` \| \d", line):
            yield [cell.strip(" `") for cell in line.strip("|").split("|")]


def test_table_of_the_readme():
    """Measured values are those of pytorch.json, predictions those of the mean field."""
    measured = json.loads(text_of(IMAGES / "pytorch.json"))
    names = {"LeakyReLU": "leaky_relu"}
    rows = list(rows_of_the_readme())
    assert len(rows) == len(measured["activations"])
    for layer, rate, simulated, predicted, cosine, predicted_cosine in rows:
        name = names.get(layer, layer.lower())
        reference = measured["activations"][name]
        star = bnmc.MeanField(bnmc.Chain(measured["width"], measured["batch"], name)).fixed_point()
        value, error = map(number, rate.split(" ± "))
        assert value == pytest.approx(reference["rate"], abs=5e-4)
        assert error == pytest.approx(reference["rate_error"], abs=5e-4)
        ours, ours_error = map(number, simulated.split(" ± "))
        assert ours == pytest.approx(reference["simulated"], abs=5e-4)
        assert ours_error == pytest.approx(reference["simulated_error"], abs=5e-4)
        errors = np.hypot(reference["rate_error"], reference["simulated_error"])
        assert abs(reference["rate"] - reference["simulated"]) < 5.0 * errors
        assert number(cosine) == pytest.approx(reference["cosine"], abs=5e-4)
        assert reference["cosine_error"] < 1e-3
        tail = "" if star.stable else " (unstable)"
        for shown, exact in ((predicted, star.backward_rate), (predicted_cosine, star.c)):
            assert shown.endswith(")") == (not star.stable)
            assert number(shown.removesuffix(tail)) == pytest.approx(exact, abs=5e-4)
        if star.stable:
            assert value == pytest.approx(star.backward_rate, rel=0.01)


def test_table_of_activations():
    """The table of practitioners.rst: growth of gradients, cosine and rate by activation."""
    table = re.search(
        r"\nactivation  batch 8.*?\n=+ .*?\n(.*?)\n==", text_of(DOCS / "practitioners.rst"), re.S
    )
    rows = [re.split(r"\s{2,}", line) for line in table.group(1).splitlines()]
    assert len(rows) == 12
    for names, *cells in rows:
        for name in names.split(", "):
            *small, large = (
                bnmc.MeanField(bnmc.Chain(100, batch, name)).fixed_point() for batch in (8, 16, 64)
            )
            limit = bnmc.mean_field.limit(name)
            rate, *unstable = cells[5].split(", ")
            assert large.stable == (not unstable)
            shown = [*map(number, cells[:5]), number(rate)]
            rates = [star.backward_rate for star in (*small, large, limit)]
            np.testing.assert_allclose(shown, [*rates, large.c, large.rate], rtol=0, atol=5.1e-4)


def test_rows_of_the_commands_are_explained(capsys):
    """`reading.rst` names each row and column that these commands print."""
    pytest.importorskip("typer")
    page = text_of(DOCS / "reading.rst")
    assert (
        cli.main(["fixed-point", "--activation", "relu", "--batch", "10", "--width", "1000"]) == 0
    )
    rows = capsys.readouterr().out.splitlines()[3:]
    assert len(rows) > 10
    assert cli.main(["phase", "--activation", "tanh", "--weight-variance", "1.5"]) == 0
    rows += capsys.readouterr().out.splitlines()[3:]
    for row in rows:
        name = re.split(r"\s{2,}", row.strip())[0]
        assert re.search(rf"^{re.escape(name)}  ", page, re.M), name
    assert cli.main(["stability", "--activation", "gelu", "--batches", "38,39"]) == 0
    heads = capsys.readouterr().out.splitlines()[1].split()
    assert heads == ["batch", "λ_L", "λ_M", "rate"]
    assert all(re.search(rf"\b{head}\b", page) for head in heads)
    claim = bnmc.invariant.Claim("a claim", 2.0, 2.0, 0.1, p_value=1.0, adjusted=1.0)
    report = bnmc.invariant.CheckReport(bnmc.Chain(10, 3), (claim,), 0.05, 9, "given", 0)
    heads = re.split(r"\s{2,}", str(report).splitlines()[3].strip())
    assert len(heads) == 6
    assert all(re.search(rf"^{re.escape(head)}  ", page, re.M) for head in heads)


def heads_of(table):
    """Return the heads of the first table of a text."""
    line = next(line for line in table.splitlines() if re.search(r"\S {2,}\S", line))
    return re.split(r"\s{2,}", line.strip())


def test_columns_of_the_tables_are_explained(capsys):
    """`reading.rst` has a row for each column of these tables, under the heading of the command."""
    pytest.importorskip("typer")
    page = text_of(DOCS / "reading.rst")
    small = ["--width", "8", "--batch", "3", "--depth", "3", "--seed", "1"]
    tables = {}
    for command in ("simulate", "backprop"):
        assert cli.main([command, *small]) == 0
        tables[command] = heads_of(capsys.readouterr().out)
    tables["rates"] = heads_of(str(bnmc.mixing.Comparison(bnmc.Chain(8, 3), (), 0.95, 0)))
    printed = text_of(FIGURES / "norms.txt")
    tables["compare-norms"] = re.findall(r"^batch {2,}(.*?) {2,}", printed, re.M)
    tables["inspect"] = list(HEADS.values())
    assert all(len(heads) >= 3 for heads in tables.values())
    for command, heads in tables.items():
        section = page.partition(f"\n``bnmc {command}``")[2].partition("\n---")[2]
        section = section.partition("\n---")[0]
        for head in heads:
            name = re.sub(r"\d+ % ", "", head)
            assert re.search(rf"^{re.escape(name)}  ", section, re.M), (command, name)


@pytest.mark.untraced
def test_program_for_pytorch(tmp_path, monkeypatch, capsys):
    """The program of practitioners.rst measures what it predicts."""
    pytest.importorskip("torch")
    page = text_of(DOCS / "practitioners.rst")
    block = re.search(r"code-block:: python\n\n((?:    .*\n|\n)+)", page)
    code = "import torch\ntorch.manual_seed(0)\n" + inspect.cleandoc("\n" + block.group(1))
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    growth, predicted = map(float, re.findall(r"×([\d.]+)", capsys.readouterr().out))
    assert growth == pytest.approx(predicted, rel=0.1)


@pytest.mark.slow
def test_sgd_fits_a_batch_in_spite_of_growing_gradients():
    """The loss, 0.035 or less with three seeds, is far below chance, 2.3."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()) for _ in range(30)]
    model, batch = nn.Sequential(*blocks, nn.Linear(128, 10)), torch.randn(32, 128)
    labels = torch.arange(32) % 10
    optimizer = torch.optim.SGD(model.parameters(), 0.03)
    for _ in range(150):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_citation_of_the_results():
    page = text_of(DOCS / "results.rst")
    assert f"version = {{{bnmc.__version__}}}" in page
    assert page.count("@article{") == 3
