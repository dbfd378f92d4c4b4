"""The names of constants in device functions; `build.constants_of` gives their values.

Most names are those of attributes of `Shape`, `Spec` or `Room`, which describe them; ``at_totals``
is the place ``shape.at.totals``.  A device function imports the names that it uses, and a `Linker`
puts the values in their place; it raises NameError if a name has no value.
"""

from __future__ import annotations

from typing import Any

from bnmc._kernels.gpu.device import Placeholder

_LATER: Any = Placeholder()

# --- of a `Spec`
columns = batch = inputs = source = _LATER
skipped = keeps_rows = scaled = single = _LATER
norm = centred = _LATER
subtracts_mean = over_features = is_convolved = in_passes = is_orthogonal = activates_first = (
    norm_first
) = _LATER
norm_in_branch = features_centred = covered = _LATER

# --- that follow from the dtype and the bias of a `Spec`
#: Numba's type and NumPy's type of the numbers of rows, and their unit roundoff.
kind = number = unit = _LATER
has_bias = _LATER

# --- of a `Shape`
threads = quads = groups = chunk = accumulators = tile_rows = stride = padded = _LATER
classes = edge = per_square = squares = entries = splits = line = per_entry = whole_rows = (
    vector
) = _LATER
element_words = shares = elements = share_line = per_round = scratch = vectors = parts = _LATER
vector_stride = _LATER
team = in_registers = _LATER
#: Of the products of the columns of two tiles.
cross_classes = cross_edge = cross_square = _LATER
#: Places in shared memory, in numbers of each array's own type.
at_totals = at_diagonal = at_column = at_means = at_grand = at_units = at_partial = _LATER
at_moments = at_flags = at_twin = at_zero = at_words = at_factor = at_tile = at_weights = _LATER
at_multiplied = at_shares = at_tile64 = _LATER
#: The factor of what a layer saw, and its pivots.
at_seen_factor = at_seen = _LATER

# --- of a `Room`, in a backward pass
at_root = at_mixing = at_first = at_second = at_delta = _LATER

# --- functions
#: The activation and its derivative.
sigma = derivative = _LATER
inverse_root = _LATER
#: Whether rows are summed as they are drawn.
bare = _LATER
#: Four numbers of a quad.
draw_normals = draw_weights = draw_biases = _LATER
#: The first of the functions that factor a matrix in registers, and that sum rows in registers.
eliminate_first = add_first_pass = _LATER
#: `factor.factorise` without a norm, and `drawing.add_made` of rows that are summed as drawn.
factorise_plain = add_bare = _LATER
