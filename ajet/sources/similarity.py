"""Drops questions that are too similar to earlier ones; case and white space are ignored. Every
text is compared with all kept ones: about a second for two thousand questions without a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.config.tracing import DeduplicationParams
from ajet.core.errors import DataError, KeyMissing
from ajet.core.errors.codes import Code

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRIGRAM_LENGTH = 3
BATCH = 64


class Deduplicator:
    """Keeps the texts that are unlike all texts kept before."""

    def __init__(self, settings: DeduplicationParams) -> None:
        self._threshold = settings.similarity_threshold
        self._measure = Embeddings(settings) if settings.model else TrigramSimilarity()

    def novel_indices(self, texts: Sequence[str]) -> list[int]:
        """Returns the indices of the texts that are unlike every text kept before, in any call."""
        self._measure.prepare(texts)
        return [
            index
            for index, text in enumerate(texts)
            if self._measure.add_unless_alike(text, self._threshold)
        ]


class TrigramSimilarity:
    """Measures similarity as the Jaccard index of the texts' character trigrams."""

    def __init__(self) -> None:
        self._known: list[set[str]] = []

    def prepare(self, texts: Sequence[str]) -> None:
        """Does nothing: no embedding has to be fetched."""

    def add_unless_alike(self, text: str, threshold: float) -> bool:
        trigrams = trigrams_of(text)
        if any(jaccard(trigrams, earlier, threshold) >= threshold for earlier in self._known):
            return False
        self._known.append(trigrams)
        return True


class Embeddings:
    """Measures similarity as the cosine of embeddings. Each text's embedding is requested once, and
    stored in `db_path` if that is set."""

    def __init__(self, settings: DeduplicationParams) -> None:
        from ajet.core.inference.chat_client import ReplyCache

        assert settings.model
        self._model = settings.model
        self._api_key = settings.api_key
        if not settings.base_url:
            raise KeyMissing(
                f"deduplication: model {settings.model} needs base_url, the address of its "
                "service; or leave model out to compare the texts themselves"
            )
        self._base_url = settings.base_url.rstrip("/") + "/"
        self._cache = ReplyCache(Path(settings.db_path).expanduser()) if settings.db_path else None
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._kept_vectors: list[NDArray[np.float32]] = []

    def prepare(self, texts: Sequence[str]) -> None:
        new = [text for text in dict.fromkeys(map(_plain, texts)) if not self._recall(text)]
        for start in range(0, len(new), BATCH):
            self._fetch(new[start : start + BATCH])

    def add_unless_alike(self, text: str, threshold: float) -> bool:
        import numpy as np

        vector = self._vectors[_plain(text)]
        # Vectors have length 1, so the product is the cosine.
        if self._kept_vectors and float(np.max(np.stack(self._kept_vectors) @ vector)) >= threshold:
            return False
        self._kept_vectors.append(vector)
        return True

    def _recall(self, text: str) -> bool:
        stored = self._cache.get(self._key(text)) if self._cache else None
        if stored is not None and text not in self._vectors:
            self._vectors[text] = _unit(json.loads(stored))
        return text in self._vectors

    def _fetch(self, texts: list[str]) -> None:
        from openai import OpenAIError

        from ajet.core.net.http_client import blocking

        location = f"model {self._model} at {self._base_url}"
        try:
            with blocking() as wait:
                reply = wait(self._embed, texts)
        except OpenAIError as error:
            detail = " ".join(str(error).split())[:200]
            raise DataError(
                f"deduplication: {location}: {detail}", code=Code.SERVICE_ANSWER
            ) from error
        if len(reply.data) != len(texts):
            raise DataError(
                f"deduplication: {location} gave {len(reply.data)} vectors for {len(texts)}",
                code=Code.SERVICE_ANSWER,
            )
        for text, item in zip(texts, reply.data, strict=True):
            self._vectors[text] = _unit(item.embedding)
            if self._cache is not None:
                self._cache.put(self._key(text), json.dumps(item.embedding))

    async def _embed(self, texts: list[str]) -> Any:
        from openai import AsyncOpenAI

        from ajet.core.inference.openai_endpoint import MAX_RETRIES, api_key
        from ajet.core.net.http_client import openai_http_client

        async with AsyncOpenAI(
            base_url=self._base_url,
            api_key=self._api_key or api_key(),
            max_retries=MAX_RETRIES,
            http_client=openai_http_client(),
        ) as client:
            return await client.embeddings.create(
                model=self._model, input=texts, encoding_format="float"
            )

    def _key(self, text: str) -> str:
        name = f"{self._base_url}\n{self._model}\n{text}"
        return hashlib.sha256(name.encode()).hexdigest()


def trigrams_of(text: str) -> set[str]:
    """Returns all runs of three characters; a shorter text is one run."""
    text = _plain(text)
    return {text[at : at + TRIGRAM_LENGTH] for at in range(max(1, len(text) - TRIGRAM_LENGTH + 1))}


def jaccard(trigrams_a: set[str], trigrams_b: set[str], threshold: float = 0.0) -> float:
    """Returns the number of common trigrams over the number of all. Returns 0 early if the sizes
    alone rule out the threshold."""
    small, large = sorted((len(trigrams_a), len(trigrams_b)))
    if small < threshold * large:
        return 0.0
    common = len(trigrams_a & trigrams_b)
    return common / (small + large - common)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _unit(vector: Sequence[float]) -> NDArray[np.float32]:
    import numpy as np

    array = np.asarray(vector, dtype=np.float32)
    return array / max(float(np.linalg.norm(array)), 1e-12)
