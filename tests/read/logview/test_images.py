"""Images on the page and in the exported file, in messages and among tokens, also missing ones."""

import json
import sqlite3

import numpy as np
import pytest
from browser_fixtures import opened_browser, opened_page
from logview_fixtures import Client, byte_tokenizer, stored_in, written
from record_fixtures import episode, group_of

from ajet.core.errors import DataError
from ajet.core.images.forms import data_url
from ajet.core.images.image import Image, ImageLimits
from ajet.core.images.image_ids import image_ids, key_text
from ajet.core.images.store import ImageFile, ImageStore
from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder
from ajet.core.trajectory.turn import Turn
from ajet.read.logview.run_page import RunPage
from ajet.read.logview.server import LogviewServer

EPISODE = "000001-train-0000-00"
BOARD = Image.from_picture(np.full((16, 24, 3), 99, np.uint8), ImageLimits())
LOST = 0x0F3C5E7A9B1D
BOARD_KEY, LOST_KEY = key_text(BOARD.key), key_text(LOST)


def asked(*keys):
    parts = [{"type": "image", "image": key} for key in keys]
    return {"role": "user", "content": [{"type": "text", "text": "Look: "}, *parts]}


def turns():
    """A call that is shown the board in four tokens, and one that is shown it again and right after
    it, in two tokens, an image that the run does not have."""
    left, up = ({"role": "assistant", "content": move} for move in ("left", "up"))
    board = tuple(image_ids(BOARD.key, 4).tolist())
    prompt = (*b"Look:", *board, *b"!")
    first = Completion(prompt, (7, 8), (-0.5, -0.5), "stop", 0)
    more = (*board, *image_ids(LOST, 2).tolist(), *b"?")
    second = Completion((*prompt, 7, 8, *more), (9,), (-0.5,), "stop", 0)
    return (
        Turn(first, [asked(BOARD_KEY)], None, left),
        Turn(second, [asked(BOARD_KEY), left, asked(BOARD_KEY, LOST_KEY)], None, up),
    )


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "math") as folder, EpisodeStore(folder.episodes_db) as store:
        store.write(1, [group_of(episode(turns=turns()), episode(turns=turns(), member=1))])
        folder.tokenizer.mkdir()
        byte_tokenizer().save(str(folder.tokenizer / "tokenizer.json"))
    ImageStore(kept=ImageFile(folder.images_db)).add(BOARD)
    return folder


@pytest.fixture
def page(folder):
    page = RunPage(folder)
    yield page
    page.close()


def test_a_prompt_has_an_images_key_at_its_first_token_and_no_id_that_javascript_would_round(page):
    shown = page.episode(EPISODE)
    first, second = (turn["prompt"]["ids"] for turn in shown["turns"])
    assert first == [*b"Look:", BOARD_KEY, "", "", "", *b"!"]
    assert second == [BOARD_KEY, "", "", "", LOST_KEY, "", *b"?"]
    assert shown["turns"][1]["prompt_kept"] == len(first) + 2  # positions count every token
    assert shown["images"] == {BOARD_KEY: [24, 16]}


@pytest.mark.parametrize("content", [None, b"", b"no database"])
def test_without_a_file_of_images_an_episode_has_none_and_none_is_made(folder, page, content):
    for file in folder.path.glob("images.sqlite*"):
        file.unlink()
    if content is not None:
        folder.images_db.write_bytes(content)
    assert page.episode(EPISODE)["images"] == {}
    assert folder.images_db.exists() == (content is not None)
    assert content is None or folder.images_db.read_bytes() == content


@pytest.mark.parametrize("content", [b"no picture", BOARD.data, "text", 5])
def test_an_image_that_is_damaged_or_another_is_as_one_that_is_not_there(folder, page, content):
    with sqlite3.connect(folder.images_db) as database:
        database.execute("INSERT INTO images VALUES (?, ?)", (LOST, content))
    assert list(page.episode(EPISODE)["images"]) == [BOARD_KEY]
    with pytest.raises(DataError, match=f"no image '{LOST_KEY}' in this run"):
        page.images.image(LOST_KEY)


def test_the_server_gives_an_image_by_its_key_and_nothing_else(folder):
    with LogviewServer([folder.path], port=0) as server:
        client = Client(server)
        response, _ = client.get(f"/api/image/{BOARD_KEY}?run=math", method="HEAD")
        assert (response.status, response.headers["Content-Type"]) == (200, "image/png")
        assert response.headers["Content-Length"] == str(len(BOARD.data))
        wrong = (LOST_KEY, BOARD_KEY.upper(), f"{BOARD_KEY}0", "..%2fepisodes.sqlite", "-1", "%00")
        for key in wrong:
            response, content = client.get(f"/api/image/{key}")
            assert (response.status, list(json.loads(content))) == (404, ["error"])


def test_an_image_is_a_mark_where_members_are_side_by_side(page):
    shown = page.group({"step": "1", "group_id": "000001-train-0000"})
    assert shown["parting"] is None
    assert [turn["given"] for turn in shown["members"][0]["turns"]] == ["", "Look: <image><image>"]
    pair = page.compare({"task_id": "task-0"})
    assert pair["sides"][0]["asked"] == [{"role": "user", "text": "Look: <image>"}]


def test_the_key_of_an_image_is_no_word_to_search_for(page):
    assert page.episodes({"text": "look"})["count"] == 2
    assert page.episodes({"text": BOARD_KEY[:4]})["count"] == 0


def test_the_exported_file_holds_each_image_once(folder, tmp_path):
    written(folder, tmp_path / "run.html")
    held = stored_in(tmp_path / "run.html")
    assert held[f"image/{BOARD_KEY}"] == data_url(BOARD)
    assert json.dumps(held).count("data:image") == 1


def test_a_reader_sees_images_in_place_on_the_page_and_in_the_file(folder, tmp_path):
    file = tmp_path / "run.html"
    written(folder, file)
    lost = f"image {LOST_KEY}, not in this run's images.sqlite"
    with LogviewServer([folder.path], port=0) as server, opened_browser() as browser:
        for url in (server.url, file.as_uri()):
            with opened_page(browser, url) as page:
                page.goto(f"{url}#/math/episode/{EPISODE}")
                page.wait_for_function(
                    "() => [...document.querySelectorAll('.message.user img')]"
                    ".filter(each => each.naturalWidth === 24 && each.width === 240).length === 2"
                )
                alt = page.locator(".message.user img").first.get_attribute("alt")
                assert alt == f"image {BOARD_KEY}, 24 x 16"
                assert lost in page.locator(".message.user").last.inner_text()
                page.click("[name=view-frames]")
                page.wait_for_selector("#frames img")
                page.click("[name=view-tokens]")
                page.locator("#turns button").click()  # the part that call 1 has shown already
                texts = page.locator(".turn").last.locator(".tokens > span").all_inner_texts()
                assert "".join(texts) == f"Look:4 tokens!\x07\x084 tokens{lost}\n2 tokens?\t"
                page.locator(".tokens .sampled").last.click()
                panel = page.locator(".panel h2").inner_text()
                assert panel.startswith("token 1 of call 2")
