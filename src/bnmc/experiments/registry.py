"""The names of all figures, where their functions are, and what they show.

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

#: By name, paper by paper: the function within `bnmc.experiments`, and the description.
FIGURES = {
    "bridging-1a":
        ("bridging.fig_1a", "error of the mean field over depth, with and without batch norm"),
    "bridging-1b": ("bridging.fig_1b", "distance from the fixed point against width"),
    "bridging-2":
        ("bridging.fig_2", "spectra for six activations, beside the Marchenko-Pastur law"),
    "bridging-poster":
        ("bridging.poster", "distance from the fixed point over depth, width and batch"),
    "bridging-two-inputs":
        ("bridging.two_inputs", "two inputs through one network, certified without the theory"),
    "bridging-conditioning":
        ("bridging.conditioning", "condition of the Gram matrix on its n - 1 bulk eigenvalues"),
    "bridging-certificate":
        ("bridging.certificate", "certified mixing of each activation, which the paper assumes"),
    "orthogonalizes-1":
        ("orthogonalizes.fig_1", "cosine of two samples over depth, with and without batch norm"),
    "orthogonalizes-2a":
        ("orthogonalizes.fig_2a", "orthogonality gap over depth, from nearly equal samples"),
    "orthogonalizes-2b": ("orthogonalizes.fig_2b", "orthogonality gap against width, slope -1/2"),
    "orthogonalizes-3":
        ("orthogonalizes.fig_3", "loss and orthogonality gap in training, for several depths"),
    "orthogonalizes-4":
        ("orthogonalizes.fig_4", "training from orthogonal representations, and with batch norm"),
    "orthogonalizes-6": (
        "orthogonalizes.fig_6", "distance of the Gram matrix from its mean, for other activations"
    ),
    "orthogonalizes-7":
        ("orthogonalizes.fig_7", "training convolutions from orthogonal representations"),
    "orthogonalizes-wasserstein":
        ("orthogonalizes.wasserstein", "distance of hidden layers from a Gaussian law, and bound"),
    "rank-collapse-1":
        ("rank_collapse.fig_1", "rank and accuracy of trained networks against depth"),
    "rank-collapse-2": ("rank_collapse.fig_2", "rank over depth, with and without batch norm"),
    "rank-collapse-3a": ("rank_collapse.fig_3a", "rank against width, for each gamma"),
    "rank-collapse-3b":
        ("rank_collapse.fig_3b", "eigenvalues of M over depth, from nearly equal samples"),
    "rank-collapse-4":
        ("rank_collapse.fig_4", "training after pre-training for the rank, and with batch norm"),
    "rank-collapse-5":
        ("rank_collapse.fig_5", "training with batch norm that positive weights have broken"),
    "rank-collapse-6": ("rank_collapse.fig_6", "rank in training, from several initial ranks"),
    "rank-collapse-8": ("rank_collapse.fig_8", "regularity constant against width"),
    "rank-collapse-9": ("rank_collapse.fig_9", "mean square of M against width"),
    "rank-collapse-10":
        ("rank_collapse.fig_10", "directions of gradients in training, with and without norm"),
    "rank-collapse-lemma-3":
        ("rank_collapse.lemma_3", "collapse without batch norm, with and without residual branch"),
    "rank-collapse-centring":
        ("rank_collapse.centring", "rank with batch norm that centres and that does not"),
    "gradients-explosion": ("gradients.explosion", "gradient norms over depth, for 13 activations"),
    "gradients-orthogonal":
        ("gradients.orthogonal", "gradient norms over depth, Gaussian and orthogonal weights"),
    "gradients-directions":
        ("gradients.directions", "cosines between gradients of samples over depth"),
    "isometry-spectrum":
        ("gradients.isometry_spectrum", "spectra of Jacobians over depth, with and without norm"),
    "fisher":
        ("gradients.fisher", "largest eigenvalue of the Fisher matrix, with and without norm"),
    "limits-ntk-convergence":
        ("limits.ntk_convergence", "tangent kernels against width, slope -1/2"),
    "limits-alignment":
        ("limits.alignment", "true and random labels: alignment, spectrum, convergence"),
    "limits-complexity":
        ("limits.complexity", "bound of Arora et al. and test error, labels randomized"),
    "limits-plane":
        ("limits.plane", "limits of infinite width: regions, properties, named scalings"),
    "limits-kl": ("limits.kl", "logits of five limits beside those of width 128, in training"),
    "limits-exponents":
        ("limits.exponents", "powers of the width in training, measured and theory"),
    "limits-constant-kernel":
        ("limits.constant_kernel", "convolutional networks beside their constant kernels"),
    "training-kernel-change":
        ("training_law.kernel_change", "change of the tangent kernel in training against width"),
    "training-orthogonal-start":
        ("training_law.orthogonal_start", "training from orthogonal and rank-maximized weights"),
    "coordinate-check":
        ("training_law.coordinate_check", "movement of layers in a step against the width"),
    "training-limits":
        ("training_law.logit_divergences", "trained logits beside those of width 128, to 10^5"),
    "training-one-step":
        ("training_law.one_step", "a step flattens exploding gradients, by two mechanisms"),
    "training-mean-field":
        ("training_law.mean_field_depth", "mean-field outputs of one to four hidden layers"),
    "stability-atlas":
        ("beyond.stability_atlas", "for which batch sizes the fixed point is stable"),
    "rates": ("beyond.rates", "rate of mixing against batch and width, by every estimator"),
    "scale": ("beyond.scale", "widths up to a million, and batches up to 512"),
    "edge-of-chaos":
        ("beyond.edge_of_chaos_diagram", "phases of networks without norm, with measured points"),
    "gap": ("beyond.gap", "mean square distance from the fixed point, measured over predicted"),
    "norms": ("beyond.norms", "rank, correlation and gradients over depth, for each norm"),
    "isometry":
        ("beyond.isometry", "isometry gap over depth, norm before and after the activation"),
    "digits": ("beyond.digits", "handwritten digits converge to the mean field over depth"),
    "conv":
        ("beyond.conv", "rank of convolutional networks over depth, with and without batch norm"),
    "wider-than-memory":
        ("beyond.wider_than_memory", "MLP and transformer of widths to a million, slope -1/2"),
    "depth-over-width":
        ("beyond.depth_over_width", "networks nearly as deep as wide: norms, tangent kernels"),
    "gpt-sizes":
        ("beyond.gpt_sizes", "attention from GPT-2 to GPT-3, three rules of initialization"),
    "outlook-table":
        ("outlooks.outlook_table", "whether a model trains: the outlook, and the outcome"),
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
