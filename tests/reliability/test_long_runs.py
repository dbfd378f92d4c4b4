"""The resident set of long runs does not grow."""

import json
import subprocess
import sys

import pytest

SOAK = """
import json, os, tempfile
import bnmc

resident = []

def note(done, total):
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    resident.append((done, size))

chain = bnmc.Chain(4, 2, "relu")
with tempfile.TemporaryDirectory() as folder:
    options = {options}
    run = bnmc.simulate(chain, {layers}, chains=1, rng=0, threads=1, progress=note, **options)
    assert run.complete
first, middle = {layers} // 10, {layers} // 2
before = [size for done, size in resident if first <= done < middle]
after = [size for done, size in resident if done >= middle]
step = max(1, len(resident) // 50)
print(json.dumps({{"before": max(before), "after": max(after), "n": len(before) + len(after),
                   "samples": resident[::step]}}))
"""


#: Ways to keep the results.
WAYS = {
    "moments": '{"reduce": "layer", "observables": "orthogonality_gap"}',
    "store": '{"store": folder + "/run.zarr", "every": 1000}',
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", WAYS)
def test_resident_set(way, option):
    """The most after half of the layers over the most before.

    Sizes before a tenth of the layers are left out.  A least size would count memory that is given
    back at the end as growth.
    """
    program = SOAK.format(options=WAYS[way], layers=option("soak-layers"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    print(sizes)
    assert sizes["after"] / sizes["before"] - 1.0 <= 0.01
