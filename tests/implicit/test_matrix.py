"""Matrices that are drawn by direction: against drawn matrices, and against themselves.

The oracle of the law is a drawn matrix, which goes through the same program of products: Gaussian
entries, or the QR factor with positive diagonal.  The oracle of an answer is `dense`: once all is
decided, every answer before must agree with it.
"""

import copy
import pickle
import threading
from contextlib import suppress

import numpy as np
import pytest
from scipy import stats
from scipy.sparse.linalg import svds

from bnmc._kernels.gpu.device import SIMULATED
from bnmc._support import machine
from bnmc.errors import ArgumentError, ArgumentTypeError, ResultTooLargeError
from bnmc.implicit import GaussianMatrix, HaarMatrix, load, matrix, products, words, words_on_gpu

FALSE_ALARM = 1e-6


class Drawn:
    """A matrix that exists, with the interface of those that do not."""

    def __init__(self, entries):
        self.entries = entries

    def __matmul__(self, x):
        return self.entries @ x

    @property
    def T(self):
        return Drawn(self.entries.T)

    def update(self, u, v, decay=1.0):
        self.entries = (
            decay * self.entries + np.reshape(u, (len(u), -1)) @ np.reshape(v, (len(v), -1)).T
        )


def drawn_gaussian(rows, columns, rng):
    return Drawn(rng.normal(0.0, columns**-0.5, (rows, columns)))


def drawn_haar(rows, columns, rng):
    q, r = np.linalg.qr(rng.normal(size=(rows, rows)))
    return Drawn(1.5 * q * np.sign(np.diag(r)))


def program(W, rows, columns):
    """Return answers of products that depend on the answers before: a small network in training.

    Questions are dependent, repeated, zero and more than there are dimensions.
    """
    x = np.cos(np.arange(columns * 2.0) + 1).reshape(columns, 2)
    answers = []
    for step in range(3):
        h = np.tanh(W @ x)
        back = W.T @ (h - 0.3)
        x = np.column_stack(
            [np.tanh(back[:, 0] + x[:, 0]), x[:, 1], 0 * x[:, 0], x[:, 0] - back[:, 1]]
        )
        answers += [h, back]
        W.update(h, x[:, : h.shape[1]], decay=0.9)
        if step == 0:
            answers.append(W.T @ (W @ x[:, :1]))
    return answers


def measured(answers):
    """Return some numbers of the answers: entries, products and norms."""
    numbers = []
    for answer in answers:
        numbers += [answer[0, 0], answer[-1, -1], (answer**2).sum(), answer[:, 0] @ answer[:, -1]]
    return numbers


class Transposed:
    """The transpose of a pair."""

    def __init__(self, pair):
        self.pair = pair

    def __matmul__(self, v):
        pair = self.pair
        return pair.lower.T @ v[pair.first :] + pair.upper.T @ v[: pair.first]


class Pair:
    """Two matrices with one basis of columns, as one matrix."""

    def __init__(self, rows, columns, **options):
        (key, word), self.first = options["rng"], rows // 2
        scale = columns**-0.5
        self.upper = GaussianMatrix(self.first, columns, scale=scale, rng=(key, word, 0))
        self.lower = GaussianMatrix(rows - self.first, columns, scale=scale, rng=(key, word, 1))
        self.lower.join(self.upper)

    def __matmul__(self, x):
        return np.concatenate([self.upper @ x, self.lower @ x])

    @property
    def T(self):
        return Transposed(self)

    def update(self, u, v, decay=1.0):
        self.lower.update(u[self.first :], v, decay)
        self.upper.update(u[: self.first], v, decay)


LAWS = {
    "tall": (GaussianMatrix, drawn_gaussian, 6, 4),
    "wide": (GaussianMatrix, drawn_gaussian, 3, 7),
    "square": (GaussianMatrix, drawn_gaussian, 12, 12),
    "haar": (HaarMatrix, drawn_haar, 5, 5),
    "large haar": (HaarMatrix, drawn_haar, 14, 14),
}


def matrix_of(law, rows, columns, **options):
    if law is Pair:
        return Pair(rows, columns, **options)
    if law is HaarMatrix:
        return HaarMatrix(rows, gain=1.5, **options)
    return GaussianMatrix(rows, columns, **options)


@pytest.mark.parametrize(
    ("name", "directions", "count"),
    [
        # A pair is two Gaussian matrices, whose answers are kept.
        *(
            (name, directions, 250)
            for name, directions in (("haar", "kept"), ("tall", "entries"), ("pair", "kept"))
        ),
        pytest.param("square", "kept", 250, marks=pytest.mark.slow),
        *(
            pytest.param(name, directions, 5000, marks=pytest.mark.slow)
            for name in (*LAWS, "pair")
            for directions in ("kept", "entries")
        ),
    ],
)
def test_answers_have_the_law_of_a_drawn_matrix(name, directions, count, monkeypatch):
    """Kolmogorov-Smirnov tests of all numbers, with a false alarm in 1e6 for all together.

    Small matrices soon keep their entries, unless they are told that nothing is crowded.
    """
    if directions == "kept":
        monkeypatch.setattr(matrix.ImplicitMatrix, "is_crowded", False)
    law, draw, rows, columns = {**LAWS, "pair": (Pair, drawn_gaussian, 8, 5)}[name]
    rng = np.random.default_rng(11)
    implicit, expected = (
        np.array([measured(program(make(seed), rows, columns)) for seed in range(count)])
        for make in (
            lambda seed: matrix_of(law, rows, columns, rng=(seed, 17)),
            lambda seed: draw(rows, columns, rng),
        )
    )
    values = [stats.ks_2samp(a, b).pvalue for a, b in zip(implicit.T, expected.T, strict=True)]
    assert min(values) > FALSE_ALARM / len(values)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", LAWS)
def test_all_answers_agree_with_the_entries(name, library, dtype):
    """They do so whether the matrix keeps directions or, as it does in the end here, entries."""
    law, _, rows, columns = LAWS[name]
    rows, columns = 9 * rows, 9 * columns
    W = matrix_of(law, rows, columns, rng=3, dtype=dtype)
    rng, entries_of_updates, decayed, log = np.random.default_rng(0), 0.0, 1.0, []
    as_array = np.asarray
    if library == "torch":
        torch = pytest.importorskip("torch")
        as_array = torch.as_tensor
    for _ in range(4):
        for side, length in enumerate((columns, rows)):
            x = rng.normal(size=(length, 3))
            x[:, 2] = 1e-5 * x[:, 0] + 1e-9 * x[:, 1]
            answer = (W if side == 0 else W.T) @ as_array(x.astype(dtype))
            assert type(answer) is type(as_array(x))
            log.append((decayed, entries_of_updates, side, x, np.asarray(answer, float)))
        u, v = 0.3 * rng.normal(size=(rows, 2)), 0.3 * rng.normal(size=(columns, 2))
        W.update(as_array(u), as_array(v), decay=0.8)
        decayed, entries_of_updates = 0.8 * decayed, 0.8 * entries_of_updates + u @ v.T
        log.append(
            (decayed, entries_of_updates, 0, v, np.asarray(W @ as_array(v.astype(dtype)), float))
        )
    entries = (np.asarray(W.dense(), float) - entries_of_updates) / decayed
    tolerance = 1e-12 if dtype == "float64" else 3e-5
    for decay, updates, side, x, answer in log:
        expected = decay * entries + updates
        expected = (expected if side == 0 else expected.T) @ x
        scale = np.sqrt((expected**2).mean(axis=0))
        assert (abs(answer - expected).max(axis=0) < tolerance * scale * 30).all()


@pytest.mark.parametrize("law", [GaussianMatrix, HaarMatrix])
def test_nearly_dependent_columns(law):
    """One projection in place of two fails here: what is new is 1e-6 to 1e-11 of a column."""
    rng = np.random.default_rng(1)
    W = matrix_of(law, 400, 400, rng=0)
    x = rng.normal(size=400)
    for size in (0.0, 1.0, 1e-6, 1e-8, 1e-10, 1e-11):
        W @ (x + size * rng.normal(size=400))
        W.T @ (x + size * rng.normal(size=400))
    for basis in W._basis:
        assert abs(products.inner(basis.rows, basis.rows) - np.eye(len(basis))).max() < 1e-14
    # A repeated question is a known one, also below the precision of its length.
    asked = W.asked
    W @ (x * (1 + 1e-15))
    W.T @ np.zeros(400)
    assert W.asked == asked


def test_directions_that_are_counted():
    W = GaussianMatrix(40, 30, rng=0)
    W @ np.eye(30)[:, :3]
    W @ np.eye(30)[:, 1:4]
    W.T @ np.ones(40)
    assert W.asked == (4, 1)
    assert W.nbytes == 8 * 70 * 5
    assert GaussianMatrix(40, 30, rng=0).asked == (0, 0)
    # After more numbers than entries, entries are kept.
    W @ np.random.default_rng(0).normal(size=(30, 20))
    assert W.asked == (30, 40)
    assert W.nbytes == 8 * 1200


def test_matrices_share_a_basis():
    """Questions to one are known to all; what each answers agrees with its own entries."""
    W, V, U = family = [GaussianMatrix(size, 40, rng=size) for size in (30, 50, 60)]
    for other in (V, U):
        other.join(W)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40, 3))
    answers = [each @ x for each in family]
    V.T @ answers[1][:, :1]
    assert [each.asked for each in family] == [(3, 0), (3, 1), (3, 0)]
    assert W._basis[0] is V._basis[0] is U._basis[0]
    assert sum(each.nbytes for each in family) == 8 * (3 * (40 + 30 + 50 + 60) + 40 + 50)
    for call in (lambda: V @ np.full(40, np.nan), lambda: U @ np.full(40, 1e308)):
        with pytest.raises(ArgumentError):
            call()
    same = pickle.loads(pickle.dumps(family))
    for again, each in zip(same, family, strict=True):
        np.testing.assert_array_equal(again @ y, each @ y)
    assert [each.asked for each in family] == [(6, 0), (6, 1), (6, 0)]
    assert same[0]._basis[0] is same[1]._basis[0]
    # One that is decided, or begins again, leaves the others to themselves.
    entries = V.dense()
    U.restart(7)
    assert [each.asked for each in family] == [(6, 0), (40, 50), (0, 0)]
    for given, answer in zip((W.dense(), entries), answers[:2], strict=True):
        np.testing.assert_allclose(given @ x, answer, atol=1e-13)
    assert abs(U @ x - answers[2]).max() > 0.1


def test_memory_of_thin_matrices_does_not_grow():
    W = GaussianMatrix(10_000, 3, rng=0)
    for seed in range(20):
        W.T @ np.random.default_rng(seed).normal(size=(10_000, 5))
    assert W.nbytes == 8 * 30_000


def test_words_of_objects_and_columns():
    """Seeds that NumPy takes for equal make different matrices; equal calls have equal bits."""
    keys = [words.key_of(rng) for rng in (5, (5,), (5, 0), [5, 0, 0], (0, 5), 6)]
    assert len(set(keys)) == 6
    assert words.key_of((5, 0)) == words.key_of([5, 0])
    x = np.random.default_rng(0).normal(size=(50, 4))
    first, second = GaussianMatrix(60, 50, rng=(5, 0)), GaussianMatrix(60, 50, rng=(5, 0))
    answers = first @ x
    np.testing.assert_array_equal(answers, second @ x)
    # The normals of a column are those of its place in the call, whatever else is new.
    again = GaussianMatrix(60, 50, rng=(5, 0)) @ np.column_stack([x[:, 0], x[:, 0], x[:, 2]])
    np.testing.assert_allclose(again[:, 0], answers[:, 0])
    assert words.normals(7, 3, np.array([0, 2]), 100, "float64", x).shape == (2, 100)


@pytest.mark.usefixtures("simulator")
@pytest.mark.filterwarnings("ignore:Grid size")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_normals_of_a_gpu_are_those_of_the_cpu(dtype):
    columns, out = np.array([0, 2, 5]), np.zeros((3, 128), dtype)
    if SIMULATED:
        words_on_gpu.fill(out, 2**63 + 7, 3, columns)
    else:
        example = pytest.importorskip("torch").zeros(1, device="cuda")
        out = words.normals(2**63 + 7, 3, columns, 128, dtype, example).cpu().numpy()
    expected = words.normals(2**63 + 7, 3, columns, 128, dtype, np.zeros(0))
    np.testing.assert_allclose(out, expected, rtol=0, atol=16 * np.finfo(dtype).eps)


@pytest.mark.parametrize("columns", [1, 8])
def test_bits_do_not_depend_on_the_threads_of_blas(columns):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    x = np.random.default_rng(0).normal(size=(20_000, columns))

    def answers(threads):
        with threadpoolctl.threadpool_limits(threads):
            W = GaussianMatrix(30_000, 20_000, rng=0)
            return [W @ x, W.T @ (W @ x), W @ (x + 1), W.T @ (W @ x**2)]

    for a, b in zip(answers(1), answers(2), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_in_pieces_are_products(rows, dtype):
    """Widths of more and of less than a block, and numbers of rows whose blocks are in pieces."""
    rng, size = np.random.default_rng(0), products._BLOCK + 300
    a, b = (rng.normal(size=(count, size)).astype(dtype) for count in (40, rows))
    bound = 40 * np.finfo(dtype).eps * size**0.5
    np.testing.assert_allclose(products.inner(a, b), a.astype(float) @ b.T, atol=bound * 8)
    np.testing.assert_allclose(products.inner(b, a), b.astype(float) @ a.T, atol=bound * 8)
    factor = rng.normal(size=(7, rows))
    gathered = products.gather([(factor, b), (factor[:, :1], b[:1])], size, "float64")
    np.testing.assert_allclose(gathered, factor @ b + factor[:, :1] * b[0], atol=bound)


def watched_threads(monkeypatch):
    """Return a list that gets the thread of each part of a product that threads share."""
    threads, unshared = [], machine._unshared

    def called(part):
        threads.append(threading.current_thread().name)
        return unshared(part)

    monkeypatch.setattr(machine, "_unshared", called)
    return threads


@pytest.mark.parametrize("size", [9, 500])
def test_bits_do_not_depend_on_the_threads_that_share_a_product(size, monkeypatch):
    """Blocks of 8 numbers: parts of a block, and of several."""
    monkeypatch.setattr(products, "_BLOCK", 8)
    monkeypatch.setattr(products, "_SHARED", 0)
    shared = watched_threads(monkeypatch)

    def numbers(threads):
        y = np.random.default_rng(1).normal(size=(3, size)) * [[1e8], [1.0], [1e-8]]
        basis = products.Basis(y, size, "float32")
        with machine.sharing_products(threads):
            q, factor = products.orthonormal(y, np.linalg.cholesky(products.inner(y, y)))
            basis.append(q)
            left = products.project(np.cos(y), basis.rows)
            far = np.array([[3e38, 1e38, 1.0]])
            with np.errstate(over="ignore"):  # is a part of the context of a thread, too
                gathered = products.gather([(far, np.float32(y))], size, "float32")
            return q, factor, basis.rows, left, gathered

    expected = numbers(1)
    assert not shared
    for threads in (2, 3):
        for a, b in zip(numbers(threads), expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert 1 <= len({*shared}) <= threads
        shared.clear()


def test_products_with_no_vectors_are_zero():
    x, none = np.ones((2, 200)), np.empty((0, 200))
    assert products.inner(x, none).shape == (2, 0)
    np.testing.assert_array_equal(products.gather([(np.ones((2, 0)), none)], 200, "float64"), 0 * x)
    np.testing.assert_array_equal(products.project(x, none), np.zeros((2, 0)))


def test_processors_share_large_products(monkeypatch):
    """Of users, but not of a worker that shares the processors already."""
    monkeypatch.setattr(machine, "available_processors", lambda: 2)
    monkeypatch.setattr(products, "_SHARED", 0)
    shared = watched_threads(monkeypatch)
    x = np.random.default_rng(0).normal(size=(20_000, 2))

    def answers():
        W = GaussianMatrix(20_000, 20_000, rng=0)
        W.update(W @ x, x)
        return W.T @ (W @ (x + 1))

    expected = answers()
    assert not shared
    monkeypatch.setattr(matrix, "_LARGE", 0)
    np.testing.assert_array_equal(answers(), expected)
    assert shared
    with machine.one_blas_thread():
        shared.clear()
        np.testing.assert_array_equal(answers(), expected)
    assert not shared


def test_copies_share_the_past_alone():
    W = HaarMatrix(90, rng=0)
    x, y = np.random.default_rng(0).normal(size=(2, 90))
    answer = W @ x
    W.update(answer, x, decay=0.5)
    same, other, read = copy.deepcopy(W), W.copy(rng=1), pickle.loads(pickle.dumps(W))
    for again in (same, other, read):
        np.testing.assert_array_equal(again @ x, W @ x)
    expected = W @ y
    np.testing.assert_array_equal(same @ y, expected)
    np.testing.assert_array_equal(read @ y, expected)
    assert abs(other @ y - expected).max() > 1e-3
    # Without a seed too.
    assert abs(W.copy() @ y[::-1] - W.copy() @ y[::-1]).max() > 1e-3


@pytest.mark.parametrize("asked", [0, 2, 80], ids=["nothing", "directions", "entries"])
@pytest.mark.parametrize("law", [GaussianMatrix, HaarMatrix])
def test_files(law, asked, tmp_path):
    W, rng = matrix_of(law, 70, 70, rng=0, dtype="float32"), np.random.default_rng(0)
    if asked:
        W @ rng.normal(size=(70, asked))
        W.update(rng.normal(size=70), rng.normal(size=70))
    W.save(tmp_path / "w.npz")
    read = load(tmp_path / "w.npz")
    assert (type(read), read.asked, read.dtype) == (law, W.asked, np.dtype("float32"))
    x = rng.normal(size=(70, 3))
    np.testing.assert_array_equal(read @ x, W @ x)
    np.testing.assert_array_equal(read.T @ x, W.T @ x)


def test_damaged_and_foreign_files(tmp_path):
    path = tmp_path / "w.npz"
    for content in (b"", b"something else"):
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match="path"):
            load(path)
    np.savez(path, x=np.ones(3))
    for name in (path, tmp_path / "missing.npz"):
        with pytest.raises(ArgumentError, match="path"):
            load(name)
    with pytest.raises(ArgumentError, match="state"):
        GaussianMatrix(3, 3).restore(GaussianMatrix(4, 3).state())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda W: GaussianMatrix(0, 3), ArgumentError),
        (lambda W: GaussianMatrix(3, 2.5), ArgumentTypeError),
        (lambda W: GaussianMatrix(3, 3, scale=0.0), ArgumentError),
        (lambda W: GaussianMatrix(3, 3, dtype="int8"), ArgumentError),
        (lambda W: GaussianMatrix(3, 3, rng="seed"), ArgumentTypeError),
        (lambda W: HaarMatrix(3, gain=np.inf), ArgumentError),
        (lambda W: W @ np.full(30, np.nan), ArgumentError),
        (lambda W: W @ np.full(30, 1e308), ArgumentError),
        (lambda W: W.locate(np.full((1, 30), 1e308), 0), ArgumentError),
        (lambda W: W @ np.ones(40), ArgumentError),
        (lambda W: W @ np.ones((2, 30)), ArgumentError),
        (lambda W: W @ 3.0, ArgumentTypeError),
        (lambda W: W @ (1j * np.ones(30)), ArgumentTypeError),
        (lambda W: W.T @ "text", ArgumentTypeError),
        (lambda W: W.update(np.ones(40), np.ones((30, 2))), ArgumentError),
        (lambda W: W.update(np.ones(40), np.full(30, np.inf)), ArgumentError),
        (lambda W: W.update(np.ones(40), np.ones(30), decay=np.nan), ArgumentError),
        (lambda W: W.copy(rng=1.5), ArgumentTypeError),
        (lambda W: W.save("w.txt"), ArgumentError),
        (lambda W: GaussianMatrix(10**6, 10**6).dense(), ResultTooLargeError),
    ],
)
def test_refusals_leave_the_matrix_as_it_was(call, error):
    W, other = (GaussianMatrix(40, 30, rng=0) for _ in range(2))
    x = np.random.default_rng(0).normal(size=(30, 5))
    for same in (W, other):
        same @ x[:, :2]
    with pytest.raises(error):
        call(W)
    assert W.asked == (2, 0)
    np.testing.assert_array_equal(W @ x, other @ x)


@pytest.mark.parametrize("law", [GaussianMatrix, HaarMatrix])
def test_an_interrupted_call_leaves_the_matrix_as_it_was(law, monkeypatch):
    """Ctrl-C comes at each call of a function in turn, until a call of the matrix ends."""
    x = np.random.default_rng(0).normal(size=(40, 9))
    W = matrix_of(law, 40, 40, rng=0)
    W.update(W @ x[:, 0], x[:, 1], decay=0.5)
    expected = copy.deepcopy(W).T @ x
    for home, name in [
        (matrix, "normals"),
        (products.Basis, "append"),
        (products, "inner"),
        (products, "project"),
    ]:
        function = getattr(home, name)
        for limit in range(20):
            calls = []

            def interrupted(*arguments, function=function, calls=calls, limit=limit):
                calls.append(limit)
                if len(calls) > limit:
                    raise KeyboardInterrupt
                return function(*arguments)

            other, ended = copy.deepcopy(W), False
            with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
                patch.setattr(home, name, interrupted)
                other.update(x[:, 2:5], x[:, 4:7])
                ended = True
            if ended:
                break
            assert other.asked == W.asked
            np.testing.assert_array_equal(other.T @ x, expected)
        assert 0 < limit < 19


def test_tiny_and_huge_vectors():
    """Squares that underflow or overflow are no zeros and no infinities, in both precisions."""
    x = np.random.default_rng(0).normal(size=30)
    for dtype in ("float64", "float32"):
        expected = GaussianMatrix(40, 30, rng=0, dtype=dtype) @ x
        for exponent in (-1000, -200, 200, 900):
            answer = GaussianMatrix(40, 30, rng=0, dtype=dtype) @ np.ldexp(x, exponent)
            np.testing.assert_array_equal(np.ldexp(answer, -exponent), expected)


def test_linear_operators_of_scipy():
    """The largest singular value of a square matrix of order d is near 2."""
    W = GaussianMatrix(3000, 3000, rng=0)
    u, s, v = svds(W, k=1, tol=1e-4)
    assert abs(s[0] - 2.0) < 0.05
    assert abs(abs(u[:, 0] @ (W @ v[0])) - s[0]) < 1e-3
    x = np.ones((3000, 2))
    np.testing.assert_allclose((2.0 * W) @ x, 2.0 * (W @ x))
    np.testing.assert_allclose((W.H @ W) @ x, W.T @ (W @ x))
    np.testing.assert_array_equal(W.T.T @ x, W.matmat(x))
    np.testing.assert_allclose(W.T @ x, W.T.matmat(x))
    np.testing.assert_array_equal(W.rmatmat(x), W.T @ x)
    np.testing.assert_array_equal(W.T.matvec(x[:, 0]), W.rmatvec(x[:, 0]))
    np.testing.assert_array_equal(W @ x.tolist(), W @ x)
    assert "3000x3000 GaussianMatrix" in repr(W)
