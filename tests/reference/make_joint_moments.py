"""Makes joint_moments.json: fourth moments of the named activations on the centred sphere.

Run it from the root of the repository, with the extra ``test``: some minutes for n = 4 and 5 in
mpmath (20 digits). It shares no method with the package. The hyperplanes x_i = 0 divide the sphere
|x| = √n, Σx = 0 into cells, in which every named activation is smooth. In the cell of k positive
samples, x is proportional to (p, −q) with p and q in simplices of k and n − k corners; the measure
on the sphere is a constant times dp dq / |(p, q)|^(n−1). Gauss-Legendre rules in Duffy's
coordinates of the simplices converge geometrically.
"""

import itertools
import json
from math import comb
from pathlib import Path

from mpmath import mp, mpf
from numpy.polynomial.legendre import leggauss

# Nodes per coordinate; the relative errors are below 1e-15 and 1e-10.
NODES = {4: 20, 5: 12}
SELU_ALPHA, SELU_SCALE = "1.6732632423543772848170429916717", "1.0507009873554804934193349852946"

ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": lambda x: max(x, mpf(0)),
    "leaky_relu": lambda x: x if x > 0 else x / 100,
    "abs": abs,
    "tanh": mp.tanh,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "sin": mp.sin,
    "erf": mp.erf,
    "elu": lambda x: x if x > 0 else mp.expm1(x),
    "celu": lambda x: x if x > 0 else mp.expm1(x),
    "selu": lambda x: mpf(SELU_SCALE) * (x if x > 0 else mpf(SELU_ALPHA) * mp.expm1(x)),
    "gelu": lambda x: x * (1 + mp.erf(x / mp.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + mp.exp(-x)),
}


def legendre(count):
    """Gauss-Legendre nodes on [0, 1], polished to full precision."""
    points = []
    for start in leggauss(count)[0]:
        x = mpf(float(start))
        for _ in range(4):
            value, slope = (
                mp.legendre(count, x),
                count * (x * mp.legendre(count, x) - mp.legendre(count - 1, x)) / (x * x - 1),
            )
            x -= value / slope
        slope = count * (x * mp.legendre(count, x) - mp.legendre(count - 1, x)) / (x * x - 1)
        points.append(((1 + x) / 2, 1 / ((1 - x * x) * slope**2)))
    return points


def simplex(corners, rule):
    """Points of the simplex with weights: Duffy's map of the cube."""
    for nodes in itertools.product(rule, repeat=corners - 1):
        point, left, weight = [], mpf(1), mpf(1)
        for dimension, (t, w) in zip(range(corners - 2, -1, -1), nodes, strict=True):
            weight *= w * left  # d(left · t)
            point.append(left * t)
            left *= 1 - t
            assert dimension >= 0
        yield [*point, left], weight


def moments(n):
    """m4, m31, m22, m211, m1111 of each activation."""
    rule = legendre(NODES[n])
    total = mpf(0)
    sums = {name: [mpf(0)] * 5 for name in ACTIVATIONS}
    for k in range(1, n):
        negatives = list(simplex(n - k, rule))
        for p, first in simplex(k, rule):
            for q, second in negatives:
                size = mp.sqrt(mp.fsum(v * v for v in (*p, *q)))
                weight = comb(n, k) * first * second / size ** (n - 1)
                total += weight
                x = [mp.sqrt(n) / size * v for v in (*p, *(-v for v in q))]
                for name, activation in ACTIVATIONS.items():
                    s = [activation(v) for v in x]
                    s1, s2, s3, s4 = (mp.fsum(v**power for v in s) for power in range(1, 5))
                    of = (
                        s4 / n,
                        (s3 * s1 - s4) / (n * (n - 1)),
                        (s2**2 - s4) / (n * (n - 1)),
                        (s2 * s1**2 - s2**2 - 2 * s3 * s1 + 2 * s4) / (n * (n - 1) * (n - 2)),
                        (s1**4 - 6 * s1**2 * s2 + 3 * s2**2 + 8 * s1 * s3 - 6 * s4)
                        / (n * (n - 1) * (n - 2) * (n - 3)),
                    )
                    sums[name] = [a + weight * b for a, b in zip(sums[name], of, strict=True)]
    return {name: [float(mp.nstr(v / total, 15)) for v in values] for name, values in sums.items()}


if __name__ == "__main__":
    mp.dps = 20
    tables = {str(n): moments(n) for n in NODES}
    path = Path(__file__).with_name("joint_moments.json")
    path.write_text(json.dumps(tables, indent=1) + "\n")
