"""Networks that are trained: images, networks, a deterministic trainer, and runs over seeds.

The figures of *rank collapse* and *orthogonalizes* that train networks share this code.  Read
`trainer.py` first: `train` is stochastic gradient descent on one thread.  `images.py` reads the
images, `networks.py` builds the networks, and `runs.py` trains several networks of each case and
has their means over the epochs.
All training is in float64, so results do not depend on the processor beyond rounding.
"""
