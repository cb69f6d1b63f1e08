"""A run folder with four hand-made episodes and a byte-level tokenizer; a client for its page;
what an exported file holds."""

import base64
import gzip
import http.client
import json
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "core" / "record"))

from record_fixtures import advantages_of, episode, group_of, sample_of

from ajet.core.record.episode_store import EpisodeStore
from ajet.core.record.run_folder import RunFolder
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.read.logview.page_file import write_page
from ajet.read.logview.run_page import RunPage

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def write_run(path):
    """One group of step 1 (one good, one hostile question), one failed and one held-out episode."""
    with RunFolder.open(path) as folder, EpisodeStore(folder.episodes_db) as store:
        good, hostile = episode(member=0), episode(member=1, query=HOSTILE, reward=0.0)
        advantages = {t.episode_id: advantages_of(t, 1.0) for t in (good, hostile)}
        store.write(1, [group_of(good, hostile)], advantages, [sample_of(good), sample_of(hostile)])
        store.write(1, [group_of(episode(mode="eval"))])
        failed = episode(
            step=2, reward=None, status=EpisodeStatus.TIMEOUT, turns=(), error="deadline"
        )
        store.write(2, [group_of(failed)])
    return folder


def byte_tokenizer():
    """Byte b is id b; 256 is the special token <|im_end|>, 257 is half an emoji (F0 9F)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from ajet.read.logview.token_text import BYTE_OF

    char_of = {byte: char for char, byte in BYTE_OF.items()}
    vocab = {char_of[byte]: byte for byte in range(256)}
    vocab[char_of[0xF0] + char_of[0x9F]] = 256
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(char_of[0xF0], char_of[0x9F])]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return tokenizer


def written(folder, file, episodes=None):
    page = RunPage(folder)
    try:
        return write_page(page, file, episodes)
    finally:
        page.close()


def stored_in(file):
    packed = re.search(r'id="stored">([\w+/=]+)<', file.read_text("utf-8"))
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


class Client:
    """Plain HTTP to the server, with any Host and Origin header."""

    def __init__(self, server):
        self._address = server.url.removeprefix("http://")

    def get(self, path, host=None, method="GET", origin=None):
        connection = http.client.HTTPConnection(self._address, timeout=10)
        given = {"Host": host, "Origin": origin}
        headers = {name: value for name, value in given.items() if value}
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        content = response.read().decode()
        connection.close()
        return response, content

    def json(self, path):
        response, content = self.get(path)
        assert response.status == 200, content
        return json.loads(content)
