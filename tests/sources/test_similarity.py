"""Of questions that are too much alike the first is kept, by pieces or by vectors."""

import pytest

from ajet.core.config.tracing import DeduplicationParams
from ajet.sources.similarity import Deduplicator, jaccard, trigrams_of
from tests.env_server import StubService


def test_pieces_and_their_measure_by_hand():
    assert trigrams_of("ab CD") == {"ab ", "b c", " cd"}
    assert trigrams_of("a") == {"a"} and trigrams_of(" A\n") == {"a"}
    assert jaccard({"a", "b", "c"}, {"b", "c", "d"}) == pytest.approx(2 / 4)
    assert jaccard({"a"}, {"a", "b", "c"}, threshold=0.5) == 0.0  # 1/3 at best


def test_the_first_of_those_that_are_alike_is_kept_here_and_later():
    unlike = Deduplicator(DeduplicationParams(similarity_threshold=0.8))
    assert unlike.novel_indices(["What is 2+2?", "what  is 2+2?", "Who wrote it?"]) == [0, 2]
    assert unlike.novel_indices(["Who wrote IT?", "三加四等于几？", "三加五等于几？"]) == [1, 2]


VECTORS = {"one": [1, 0], "uno": [3, 0.3], "two": [0, 2]}


def embeddings(verb, body):
    data = [
        {"object": "embedding", "index": place, "embedding": VECTORS[text]}
        for place, text in enumerate(body["input"])
    ]
    return 200, {"object": "list", "data": data, "model": "e", "usage": {}}


def test_with_a_model_the_cosine_counts_and_vectors_are_kept(tmp_path):
    with StubService(embeddings) as stub:
        settings = DeduplicationParams(
            similarity_threshold=0.9,
            model="e",
            base_url=f"{stub.url}/v1",
            api_key="k",
            db_path=str(tmp_path / "vectors.sqlite"),
        )
        unlike = Deduplicator(settings)
        assert unlike.novel_indices(["One", "uno", "two"]) == [0, 2]  # cos(one, uno) = 0.995
        assert unlike.novel_indices(["uno"]) == []
        assert Deduplicator(settings).novel_indices(["two", "one"]) == [0, 1]
    (verb, body), *more = stub.calls
    assert verb == "v1/embeddings" and body["input"] == ["one", "uno", "two"] and not more
