"""What messages may show, and what is refused in one line."""

import base64
import io
import os
import sqlite3
import zlib

import numpy as np
import pytest
from PIL import ExifTags
from PIL import Image as pillow

from ajet.core.errors import CheckpointError, DataError
from ajet.core.images.forms import data_url, find_image, read_image
from ajet.core.images.image import Image, ImageLimits
from ajet.core.images.image_ids import (
    MAX_PLACES,
    has_images,
    image_ids,
    keys_in_order,
    with_placeholders,
)
from ajet.core.images.store import ImageFile, ImageStore

LIMITS = ImageLimits()
FILES = ImageLimits(files=True)
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def encoded(kind="PNG", pixels=PIXELS):
    file = io.BytesIO()
    pillow.fromarray(pixels).save(file, kind)
    return file.getvalue()


PNG = encoded()
BROKEN = PNG[:50] + bytes([PNG[50] ^ 255]) + PNG[51:]
BASE64 = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{BASE64}"
PARTS = {
    "openai": {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
    "openai, a text": {"type": "image_url", "image_url": URL},
    "responses": {"type": "input_image", "image_url": URL},
    "anthropic": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": BASE64},
    },
    "agentscope": {"type": "image", "source": {"type": "url", "url": URL}},
    "bytes": {"type": "image", "image": PNG},
    "datasets": {"type": "image", "image": {"bytes": PNG, "path": None}},
    "columns": {"type": "image", "bytes": PNG, "path": "a.png"},
    "base64": {"type": "image", "base64": BASE64},
}


@pytest.mark.parametrize("form", PARTS)
def test_every_form_is_the_same_image(form):
    found = find_image(PARTS[form], LIMITS)
    assert (found.data, found.format, found.width, found.height) == (PNG, "PNG", 6, 4)


@pytest.mark.parametrize(
    "picture", [PIXELS, pillow.fromarray(PIXELS), pillow.fromarray(PIXELS).convert("L")]
)
def test_an_array_or_an_image_of_pil_becomes_a_png_with_its_pixels(picture):
    found = find_image({"type": "image", "image": picture}, LIMITS)
    assert found.format == "PNG"
    expected = np.asarray(picture if isinstance(picture, np.ndarray) else picture.convert("RGB"))
    assert np.array_equal(np.asarray(found.picture()), expected)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF", "BMP"])
def test_other_formats_are_kept_as_they_arrived(kind):
    data = encoded(kind)
    found = read_image(data, LIMITS)
    assert (found.data, found.format) == (data, kind)
    assert read_image(data_url(found), LIMITS).data == data


def test_a_file_is_read_only_where_files_are_allowed(tmp_path):
    file = tmp_path / "a b.png"
    file.write_bytes(PNG)
    for name in (str(file), file, file.as_uri()):
        assert read_image(name, FILES).data == PNG
        with pytest.raises(DataError, match="messages may not name files"):
            read_image(name, LIMITS)
    with pytest.raises(DataError, match=r"b\.png: No such file"):
        read_image(tmp_path / "b.png", FILES)
    os.mkfifo(tmp_path / "pipe.png")
    for endless in ("/dev/zero", tmp_path / "pipe.png"):
        with pytest.raises(DataError, match=f"refused: {endless} is not a file"):
            read_image(endless, FILES)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image_url", "image_url": "https://a.b/c.png"}, "addresses .https:. are not"),
        ({"type": "image_url", "image_url": "http://127.0.0.1/c"}, "addresses .http:. are not"),
        ({"type": "image", "image": "/etc/passwd"}, "may not name files"),
        ({"type": "image", "image": "data:image/png;base64,%%%"}, "base64 is damaged"),
        ({"type": "image", "image": b"not an image"}, "not one of PNG, JPEG"),
        ({"type": "image", "image": BROKEN}, "pixels are damaged"),
        ({"type": "image", "image": np.zeros((2, 2), np.float32).tolist()}, "must be uint8"),
        ({"type": "image", "image": "data:image/svg+xml,<svg/>"}, "as data:image/png;base64,"),
        ({"type": "image", "image": np.full((2, 2), 300, np.uint16)}, "uint8, .*: it has uint16"),
        ({"type": "image", "image": pillow.new("F", (2, 2))}, "more than 8 bits"),
        ({"type": "image_url", "image_url": "http://[::1/c.png"}, "cannot be read: Invalid IPv6"),
        ({"type": "image"}, "neither data nor a place"),
        ({"type": "image", "source": {"type": "base64"}}, "base64 is damaged"),
    ],
)
def test_anything_else_is_refused_in_one_line(part, reason):
    with pytest.raises(DataError, match=reason) as error:
        found = find_image(part, LIMITS)
        found.picture()
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_a_place_that_no_file_can_have_is_refused_in_one_line():
    for place in ("a\0.png", "\ud800.png", "a" * 100_000):
        with pytest.raises(DataError, match="an image is refused") as error:
            read_image(place, FILES)
        assert len(str(error.value)) < 300


EXIF = pillow.Exif()
EXIF[ExifTags.Base.Orientation] = 6  # to be turned by 90 degrees to the right: a phone held upright
RGB_COLUMN = np.array([[[9, 0, 0]], [[0, 99, 0]], [[0, 0, 199]]], np.uint8)
GREY = np.array([[0, 257], [32_639, 65_535]], np.uint16)
HALF_RED = np.array([[[255, 0, 0, 0], [255, 0, 0, 51]]], np.uint8)


@pytest.mark.parametrize(
    ("pixels", "exif", "shown"),
    [
        (RGB_COLUMN, EXIF, [[[0, 0, 199], [0, 99, 0], [9, 0, 0]]]),
        (GREY, None, [[[0] * 3, [1] * 3], [[127] * 3, [255] * 3]]),
        (HALF_RED, None, [[[255, 255, 255], [255, 204, 204]]]),
    ],
    ids=["turned", "of 16 bits", "transparent"],
)
def test_an_image_has_the_pixels_that_a_browser_shows(pixels, exif, shown):
    """As transformers and vLLM read it: upright, and on white where it is transparent."""
    file = io.BytesIO()
    pillow.fromarray(pixels).save(file, "PNG", exif=exif or b"")
    image = read_image(file.getvalue(), LIMITS)
    assert image.data == file.getvalue()
    opened = read_image(pillow.open(file), LIMITS)
    for seen in (image.picture(), image.plain.picture(), pillow.open(io.BytesIO(opened.data))):
        assert seen.mode == "RGB"
        np.testing.assert_array_equal(np.asarray(seen), shown)
    assert read_image(PNG, LIMITS).plain.data == PNG


def test_limits_are_checked_before_pixels_are_decoded():
    with pytest.raises(
        DataError, match=r"72 bytes|bytes, and ajet\.model\.images\.max_bytes is 10"
    ):
        read_image(PNG, ImageLimits(max_bytes=10))
    with pytest.raises(DataError, match=r"6 x 4 pixels, and ajet\.model\.images\.max_pixels is 23"):
        read_image(PNG, ImageLimits(max_pixels=23))
    # A picture of 10 gigapixels in some hundred bytes.
    header = PNG[:16] + (100_000).to_bytes(4, "big") * 2 + PNG[24:29]
    bomb = header + zlib.crc32(header[12:29]).to_bytes(4, "big") + PNG[33:]
    with pytest.raises(DataError, match=r"100000 x 100000 pixels|or damaged"):
        read_image(bomb, LIMITS)


def test_a_prompt_has_at_most_so_many_images():
    store = ImageStore(ImageLimits(max_images=2))
    message = {"role": "user", "content": [PARTS["bytes"], PARTS["openai"]]}
    assert len(store.taken([message])[0]["content"]) == 2
    with pytest.raises(
        DataError, match=r"shows 3 images, and ajet\.model\.images\.max_images is 2"
    ):
        store.taken([message, {"role": "user", "content": [PARTS["bytes"]]}])


def test_equal_images_are_stored_once_and_found_again_by_another_store(tmp_path):
    store = ImageStore()
    text = {"type": "text", "text": "a"}
    first = store.taken([{"role": "user", "content": [text, PARTS["openai"], PARTS["bytes"]]}])
    store.keep_in(ImageFile(tmp_path / "images.sqlite"))
    store.taken([{"role": "user", "content": [{"type": "image", "image": PIXELS.copy() + 1}]}])
    key = first[0]["content"][1]["image"]
    stored = {"type": "image", "image": key}
    assert first[0]["content"] == [text, stored, stored]
    again = ImageStore(kept=ImageFile(tmp_path / "images.sqlite"))
    assert again.get(int(key, 16)).data == PNG
    assert again.taken(first) == first  # a conversation that is sent back
    with pytest.raises(DataError, match="no image has the key 000000000001"):
        again.get(1)


def test_a_file_has_what_memory_no_longer_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("ajet.core.images.store.KEPT_BYTES", 2 * len(PNG))
    store = ImageStore(kept=ImageFile(tmp_path / "images.sqlite"))
    images = [store.add(Image.from_picture(PIXELS + n, LIMITS)) for n in range(5)]
    assert 0 < len(store) < 5
    assert [store.get(each.key).data for each in images] == [each.data for each in images]
    assert 0 < len(store) < 5


def test_a_damaged_file_is_one_line_and_another_image_is_never_shown(tmp_path):
    file = tmp_path / "images.sqlite"
    image = Image.read(PNG, LIMITS)
    ImageStore(kept=ImageFile(file)).add(image)
    with sqlite3.connect(file) as database:
        database.execute("UPDATE images SET data = ?", (encoded(pixels=PIXELS + 1),))
    with pytest.raises(CheckpointError, match=r"images\.sqlite cannot be used: its image .* is an"):
        ImageStore(kept=ImageFile(file)).get(image.key)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no database" * 1000)
    for name in ("folder", "text"):
        with pytest.raises(CheckpointError, match=f"{name} cannot be used: "):
            ImageFile(tmp_path / name)


def test_an_earlier_runs_images_are_asked_for_by_key():
    earlier = ImageStore()
    image = earlier.add(Image.read(PNG, LIMITS))
    store = ImageStore(source=lambda key: earlier.get(int(key, 16)))
    assert store.get(image.key) is image and len(store) == 1
    with pytest.raises(DataError, match="no image has the key 000000000001"):
        store.get(1)


def test_messages_without_images_are_the_same_objects():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]
    assert all(a is b for a, b in zip(ImageStore().taken(messages), messages, strict=True))


def test_ids_name_the_image_and_the_place():
    one, two = Image.read(PNG, LIMITS).key, Image.read(encoded("BMP"), LIMITS).key
    ids = [5, *image_ids(one, 3).tolist(), 6, *image_ids(two, 2).tolist(), 7]
    assert len(set(ids)) == len(ids) and has_images(ids) and not has_images([5, 6])
    assert keys_in_order(ids) == [one, two]
    assert with_placeholders(ids, 99) == [5, 99, 99, 99, 6, 99, 99, 7]
    assert 0 < max(ids) < 2**63
    with pytest.raises(ValueError, match="16384 is the most"):
        image_ids(one, MAX_PLACES + 1)
