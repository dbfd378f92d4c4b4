"""The names of all figures, where their functions are, and what they find.

This module imports no figure: `bnmc.experiments.names` and the help of commands should come at
once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bnmc._support.arguments import choice

if TYPE_CHECKING:
    from bnmc.experiments.experiment import Experiment

#: By name, paper by paper: the function within `bnmc.experiments`, and the finding.
FIGURES = {
    "bridging-1a": ("bridging.fig_1a",
        "with batch norm the error of the mean field stays constant over depth"),
    "bridging-1b": ("bridging.fig_1b",
        "the distance from the fixed point falls with slope −1/2 in the width"),
    "bridging-2": ("bridging.fig_2",
        "spectra of deep layers are wider than the Marchenko-Pastur law"),
    "bridging-poster": ("bridging.poster",
        "the error converges over depth, and grows with the batch"),
    "bridging-two-inputs": ("bridging.two_inputs",
        "two inputs through one network end close, and closer in wide networks"),
    "bridging-conditioning": ("bridging.conditioning",
        "all but one eigenvalue of the Gram matrix nearly coincide over depth"),
    "bridging-certificate": ("bridging.certificate",
        "seven activations mix: certified bounds, where the paper assumes it"),
    "orthogonalizes-1": ("orthogonalizes.fig_1",
        "batch norm makes two samples nearly orthogonal; without it they align"),
    "orthogonalizes-2a": ("orthogonalizes.fig_2a",
        "batch norm makes nearly equal samples nearly orthogonal over depth"),
    "orthogonalizes-2b": ("orthogonalizes.fig_2b",
        "the orthogonality gap falls with slope −1/2 in the width"),
    "orthogonalizes-3": ("orthogonalizes.fig_3",
        "deeper networks without norm start less orthogonal, train more slowly"),
    "orthogonalizes-4": ("orthogonalizes.fig_4",
        "an orthogonal start has the gap of batch norm, but trains more slowly"),
    "orthogonalizes-6": ("orthogonalizes.fig_6",
        "the Gram matrix deviates from its mean with slope −1/2 in the width"),
    "orthogonalizes-7": ("orthogonalizes.fig_7",
        "convolutions train faster with batch norm than from other starts"),
    "orthogonalizes-wasserstein": ("orthogonalizes.wasserstein",
        "hidden layers approach a Gaussian law with slope −1 in the width"),
    "rank-collapse-1": ("rank_collapse.fig_1",
        "without batch norm the rank collapses with depth, and training fails"),
    "rank-collapse-2": ("rank_collapse.fig_2", "without batch norm the rank falls to 1 over depth"),
    "rank-collapse-3a": ("rank_collapse.fig_3a",
        "the rank grows at least like the square root of the width"),
    "rank-collapse-3b": ("rank_collapse.fig_3b",
        "from nearly equal samples, nine of ten eigenvalues rise over depth"),
    "rank-collapse-4": ("rank_collapse.fig_4",
        "pre-training for the rank helps deep networks less than batch norm"),
    "rank-collapse-5": ("rank_collapse.fig_5",
        "positive weights break batch norm: the accuracy stays low"),
    "rank-collapse-6": ("rank_collapse.fig_6",
        "networks of higher initial rank reach a higher accuracy"),
    "rank-collapse-8": ("rank_collapse.fig_8", "the regularity constant falls with the width"),
    "rank-collapse-9": ("rank_collapse.fig_9",
        "the mean square of M grows nearly like the power 3/2 of the width"),
    "rank-collapse-10": ("rank_collapse.fig_10",
        "without norm the samples align in the last layer, and training fails"),
    "rank-collapse-lemma-3": ("rank_collapse.lemma_3",
        "linear networks without batch norm collapse, also with skips"),
    "rank-collapse-centring": ("rank_collapse.centring",
        "in linear networks, centring costs the rank of one sample"),
    "gradients-explosion": ("gradients.explosion",
        "with batch norm gradients explode with depth, for 13 activations"),
    "gradients-orthogonal": ("gradients.orthogonal",
        "orthogonal weights stop the explosion only if linear, batch = width"),
    "gradients-directions": ("gradients.directions",
        "without norm, gradients of samples align over depth"),
    "isometry-spectrum": ("gradients.isometry_spectrum",
        "batch norm spreads the singular values of Jacobians"),
    "fisher": ("gradients.fisher",
        "with batch norm the largest Fisher eigenvalue falls with samples"),
    "limits-ntk-convergence": ("limits.ntk_convergence",
        "tangent kernels approach infinite width with slope −1/2"),
    "limits-alignment": ("limits.alignment",
        "true labels align with the tangent kernel, and are learnt sooner"),
    "limits-complexity": ("limits.complexity",
        "the bound of Arora et al. is vacuous once labels are randomized"),
    "limits-plane": ("limits.plane",
        "four properties divide the limits of infinite width into regions"),
    "limits-kl": ("limits.kl", "of five limits, two move far away from networks of width 128"),
    "limits-exponents": ("limits.exponents",
        "powers of the width agree with the theory, but for changes of kernels"),
    "limits-constant-kernel": ("limits.constant_kernel",
        "constant kernels beat trained convolutional networks of small width"),
    "training-kernel-change": ("training_law.kernel_change",
        "the tangent kernel changes less with the width, but not under μP"),
    "training-orthogonal-start": ("training_law.orthogonal_start",
        "of three starts, rank-maximized weights reach the lowest loss"),
    "coordinate-check": ("training_law.coordinate_check",
        "only under μP and Muon all layers move alike at every width"),
    "training-limits":
        ("training_law.logit_divergences", "trained logits beside those of width 128, to 10^5"),
    "training-one-step": ("training_law.one_step",
        "a step flattens exploding gradients, by two mechanisms"),
    "training-mean-field": ("training_law.mean_field_depth",
        "outputs of mean-field tanh networks vanish from three layers on"),
    "stability-atlas": ("beyond.stability_atlas",
        "the fixed point is unstable for gelu from batch 39, for silu from 26"),
    "rates": ("beyond.rates", "five estimates of the rate of mixing agree with the mean field"),
    "scale": ("beyond.scale", "the distance falls with slope −1/2 up to a width of a million"),
    "edge-of-chaos": ("beyond.edge_of_chaos_diagram",
        "differences grow in the chaotic phase and shrink in the ordered one"),
    "gap": ("beyond.gap", "the mean square distance is 0.98 to 1.04 times its prediction"),
    "norms": ("beyond.norms", "of five norms, only batch norm keeps ReLU samples apart over depth"),
    "isometry": ("beyond.isometry", "the isometry gap falls if the norm follows the activation"),
    "digits": ("beyond.digits", "handwritten digits converge to the fixed point over depth"),
    "conv": ("beyond.conv", "batch norm keeps the rank of random convolutions over depth"),
    "wider-than-memory": ("beyond.wider_than_memory",
        "an MLP and a transformer approach their limits with slope −1/2"),
    "depth-over-width":
        ("beyond.depth_over_width", "networks nearly as deep as wide: norms, tangent kernels"),
    "gpt-sizes": ("beyond.gpt_sizes",
        "GPT-2's initialization freezes attention at the width of GPT-3"),
    "outlook-table": ("outlooks.outlook_table",
        "the outlook finds most failures of training, with few false alarms"),
}  # fmt: skip


def function_of(name: str) -> Callable[..., Experiment]:
    """Return the public function of a figure.

    Raises
    ------
    UnknownNameError
        If there is no figure of this name.
    """
    package, function = FIGURES[choice("name", name, FIGURES)][0].split(".")
    module = importlib.import_module(f"{__package__}.{package}")
    figure: Callable[..., Experiment] = getattr(module, function)
    return figure


def sizes_of(name: str) -> tuple[Any, Any]:
    """Return the default sizes of a figure, and those of ``full=True``.

    Raises
    ------
    UnknownNameError
        If there is no figure of this name.
    """
    sizes: tuple[Any, Any] = vars(function_of(name))["sizes"]
    return sizes
