"""Digits, and files of MNIST, Fashion-MNIST and CIFAR-10."""

import gzip
import tracemalloc

import numpy as np
import pytest
from experiment_checks import idx

from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.experiments.training.images import digits, images

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 5, 5), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2], dtype=np.uint8)


def header(*axes):
    return bytes([0, 0, 8, len(axes)]) + b"".join(axis.to_bytes(4, "big") for axis in axes)


def test_digits_have_equal_counts_of_all_classes():
    loaded = images(None, 70, 20)
    assert loaded.pixels.shape == (60, 1, 8, 8)
    assert loaded.features == 64
    np.testing.assert_array_equal(np.bincount(loaded.labels), np.full(10, 6))
    np.testing.assert_array_equal(loaded.pixels.reshape(60, 64).T, digits(60))
    assert len(images(None, 10**6, 100).labels) == 1700


@pytest.mark.parametrize("names", [
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ("train-images.idx3-ubyte", "train-labels.idx1-ubyte"),
])  # fmt: skip
def test_idx_files(names, tmp_path):
    for name, array in zip(names, (PIXELS, LABELS), strict=True):
        content = idx(array)
        (tmp_path / name).write_bytes(gzip.compress(content) if ".gz" in name else content)
    loaded = images(tmp_path, 5, 2)
    assert loaded.name == "IDX files"
    np.testing.assert_array_equal(loaded.pixels[:, 0] * 255, PIXELS[:4])
    np.testing.assert_array_equal(loaded.labels, LABELS[:4])
    assert images(str(tmp_path), 100, 3).labels.tolist() == [3, 1, 4, 1, 5, 9]


def test_cifar(tmp_path):
    rows = np.random.default_rng(1).integers(0, 256, (5, 3073), dtype=np.uint8)
    rows[:, 0] = [0, 9, 3, 3, 7]
    rows[:3].tofile(tmp_path / "data_batch_1.bin")
    rows[3:].tofile(tmp_path / "data_batch_2.bin")
    loaded = images(tmp_path, 50, 2)
    assert loaded.name == "CIFAR-10"
    assert loaded.labels.tolist() == [0, 9, 3, 3]
    # A row has the red plane, the green one and the blue one, each row by row.
    assert loaded.pixels[1, 2, 30, 4] * 255 == rows[1, 1 + 2 * 1024 + 30 * 32 + 4]
    assert len(images(tmp_path, 2, 2).labels) == 2


def test_the_digest_depends_on_every_pixel_and_label():
    loaded = images(None, 20, 20)
    other = loaded._replace(pixels=loaded.pixels + np.eye(8) * 1e-9)
    turned = loaded._replace(labels=loaded.labels[::-1].copy())
    assert len({variant.digest() for variant in (loaded, other, turned)}) == 3
    assert images(None, 20, 20).digest() == loaded.digest()


@pytest.mark.parametrize(
    ("pixels", "labels", "batch", "message"),
    [
        (b"", idx(LABELS), 2, "IDX format with 3 axes"),
        (idx(LABELS), idx(LABELS), 2, "IDX format with 3 axes"),
        (header(7, 0, 5), idx(LABELS), 2, "IDX format with 3 axes"),
        (header(0, 5, 5), idx(LABELS), 2, "IDX format with 3 axes"),
        (header(2, 4097, 4096), idx(LABELS[:2]), 2, "IDX format with 3 axes"),
        (idx(PIXELS)[:-1], idx(LABELS), 2, "bytes after the header"),
        (idx(PIXELS) + b"x", idx(LABELS), 2, "bytes after the header"),
        (idx(PIXELS), idx(LABELS) + b"x", 2, "7 bytes after the header"),
        (idx(PIXELS[:5]), idx(LABELS), 2, "5 images and 7 labels"),
        (idx(PIXELS), idx(LABELS + 1), 2, "label 10"),
        (idx(PIXELS), idx(LABELS), 8, "at least 8, one batch"),
    ],
)
def test_damaged_files_raise(pixels, labels, batch, message, tmp_path):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(pixels)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(ArgumentError, match=message):
        images(tmp_path, 100, batch)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_header_of_huge_axes_raises_before_memory_is_taken(suffix, tmp_path):
    def write(name, content):
        packed = gzip.compress(content) if suffix else content
        (tmp_path / f"train-{name}-ubyte{suffix}").write_bytes(packed)

    write("labels-idx1", idx(LABELS))
    tracemalloc.start()
    for content in (header(2**32 - 1, 4096, 4096) + bytes(175), idx(PIXELS) + bytes(2 * 10**7)):
        write("images-idx3", content)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(ArgumentError, match="bytes after the header"):
            images(tmp_path, 10**6, 2)
        assert tracemalloc.get_traced_memory()[1] - before < 10**7
    tracemalloc.stop()


def test_cut_archives_raise(tmp_path):
    for name, array in (("images-idx3", PIXELS), ("labels-idx1", LABELS)):
        (tmp_path / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array))[:-12])
    with pytest.raises(ArgumentError, match="a file that can be read"):
        images(tmp_path, 100, 2)


def test_other_folders_raise(tmp_path):
    with pytest.raises(ArgumentError, match="a folder with train-images-idx3-ubyte"):
        images(tmp_path, 10, 2)
    (tmp_path / "data_batch_1").write_bytes(b"pickle")
    with pytest.raises(ArgumentError, match="pickled version"):
        images(tmp_path, 10, 2)
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3000))
    with pytest.raises(ArgumentError, match="multiple of 3073 bytes"):
        images(tmp_path, 10, 2)
    for data in (3, "a\0"):
        with pytest.raises(ArgumentTypeError, match="^data.*a path"):
            images(data, 10, 2)
    with pytest.raises(ArgumentError, match="^data.*File name too long"):
        images("a" * 300, 10, 2)
    with pytest.raises(ArgumentError, match="number of digits"):
        images(None, 2000, 2000)


def test_all_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    bundled, x = load_digits(), digits(1740)
    np.testing.assert_array_equal(images(None, 70, 20).labels, np.arange(60) % 10)
    for digit in range(10):
        pixels = bundled.data[bundled.target == digit]
        np.testing.assert_array_equal(16 * x[:, digit::10].T, pixels[:174])


def test_fewer_digits_are_the_first_of_more():
    np.testing.assert_array_equal(digits(7), digits(30)[:, :7])


@pytest.mark.parametrize("count", [0, -1, 1741])
def test_there_are_no_other_counts_of_digits(count):
    with pytest.raises(ArgumentError, match="^batch"):
        digits(count)
