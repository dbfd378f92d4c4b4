"""Random matrices that are drawn by direction.

The state of a matrix is the directions that were multiplied, and their products:

    basis[0] = A: orthonormal rows, the directions of W₀;   image[0] = B: its row i is W₀  A_i
    basis[1] = C: orthonormal rows, the directions of W₀ᵀ;  image[1] = D: its row i is W₀ᵀ C_i

W₀ has unit variance, or is orthogonal.  A product first locates x: x = coordinates · A, where what
is new of x becomes a row of A, and its image is drawn from its law given all answers before.  Then
it adds up images.  Updates stay in these coordinates: W = weight · W₀ + Cᵀ M A with a small matrix
M, and as A and C are orthonormal, norms and inner products of M are those of Cᵀ M A.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Number
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from bnmc._support import arguments, files
from bnmc._support.archives import archived, arrays_of
from bnmc._support.machine import require_memory, sharing_products
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.implicit import products
from bnmc.implicit.products import Basis, Canonical
from bnmc.implicit.words import key_of, normals

#: What is left of a vector counts as rounding below this part of its length, by precision.
_ROUNDING = {"float64": 1e-12, "float32": 1e-6}

#: Longer vectors have images that overflow.
_LONGEST = 1e300

#: Bytes from which a request is compared with the available memory.
_NOTICED = 1 << 24

#: Multiplications of a product from which all processors share it.
_LARGE = 1 << 26


class ImplicitMatrix(LinearOperator, ABC):
    """A random matrix that is drawn by direction: `GaussianMatrix` or `HaarMatrix`."""

    def __init__(self, rows: int, columns: int, scale: float, rng: Any, dtype: object) -> None:
        super().__init__(np.dtype(arguments.precision(dtype)), (rows, columns))  # type: ignore[call-arg]
        self.scale, self.key = scale, key_of(rng)
        self._calls, self._weight = 0, scale
        self._coefficients: Any = None
        self._basis: list[Any] = []
        self._image: list[Any] = []
        self._room = 0, 0
        self._family = _Family([self])

    # --- what users call

    def __matmul__(self, x: Any) -> Any:
        if np.isscalar(x):
            raise ArgumentTypeError("x", x, "a vector or columns; * multiplies by a number")
        return self.dot(x)

    def dot(self, x: Any) -> Any:
        """Return W x.

        Parameters
        ----------
        x : (columns,) or (columns, k) array
            A vector or columns: of NumPy, or a tensor of PyTorch on any device.

        Returns
        -------
        (rows,) or (rows, k) array
            In the library, on the device and in the precision of x.

        Raises
        ------
        ArgumentError
            If x is not finite, or has another length.
        ArgumentTypeError
            If x has no real numbers.
        ResultTooLargeError
            If the answer does not fit in memory.
        """
        if isinstance(x, (Number, LinearOperator)):
            return super().dot(x)  # type: ignore[arg-type]
        return self._product(x, 0)

    def update(self, u: Any, v: Any, decay: float = 1.0) -> None:
        """Replace W by decay · W + u vᵀ; only images of new directions are drawn.

        Parameters
        ----------
        u : (rows,) or (rows, k) array
            Left vectors.
        v : (columns,) or (columns, k) array
            Right vectors.
        decay : float, default 1
            Factor of W.

        Raises
        ------
        ArgumentError
            If an argument is not finite, or has another shape.  W is then as before.
        """
        decay = arguments.real("decay", decay)
        left, right = self._rows_of("u", u, 1), self._rows_of("v", v, 0)
        if len(left) != len(right):
            raise ArgumentError("v", tuple(np.shape(v)), f"as many vectors as u, {len(left)}")
        with self._unchanged_by_errors(), self._shared(left):
            rows, columns = self.locate(left, 1), self.locate(right, 0)
            coefficients = products.zeros((len(self._basis[1]), len(self._basis[0])), rows)
            former = self._coefficients
            if former is not None:
                coefficients[: former.shape[0], : former.shape[1]] = decay * former
            coefficients[: rows.shape[1], : columns.shape[1]] += rows.T @ columns
            self._weight, self._coefficients = decay * self._weight, coefficients
            self._settle()

    def dense(self) -> Any:
        """Decide all of W, and return its entries.

        Returns
        -------
        (rows, columns) array
            In the library of the vectors that were multiplied, or of NumPy.  All products, before
            and after, agree with it.

        Raises
        ------
        ResultTooLargeError
            If the entries do not fit in memory.
        """
        with self._unchanged_by_errors():
            self._settle(entirely=True)
            return self._image[1].rows + 0.0

    def copy(self, rng: Any = None) -> Self:
        """Return a matrix with the same past and another future.

        Parameters
        ----------
        rng : None, int, sequence of int, SeedSequence, BitGenerator or Generator
            Source of the products to come.

        Returns
        -------
        GaussianMatrix or HaarMatrix
            Given the products so far, those of new directions are independent of those of W.
        """
        key, other = key_of(rng), copy.deepcopy(self)
        other._leave()
        other.key = key
        return other

    def save(self, path: Any) -> None:
        """Write the matrix to a file in NumPy's format ``npz``, which `load` reads.

        Parameters
        ----------
        path : str or path-like
            Name that ends in ``.npz``.  A file of this name is replaced.
        """
        path = files.as_path("path", path)
        files.require_writable("path", path, [".npz"])
        with files.replacing(path) as file:
            file.write_bytes(archived(self.state()))

    @property
    def asked(self) -> tuple[int, int]:
        """Numbers of directions of W and of Wᵀ: (columns, rows) once all entries are drawn."""
        return (len(self._basis[0]), len(self._basis[1])) if self._basis else (0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is drawn; a shared basis counts in equal parts."""
        if self.is_decided:
            return self._image[1].nbytes
        size = 0 if self._coefficients is None else 8 * len(self._basis[0]) * len(self._basis[1])
        parts = [len(self._family.members), 1, 1, 1]
        vectors = zip(self._vectors, parts, strict=False)
        return sum(kept_vectors.nbytes // part for kept_vectors, part in vectors) + size

    # --- what layers call that keep coefficients of their own

    def locate(self, x: Any, side: int, room: int | None = None) -> Any:
        """Return the coordinates of rows x in the basis of a side; draw the images of what is new.

        Parameters
        ----------
        x : (k, columns) array, or for side 1 (k, rows)
            Vectors of float32 or float64.
        side : {0, 1}
            1 for the transpose.
        room : int, optional
            The most directions that the side may have afterwards.

        Returns
        -------
        (k, directions) float64 array
            An error leaves the matrix as it was.
        """
        self._require_room(x, side)
        with self._unchanged_by_errors():
            if not self._basis:
                self._family.begin(x)
            former = len(self._basis[side])
            y, exponents = products.scaled(self._at_home(x))
            rounding = max(
                _ROUNDING[self.dtype.name], _ROUNDING.get(products.precision_of(x), 1e-6)
            )
            coordinates = self._coordinates(y, side, rounding)
            asked = len(self._basis[side])
            if room is not None and asked > room:
                hint = f"{former} directions are stored, {room - former} are left"
                raise ArgumentError("columns", room, f"at least {asked}", hint)
            with np.errstate(over="ignore"):
                factors = np.ldexp(1.0, exponents)
            coordinates *= products.like(factors[:, None], coordinates)
            longest = float(abs(coordinates).max()) if all(coordinates.shape) else 0.0
            if not longest < _LONGEST:
                raise ArgumentError("x", longest, f"vectors shorter than {_LONGEST}")
        return coordinates

    def image_of(
        self, coordinates: Any, side: int, weight: float, coefficients: Any, dtype: str
    ) -> Any:
        """Return (weight W₀ + Cᵀ M A) x as rows, or for side 1 its transpose times x."""
        # The numbers of rows that are kept may have a smaller range than those of coordinates.
        coordinates, exponents = products.scaled(coordinates)
        count, others, terms = coordinates.shape[1], self._basis[1 - side], []
        if weight != 0.0:
            terms.append((weight * coordinates, self._image[side].rows[:count]))
        if coefficients is not None:
            matrix = coefficients if side == 0 else coefficients.T
            count, length = min(count, matrix.shape[1]), min(len(others), matrix.shape[0])
            matrix = products.cast(matrix[:length, :count], "float64")
            moved = coordinates[:, :count] @ matrix.T
            terms.append((moved, None if self.is_decided else others.rows[:length]))
        if not terms:
            return products.zeros((len(coordinates), self.shape[side]), coordinates, dtype)
        image = products.gather(terms, self.shape[side], "float64")
        return products.cast(products.multiply(image, np.ldexp(1.0, exponents)), dtype)

    def decide(self) -> tuple[Any, Any]:
        """Decide all entries of W₀, whose rows and columns become the bases.

        Returns
        -------
        tuple of array
            The bases A and C until now: coefficients M become Cᵀ M A.
        """
        side = int(self.shape[0] < self.shape[1])
        length = self.shape[1 - side]
        require_memory("W", 8 * length * (2 * length + 2 * sum(self.shape)))
        with self._unchanged_by_errors():
            self._leave()
            example = self._basis[0].rows if self._basis else np.zeros(0)
            identity = products.like(np.eye(length, dtype=self.dtype), example)
            coordinates = self.locate(identity, side)
            former = self._basis[0].rows, self._basis[1].rows
            entries = self.image_of(coordinates, side, 1.0, None, self.dtype.name)
            self._become(entries if side == 1 else entries.T)
        return former

    def reserve(self, directions: int, others: int) -> None:
        """Expect so many directions of W and of Wᵀ, so that vectors are not copied as they grow.

        Call it before the first product.  Memory that no vector fills is not touched.
        """
        self._room = min(directions, self.shape[1]), min(others, self.shape[0])

    @property
    def is_decided(self) -> bool:
        """Whether all entries are drawn, and kept in place of directions."""
        return bool(self._basis) and isinstance(self._basis[0], Canonical)

    @property
    def is_crowded(self) -> bool:
        """Whether the entries take less memory than what the matrix keeps, or nothing is open."""
        (rows, columns), (right, left) = self.shape, self.asked
        numbers = sum(len(vectors) * vectors.size for vectors in self._vectors)
        return numbers > rows * columns or right == columns or left == rows

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that forgets all that is asked from now on."""
        members = list(self._family.members)
        states = [(matrix.__dict__, dict(matrix.__dict__)) for matrix in members]
        counts = [(vectors, len(vectors)) for matrix in members for vectors in matrix._vectors]

        def restore() -> None:
            for attributes, before in states:
                attributes.update(before)
            for vectors, count in counts:
                vectors.count = count

        return restore

    def restart(self, rng: Any = None) -> None:
        """Forget all that is decided, and take a new key."""
        self._leave()
        self.key, self._calls, self._weight = key_of(rng), 0, self.scale
        self._coefficients, self._basis, self._image = None, [], []

    def move(self, device: Any) -> None:
        """Keep all vectors as tensors on a device of PyTorch."""
        if not self.is_decided:
            for vectors in self._vectors:
                vectors.move(device)

    def state(self) -> dict[str, Any]:
        """Return all that the matrix is as arrays: those of vectors in their own library."""
        state = {
            "text": np.array([type(self).__name__, self.dtype.name]),
            "words": np.array([*self.shape, self._calls, self.key, self.is_decided], np.uint64),
            "numbers": np.array([self.scale, self._weight]),
        }
        if self._coefficients is not None:
            state["coefficients"] = self._coefficients
        if self.is_decided:
            return {**state, "entries": self._image[1].rows}
        arrays = {f"vectors{i}": vectors.rows for i, vectors in enumerate(self._vectors)}
        return {**state, **arrays}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned, for a matrix of the same law, shape and precision."""
        *shape, calls, key, is_decided = (int(word) for word in state["words"])
        given, mine = (*shape, *map(str, state["text"])), (
            *self.shape, type(self).__name__, self.dtype.name,
        )  # fmt: skip
        if given != mine:
            raise ArgumentError("state", given, f"the state of a matrix {mine}")
        with self._unchanged_by_errors():
            self._leave()
            self.scale, self._weight = (float(number) for number in state["numbers"])
            self.key, self._calls = arguments.Key(key), calls
            self._coefficients = state.get("coefficients")
            self._basis, self._image = [], []
            if is_decided:
                self._become(state["entries"])
            elif "vectors0" in state:
                self._begin(state["vectors0"])
                for i, vectors in enumerate(self._vectors):
                    vectors.append(state[f"vectors{i}"])

    # --- inside

    @abstractmethod
    def _draw(self, side: int, directions: Any, call: int, columns: NDArray[np.intp]) -> None:
        """Draw and append the images of new orthonormal directions of a side.

        Direction i takes the normals of a column of a call, columns[i].
        """

    def _begin(self, x: Any) -> None:
        """Start with no vectors, in the library and on the device of x."""
        (rows, columns), dtype = self.shape, self.dtype.name
        right, left = self._room
        self._basis = [Basis(x, columns, dtype, right), Basis(x, rows, dtype, left)]
        self._image = [Basis(x, rows, dtype, right), Basis(x, columns, dtype, left)]

    def _leave(self) -> None:
        """Keep a basis of columns for this matrix alone."""
        others = [matrix for matrix in self._family.members if matrix is not self]
        if others:
            self._family, family = _Family([self]), _Family(others)
            for matrix in others:
                matrix._family = family
            if self._basis:
                self._basis = [Basis.of(self._basis[0].rows + 0.0), self._basis[1]]

    def _become(self, entries: Any) -> None:
        """Keep entries: the bases are those of the identity."""
        self._basis = [Canonical(size) for size in reversed(self.shape)]
        self._image = [Basis.of(entries.T), Basis.of(entries)]

    @property
    def _vectors(self) -> list[Basis]:
        """All vectors that are kept, each once: images of a Haar matrix are bases."""
        return list({id(vectors): vectors for vectors in (*self._basis, *self._image)}.values())

    def _coordinates(self, y: Any, side: int, rounding: float) -> Any:
        """Return the coordinates of rows y, which are overwritten; see `locate`."""
        basis, matrices = self._basis[side], self._family.members if side == 0 else [self]
        calls = [matrix._calls for matrix in matrices]
        if self.is_decided:
            return y
        left, before = np.arange(len(y)), len(basis)
        least = rounding * np.sqrt(products.to_host(products.squares(y)))
        coordinates = products.zeros((len(y), before + len(y)), y)
        while len(left):
            coordinates[left, : len(basis)] += products.project(y, basis.rows)
            if len(basis) == basis.size:  # all is decided: rounding adds no direction
                break
            gram = products.to_host(products.inner(y, y))
            chosen, factor, again = products.independent(gram, least[left])
            if len(chosen):
                picked = y if len(chosen) == len(y) else y[chosen]
                directions, factor = products.orthonormal(picked, factor)
                new = slice(len(basis), len(basis) + len(chosen))
                for row, part in zip(left[chosen], products.like(factor, y), strict=True):
                    coordinates[row, new] = part
                for matrix, call in zip(matrices, calls, strict=True):
                    matrix._draw(side, directions, call, left[chosen])
                    matrix._calls = call + 1  # a question whose answer is known changes nothing
                basis.append(directions)
            left, y = left[again], y[again]
        return coordinates[:, : len(basis)]

    def _product(self, x: Any, side: int) -> Any:
        """Return W x, or Wᵀ x for side 1, for a vector or columns."""
        rows = self._rows_of("x", x, side)
        with self._unchanged_by_errors(), self._shared(rows):
            coordinates, dtype = self.locate(rows, side), products.precision_of(rows)
            answer = self.image_of(coordinates, side, self._weight, self._coefficients, dtype)
            self._settle()
        answer = answer[0] if np.ndim(x) == 1 else answer.T
        return answer if products.is_tensor(x) else products.to_host(answer)

    def _settle(self, entirely: bool = False) -> None:
        """Keep entries in place of directions where that takes less memory, or `entirely`."""
        if not self.is_decided:
            if not (entirely or self.is_crowded):
                return
            (right, left), moved = self.decide(), self._coefficients
            if moved is not None:
                left = products.cast(left[: moved.shape[0]], "float64")
                right = products.cast(right[: moved.shape[1]], "float64")
                self._coefficients = left.T @ moved @ right
        if self._weight != 1.0 or self._coefficients is not None:
            entries = self._weight * self._image[1].rows
            if self._coefficients is not None:
                entries = entries + products.cast(self._coefficients, self.dtype.name)
            self._become(entries)
            self._weight, self._coefficients = 1.0, None

    def _rows_of(self, name: str, x: Any, side: int) -> Any:
        """Return a vector or columns as rows of float32 or float64, after a check."""
        length = self.shape[1 - side]
        if not products.is_tensor(x):
            x = arguments.finite_array(name, x, shape=(length, "k")[: max(np.ndim(x), 1)])
        elif not x.is_floating_point():
            raise ArgumentTypeError(name, x.dtype, "a tensor of real numbers")
        elif x.ndim not in (1, 2) or x.shape[0] != length:
            raise ArgumentError(name, tuple(x.shape), f"a shape ({length},) or ({length}, k)")
        else:
            x = x.detach() if products.precision_of(x) in _ROUNDING else x.detach().float()
        return x[None] if x.ndim == 1 else x.T

    def _at_home(self, x: Any) -> Any:
        """Return x in the library and on the device of the vectors that are kept."""
        home = self._image[0].rows
        if products.is_tensor(x) and products.is_tensor(home):
            return x.to(home.device)
        return products.like(products.to_host(x), home)

    def _require_room(self, x: Any, side: int) -> None:
        """Raise an error if new vectors, and the copies of a call, do not fit in memory."""
        matrices = self._family.members if side == 0 else [self]
        length = self.shape[1] + sum(matrix.shape[0] for matrix in matrices)
        size = (2 * self.dtype.itemsize + 24) * len(x) * length
        if size > _NOTICED and not self.is_decided:
            require_memory("x", size, f"{self.asked} directions are stored, in {self.nbytes} bytes")

    def _shared(self, x: Any) -> AbstractContextManager[None]:
        """Return a context in which all processors share large products with rows x."""
        size = len(x) * sum(self.shape) * sum(self.asked)
        return nullcontext() if size < _LARGE or products.is_tensor(x) else sharing_products()

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Restore the state if an error or Ctrl-C ends the block.  Other threads wait."""
        with self._family.lock:
            restore = self.checkpoint()
            try:
                yield
            except BaseException:
                restore()
                raise

    # --- what LinearOperator asks for

    def _matvec(self, x: Any) -> Any:
        return self._product(x.reshape(-1), 0)

    def _rmatvec(self, x: Any) -> Any:
        return self._product(x.reshape(-1), 1)

    def _matmat(self, x: Any) -> Any:
        return self._product(x, 0)

    def _rmatmat(self, x: Any) -> Any:
        return self._product(x, 1)

    def _transpose(self) -> LinearOperator:
        return _Transposed(self)

    _adjoint = _transpose

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{rows}x{columns} {type(self).__name__}, asked {self.asked}, {self.nbytes} bytes>"


class GaussianMatrix(ImplicitMatrix):
    """A matrix with independent entries N(0, scale²), drawn by direction.

    Every program of products with W and Wᵀ, each of which may depend on all answers before, has
    the law that it has for a drawn matrix.  A call with k vectors takes about (rows + columns) ·
    (directions so far + k) · k operations, and keeps (rows + columns) · k numbers for new ones.

    Parameters
    ----------
    rows, columns : int
        Shape, at least 1.
    scale : float, optional
        Standard deviation of entries, above 0; 1/√columns by default.
    rng : None, int, sequence of int, SeedSequence, BitGenerator or Generator
        Source of a key of 64 bits.  With the same key the same calls give the same bits.
    dtype : {"float64", "float32"}, default "float64"
        Precision of the vectors that are kept, and of products with them.  If what is new of a
        vector is below 1e-12 (float32: 1e-6) of its length, it counts as rounding.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument has a value or type that is not allowed.

    Notes
    -----
    Let A be the directions of W so far, with B = W A, and C those of Wᵀ, with D = Wᵀ C.  The
    image of a new direction Q ⟂ A is then Z − C Cᵀ Z + C Dᵀ Q for independent normals Z of the
    same variance: the law of a Gaussian matrix given linear observations.

    Examples
    --------
    Products with a matrix of 8 TB:

    >>> import numpy as np
    >>> from bnmc.implicit import GaussianMatrix
    >>> W = GaussianMatrix(10**6, 10**6, rng=0)
    >>> y = W @ np.ones(10**6)
    >>> z = W.T @ y
    >>> bool(abs(z.sum() - y @ y) < 1e-9 * (y @ y))
    True
    >>> W.asked, W.nbytes
    ((1, 1), 32000000)
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        scale: float | None = None,
        rng: Any = None,
        dtype: object = "float64",
    ) -> None:
        rows = arguments.integer("rows", rows, low=1)
        columns = arguments.integer("columns", columns, low=1)
        scale = columns**-0.5 if scale is None else arguments.real("scale", scale, above=0.0)
        super().__init__(rows, columns, scale, rng, dtype)

    def join(self, other: GaussianMatrix) -> None:
        """Share the basis of columns with another matrix, which multiplies the same vectors.

        A product with one matrix draws the images of all, and each direction is kept once.  Neither
        may have directions yet, and both have the same number of columns.
        """
        if other is not self:
            self._leave()
            self._family = other._family
            self._family.members.append(self)

    def _draw(self, side: int, directions: Any, call: int, columns: NDArray[np.intp]) -> None:
        left, images, size = (
            self._basis[1 - side].rows,
            self._image[1 - side].rows,
            self.shape[side],
        )
        z = normals(self.key, call, columns, size, self.dtype.name, directions)
        if len(left):
            missing = products.inner(directions, images) - products.inner(z, left)
            z = z + products.gather([(missing, left)], size, "float64")
        self._image[side].append(z)


class HaarMatrix(ImplicitMatrix):
    """A uniform orthogonal matrix times a gain, drawn by direction.

    Parameters
    ----------
    size : int
        Rows and columns, at least 1.
    gain : float, default 1
        Factor, above 0.
    rng, dtype
        As in `GaussianMatrix`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument has a value or type that is not allowed.

    Notes
    -----
    Wᵀ C = D says W D = C: what is drawn of W is an isometry from one span to another.  So one
    pair of bases holds it, and a product on either side appends to both.  The image of a new
    direction is a Gaussian vector minus its part in the span of all images, orthonormalized with a
    positive diagonal.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.implicit import HaarMatrix
    >>> W = HaarMatrix(10**5, rng=0)
    >>> x = np.ones(10**5)
    >>> bool(np.allclose(W.T @ (W @ x), x))
    True
    """

    def __init__(
        self, size: int, *, gain: float = 1.0, rng: Any = None, dtype: object = "float64"
    ) -> None:
        size = arguments.integer("size", size, low=1)
        super().__init__(size, size, arguments.real("gain", gain, above=0.0), rng, dtype)

    def _begin(self, x: Any) -> None:
        super()._begin(x)
        self._image = self._basis[::-1]

    def _draw(self, side: int, directions: Any, call: int, columns: NDArray[np.intp]) -> None:
        images, size = self._basis[1 - side], self.shape[side]
        z = normals(self.key, call, columns, size, self.dtype.name, directions)
        z = products.cast(z, "float64")
        products.project(z, images.rows)
        z, _ = products.orthonormal(z, np.linalg.cholesky(products.to_host(products.inner(z, z))))
        images.append(z)


class _Family:
    """Matrices with one basis of columns, and the lock of all of them."""

    def __init__(self, members: list[ImplicitMatrix]) -> None:
        self.members, self.lock = members, threading.RLock()

    def begin(self, x: Any) -> None:
        """Start with no vectors, like x."""
        for matrix in self.members:
            matrix._begin(x)
            matrix._basis[0] = self.members[0]._basis[0]

    def __getstate__(self) -> list[ImplicitMatrix]:
        return self.members

    def __setstate__(self, members: list[ImplicitMatrix]) -> None:
        self.members, self.lock = members, threading.RLock()


class _Transposed(LinearOperator):
    """The transpose of a matrix, which shares its state."""

    def __init__(self, matrix: ImplicitMatrix) -> None:
        super().__init__(matrix.dtype, matrix.shape[::-1])  # type: ignore[call-arg]
        self._matrix = matrix

    __matmul__ = ImplicitMatrix.__matmul__

    def dot(self, x: Any) -> Any:
        """Return Wᵀ x, like `ImplicitMatrix.dot`."""
        if isinstance(x, (Number, LinearOperator)):
            return super().dot(x)  # type: ignore[arg-type]
        return self._matrix._product(x, 1)

    def _matvec(self, x: Any) -> Any:
        return self._matrix._rmatvec(x)

    def _rmatvec(self, x: Any) -> Any:
        return self._matrix._matvec(x)

    def _matmat(self, x: Any) -> Any:
        return self._matrix._rmatmat(x)

    def _rmatmat(self, x: Any) -> Any:
        return self._matrix._matmat(x)

    def _transpose(self) -> ImplicitMatrix:
        return self._matrix

    _adjoint = _transpose


def load(path: Any) -> GaussianMatrix | HaarMatrix:
    """Read a matrix that `save` wrote; it goes on with the same bits.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    GaussianMatrix or HaarMatrix

    Raises
    ------
    ArgumentError
        If the file cannot be read, is damaged, or is no such file.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from bnmc import implicit
    >>> W = implicit.GaussianMatrix(50, 40, rng=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     W.save(pathlib.Path(folder) / "w.npz")
    ...     same = implicit.load(pathlib.Path(folder) / "w.npz")
    >>> bool((W @ np.ones(40) == same @ np.ones(40)).all())
    True
    """
    name = files.as_path("path", path)
    allowed = "a file that save() of a matrix wrote"
    try:
        state = arrays_of(name.read_bytes())
        rows, columns = (int(size) for size in state["words"][:2])
        law, dtype = map(str, state["text"])
        matrix = (
            GaussianMatrix(rows, columns, dtype=dtype)
            if law == GaussianMatrix.__name__
            else HaarMatrix(rows, dtype=dtype)
        )
        matrix.restore(state)
    except (OSError, KeyError, ValueError) as error:
        raise ArgumentError("path", str(path), allowed, str(error)) from error
    return matrix
