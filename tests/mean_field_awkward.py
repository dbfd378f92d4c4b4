"""Activations that are hard to integrate, with reference values of their mean-field fixed points.

``python tests/mean_field_awkward.py`` adds the values that are missing in
`tests/reference/awkward_fixed_points.json`; without that file it makes all, in some minutes.  The
values are integrals of the formulas in `MeanField.fixed_point` and `limit`.
For an infinite batch (one normal variable), for n = 3 (a circle) and for n = 2 under the norm that
does not centre, they are double-exponential rules in mpmath with 36 or 100 digits.  For n = 10 they
are Gegenbauer series of 700 terms, with coefficients from Gauss-Legendre rules on graded panels.
"""

import ast
import json
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mean_field_oracles import gegenbauer_fixed_point

from bnmc.chain.activations import Activation

PATH = Path(__file__).parent / "reference" / "awkward_fixed_points.json"

#: Infinite: the number does not exist as a finite one.
INFINITE = "infinite"


class Awkward(NamedTuple):
    """An activation as text, and the points where it or its derivative is not smooth.

    It is steep if the mean of its squared derivative is infinite, or is not computed.
    """

    value: str
    points: tuple[str, ...] = ()
    reach: float = 14.0
    steep: bool = False


def _sign(power, at="x"):
    return f"copysign(abs({at})**{power}, {at})"


def _bump(line, place, width):
    """A narrow bump on a line."""
    points = tuple(f"{place}+{k}*{width}" for k in range(-12, 13, 2))
    return Awkward(f"{line}+exp(-((x-{place})/{width})**2)", points)


FUNCTIONS = {
    # growth
    "exp 4x": Awkward("exp(4*x)", reach=26.0),
    "exp |x|^1.5": Awkward("exp(abs(x)**1.5)", ("0",), 32.0),
    "exp x²/5": Awkward("exp(x*x/5)", reach=36.0),
    "exp x²/4.2": Awkward("exp(x*x/4.2)", reach=70.0),
    "exp x²/4": Awkward("exp(x*x/4)", steep=True),
    "exp x⁴/1000": Awkward("exp(x*x*x*x/1000)", steep=True),
    "exp(x²/4 − |x|)": Awkward("exp(x*x/4-abs(x))", ("0",), 45.0),
    "cosh 3x": Awkward("cosh(3*x)", reach=22.0),
    "x⁹": Awkward("x**9", reach=20.0),
    "(x/3)²⁰": Awkward("(x/3)**20", reach=24.0),
    # singular derivatives
    "|x|^.3": Awkward("abs(x)**0.3", ("0",), steep=True),
    "|x|^.45": Awkward("abs(x)**0.45", ("0",), steep=True),
    "|x|^.5": Awkward("sqrt(abs(x))", ("0",), steep=True),
    "|x|^.6": Awkward("abs(x)**0.6", ("0",)),
    "±|x|^.9": Awkward(_sign(0.9), ("0",)),
    "|x − .3|^.6": Awkward("abs(x-0.3)**0.6", ("0.3",)),
    "|x − sin 1|^.8": Awkward("abs(x-sin(1.0))**0.8", ("sin(1.0)",)),
    "√max(x, 0)": Awkward("sqrt(max(x,0.0))", ("0",), steep=True),
    "∛(x − 1)": Awkward(_sign("(1.0/3)", "(x-1.0)"), ("1",), steep=True),
    "x log|x|": Awkward("x*log(abs(x)) if x != 0.0 else 0.0", ("0",)),
    "|x|^1.3": Awkward("abs(x)**1.3", ("0",)),
    "max(x − .2, 0)^1.5": Awkward("max(x-0.2,0.0)**1.5", ("0.2",)),
    # kinks that are not declared
    "|x − .3|": Awkward("abs(x-0.3)", ("0.3",)),
    "|x − sin 1|": Awkward("abs(x-sin(1.0))", ("sin(1.0)",)),
    "30 + max(x − .7123, 0)": Awkward("30.0+max(x-0.7123,0.0)", ("0.7123",)),
    "1000 + |x − sin 1|": Awkward("1000.0+abs(x-sin(1.0))", ("sin(1.0)",)),
    "max(x − sin 2, 0)²": Awkward("max(x-sin(2.0),0.0)**2", ("sin(2.0)",)),
    "hard tanh": Awkward("min(max(x,-1.0),1.0)", ("-1", "1")),
    "tanh + max(x, 0)/1000": Awkward("tanh(x)+1e-3*max(x,0.0)", ("0",)),
    "x + |x − sin 1|/10⁶": Awkward("x+1e-6*abs(x-sin(1.0))", ("sin(1.0)",)),
    "bent at ±2.5": Awkward("x if abs(x) < 2.5 else 0.5*x+copysign(1.25,x)", ("-2.5", "2.5")),
    # jumps
    "step at .3": Awkward("1.0 if x > 0.3 else 0.0", ("0.3",), steep=True),
    "sign at sin 1": Awkward("1.0 if x > sin(1.0) else -1.0", ("sin(1.0)",), steep=True),
    "x + 1e-9 step": Awkward("x+(1e-9 if x > sin(1.0) else 0.0)", ("sin(1.0)",), steep=True),
    "step at 2.9999": Awkward("1.0 if x > 2.9999 else 0.0", ("2.9999",), steep=True),
    "step at 1.4142": Awkward("x+(1.0 if x > 1.4142 else 0.0)", ("1.4142",), steep=True),
    "rare step": Awkward("x+(100.0 if x > 4.5 else 0.0)", ("4.5",), steep=True),
    "zero up to 2.75": Awkward("0.0 if abs(x) < 2.75 else x", ("-2.75", "2.75"), steep=True),
    # narrow features
    "bump at .7": _bump("x", "0.7", "1e-6"),
    "bump at sin 1": _bump("tanh(x)", "sin(1.0)", "1e-6"),
    "narrow bump at .25": _bump("x", "0.25", "1e-9"),
    "box at sin 1": Awkward(
        "x+(1.0 if abs(x-sin(1.0)) < 5e-5 else 0.0)", ("sin(1.0)-5e-5", "sin(1.0)+5e-5"), steep=True
    ),
    "bump of 1e-3": _bump("0", "0", "1e-3"),
    "1/(1 + 10⁴x²)": Awkward("1/(1+1e4*x*x)", ("-0.3", "-0.03", "0", "0.03", "0.3")),
    "log(x² + 1e-6)": Awkward(
        "log(x*x+1e-6)", ("-0.1", "-0.01", "-1e-3", "0", "1e-3", "0.01", "0.1")
    ),
    # oscillation
    "sin 20x": Awkward("sin(20*x)"),
    "x + sin 45x": Awkward("x+sin(45*x)"),
    "sin 1/(x² + .05)": Awkward("sin(1/(x*x+0.05))", ("-0.2", "0", "0.2")),
    "cos x²": Awkward("cos(x*x)"),
    # flat pieces
    "exp(−1/x)": Awkward("exp(-1/x) if x > 1e-3 else 0.0", ("0", "0.1")),
    "max(|x| − 1, 0)³": Awkward("max(abs(x)-1.0,0.0)**3", ("-1", "1")),
    # scales
    "1e-100 tanh": Awkward("1e-100*tanh(x)"),
    "1e100 (x + cos x)": Awkward("1e100*(x+cos(x))"),
    "1 + 1e-8 tanh": Awkward("1.0+1e-8*tanh(x)"),
    "tanh 300x": Awkward("tanh(300*x)", tuple(f"{k}e-3" for k in range(-60, 61, 5))),
    "tanh 1e5x": Awkward("tanh(1e5*x)", ("-0.01", *(f"{k}e-5" for k in range(-20, 21)), "0.01")),
}


#: The functions that the texts call, beside those of Python.
NAMES = ("exp", "sqrt", "cosh", "sinh", "log", "tanh", "sin", "cos", "copysign")


def scalar(text):
    """A text as a function of one float."""
    return eval(f"lambda x: {text}", {name: getattr(math, name) for name in NAMES})


def activation(name):
    """The activation, without declared kinks."""
    return Activation(scalar(FUNCTIONS[name].value), name=name)


class Plain:
    """The activation as NumPy functions, which need no compilation; no kink is declared."""

    builtin, kinks = False, ()

    def __init__(self, name):
        self.name = name
        tree = _Vectorized().visit(ast.parse(f"lambda x: {FUNCTIONS[name].value}", mode="eval"))
        scope = {key: getattr(np, key) for key in NAMES} | {
            "max": np.maximum,
            "min": np.minimum,
            "where": np.where,
        }
        self.vectorized = eval(compile(ast.fix_missing_locations(tree), name, "eval"), scope)

    def __call__(self, x):
        with np.errstate(all="ignore"):
            return self.vectorized(np.asarray(x, dtype=np.float64)) + np.zeros(np.shape(x))

    def scalar(self, dtype):
        return scalar(FUNCTIONS[self.name].value)


class _Vectorized(ast.NodeTransformer):
    """Writes ``a if c else b`` as ``where(c, a, b)``."""

    def visit_IfExp(self, node):
        self.generic_visit(node)
        where = ast.Name("where", ast.Load())
        return ast.Call(where, [node.test, node.body, node.orelse], [])


# --- the reference values


def compiled(text, mp):
    """A function of mpmath numbers."""
    scope = {name: getattr(mp, name) for name in NAMES if name != "copysign"}
    scope["copysign"] = lambda a, b: a if b >= 0 else -a
    return eval(f"lambda x: {text}", scope)


def places(function, mp):
    return sorted(mp.mpf(eval(point, {"sin": mp.sin})) for point in function.points)


def nodes_of(edges, mp):
    """Nodes and weights of the double-exponential rule on each interval between the edges."""
    half, end = (90, 5.2) if mp.dps > 50 else (72, 4.2)
    step = mp.mpf(end) / half
    rule = []
    for k in range(-half, half + 1):
        t = step * k
        fraction = 1 / (1 + mp.exp(-mp.pi * mp.sinh(t)))
        share = step * mp.pi * mp.cosh(t) * fraction / (1 + mp.exp(mp.pi * mp.sinh(t)))
        rule.append((fraction, 1 / (1 + mp.exp(mp.pi * mp.sinh(t))), share))
    nodes = []
    for low, high in pairwise(edges):
        for left, right, share in rule:
            x = low + (high - low) * left if left < 0.5 else high - (high - low) * right
            if low < x < high and share > 1e-60:
                nodes.append((x, (high - low) * share))
    return nodes


def cut(points, widest, mp):
    """Edges, with intervals of at most a width."""
    edges = [points[0]]
    for low, high in pairwise(points):
        count = max(1, int(mp.ceil((high - low) / widest)))
        edges += [low + (high - low) * k / count for k in range(1, count + 1)]
    return edges


def infinite_batch(function, mp):
    """The numbers of `limit`, from integrals of one normal variable."""
    if function.value in ENDLESS:
        return INFINITE
    value = compiled(function.value, mp)
    spots = places(function, mp)
    end = mp.mpf(function.reach)
    widest = mp.mpf("0.1") if function.value in OSCILLATING else mp.mpf(1)
    rows = nodes_of(cut([-end, *spots, end], widest, mp), mp)
    weights = [w * mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi) for x, w in rows]
    values = [value(x) for x, _ in rows]

    def mean(terms):
        return mp.fsum(w * term for w, term in zip(weights, terms, strict=True))

    first = mean(values)
    tilde = [v - first for v in values]
    mu = mean([v * v for v in tilde])
    b = mu + first**2
    along = mean([v * x for v, (x, _) in zip(values, rows, strict=True)])
    bent = mean([v * v * (x * x - 1) for v, (x, _) in zip(tilde, rows, strict=True)])
    energy = mp.inf if function.steep else mean([mp.diff(value, x) ** 2 for x, _ in rows])
    return {
        "b": b,
        "c": first**2 / b,
        "eigenvalues": [bent / (2 * mu), along**2 / mu],
        "backward_rate": energy / mu,
        "cross_batch": first**2,
        "cross_batch_rate": along**2 / mu,
    }


def three_samples(function, mp):
    """The numbers for n = 3 and the norm "batch": φ_i = √2 cos(θ + 2πi/3), θ uniform."""
    value, root = compiled(function.value, mp), mp.sqrt(2)
    angles = {mp.mpf(0), 2 * mp.pi}
    turn = 2 * mp.pi / 3
    for spot in places(function, mp):
        if abs(spot) < root:
            for shift in (0, turn):
                angles |= {(sign * mp.acos(spot / root) - shift) % (2 * mp.pi) for sign in (1, -1)}
    widest = mp.pi / (64 if function.value in OSCILLATING else 8)
    rows = nodes_of(cut(sorted(angles), widest, mp), mp)
    pairs = [(root * mp.cos(t), root * mp.cos(t + turn), w / (2 * mp.pi)) for t, w in rows]
    rows = [(value(x), value(y), x, w) for x, y, w in pairs]

    def mean(term):
        return mp.fsum(w * term(f, g, x) for f, g, x, w in rows)

    first = mean(lambda f, g, x: f)
    b = mean(lambda f, g, x: f * f)
    product = mean(lambda f, g, x: f * g)
    square = mean(lambda f, g, x: f * f * (x * x - 1))
    pair = mean(lambda f, g, x: f * g * (x * x - 1))
    along = mean(lambda f, g, x: f * x)
    mu = b - product
    n = 3
    gamma = mp.gamma(mp.mpf(n) / 2) / mp.gamma(mp.mpf(n - 1) / 2)
    return {
        "b": b,
        "c": product / b,
        "eigenvalues": [n / (2 * mu) * (square / 3 - pair * 4 / 3)],
        "backward_rate": mp.inf,
        "cross_batch": first**2,
        "cross_batch_rate": mp.mpf(2 * n) / (n - 1) ** 2 * gamma**2 * along**2 / mu,
    }


def two_samples_uncentred(function, mp):
    """The numbers for n = 2 and the other norm: φ = √2 (cos θ, sin θ), θ of a correlated pair."""
    value, root = compiled(function.value, mp), mp.sqrt(2)
    angles = {mp.mpf(0), mp.pi / 2, mp.pi, 3 * mp.pi / 2, 2 * mp.pi}
    for spot in places(function, mp):
        if abs(spot) < root:
            for turn in (0, mp.pi / 2):
                angles |= {(sign * mp.acos(spot / root) + turn) % (2 * mp.pi) for sign in (1, -1)}
    rows = nodes_of(cut(sorted(angles), mp.pi / 8, mp), mp)
    data = [(value(root * mp.cos(t)), value(root * mp.sin(t)), mp.sin(2 * t), w) for t, w in rows]

    def moments(c):
        def density(s):
            return mp.sqrt(1 - c * c) / (2 * mp.pi * (1 - c * s))

        square = mp.fsum(w * density(s) * (f * f + g * g) / 2 for f, g, s, w in data)
        return mp.fsum(w * density(s) * f * g for f, g, s, w in data), square

    def excess(c):
        product, square = moments(c)
        return product / square - c

    c = mp.findroot(excess, (0.2, 0.4), tol=1e-24)
    slope = (excess(c + mp.mpf("1e-12")) - excess(c - mp.mpf("1e-12"))) / mp.mpf("2e-12") + 1
    return {"b": moments(c)[1], "c": c, "eigenvalues": [slope]}


def ten_samples(function, terms=700, order=40):
    """The numbers for n = 10 and the norm "batch", from Gegenbauer series (see module)."""
    import mpmath

    n, m, spots = 10, 9, [float(spot) for spot in places(function, mpmath.mp)]
    value = np.vectorize(scalar(function.value), otypes=[float])
    edges = {-3.0, 3.0, *np.linspace(-3.0, 3.0, 241)}
    for spot in spots:
        steps = 0.1 * 0.5 ** np.arange(46)
        edges |= {spot, *(spot + steps), *(spot - steps)}
    ends = np.array(sorted(edge for edge in edges if -3.0 <= edge <= 3.0))
    at, share = np.polynomial.legendre.leggauss(order)
    half = 0.5 * np.diff(ends)[:, None]
    x = (ends[:-1, None] + half * (at + 1.0)).ravel()
    weight = (half * share).ravel() * (1.0 - x * x / m) ** 3
    weight /= weight.sum()
    # NaN if there is no jump inside of the sphere, but the derivative is not given.
    energy = math.inf if any(abs(spot) < 3 for spot in spots) else math.nan
    if not function.steep:
        exact = compiled(function.value, mpmath.mp)
        slope = np.array([float(mpmath.mp.diff(exact, each)) for each in x])
        energy = weight @ (slope**2 * (m - x * x))
    b, c, *eigenvalues, backward, between = gegenbauer_fixed_point(
        value, n, terms, (x, weight), energy
    )
    return {
        "b": b,
        "c": c,
        "eigenvalues": eigenvalues,
        "backward_rate": backward,
        "cross_batch": (weight @ value(x)) ** 2,
        "cross_batch_rate": between,
    }


def as_text(value, mp):
    if isinstance(value, dict):
        return {key: as_text(part, mp) for key, part in value.items()}
    if isinstance(value, list):
        return [as_text(part, mp) for part in value]
    return value if isinstance(value, str) else mp.nstr(mp.mpf(value), 20)


def main():
    import mpmath

    mp = mpmath.mp
    table = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    for name, function in FUNCTIONS.items():
        # Square-integrable singularities need digits: 60 % of these are lost for |x|^-.8.
        mp.dps = 100 if "^.6" in name or "^.8" in name or "^.9" in name else 36
        makers = {
            "inf": partial(infinite_batch, function, mp),
            "3": partial(three_samples, function, mp),
            "10": partial(ten_samples, function),
        }
        if name in UNCENTRED:
            makers["2 uncentred"] = partial(two_samples_uncentred, function, mp)
        row = table.setdefault(name, {})
        for batch, make in makers.items():
            # E σ² of exp(x²/4) is infinite.  A function may be constant on a small sphere.
            if batch == "10" and function.value in ENDLESS:
                continue
            if batch not in row and (name, batch) not in CONSTANT:
                row[batch] = as_text(make(), mp)
        print(name, flush=True)
        PATH.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


#: Functions that need short intervals.
OSCILLATING = ("sin(20*x)", "x+sin(45*x)", "sin(1/(x*x+0.05))", "cos(x*x)")

#: E σ² is infinite for a normal variable.
ENDLESS = ("exp(x*x/4)", "exp(x*x*x*x/1000)")

#: Functions and batches for which σ is constant on the sphere.
CONSTANT = [(name, "3") for name in ("step at 2.9999", "zero up to 2.75")]

#: σ is 0 except at the very edge of the sphere, so the series has too few terms.
CONSTANT += [("step at 2.9999", "10")]

#: Functions whose fixed point is also computed for n = 2 under norm "batch-uncentred".
UNCENTRED = (
    "|x − .3|",
    "step at .3",
    "log(x² + 1e-6)",
)

if __name__ == "__main__":
    main()
