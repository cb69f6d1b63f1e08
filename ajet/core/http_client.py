"""Clients over HTTP that bound how large an answer may be, and how long all of it may take.

    LimitedAsyncClient(timeout=timeout_s)      in the place of httpx.AsyncClient
    openai_http_client()                       for AsyncOpenAI(http_client=…), which is on httpx2
    with blocking() as wait: wait(client.get, path, params=…)           where there is no event loop

The read timeout of a request bounds its whole answer, also one that drips; without one, an answer
may take any time. An event stream lasts as long as it is read, and each of its events is limited.
An answer that is too large is a DecodingError. Answers are asked for uncompressed, because a small
one could become a large one.

Importing this module imports httpx.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar

import httpx

MAX_ANSWER_BYTES = 64 << 20
Result = TypeVar("Result")


class LimitedAnswers:
    """Limits the answers of an AsyncClient of httpx or of a library like it; a mixin."""

    http: ClassVar[Any]
    """This is the library that the AsyncClient comes from."""

    def __init__(self, *, max_answer_bytes: int = MAX_ANSWER_BYTES, **options: Any) -> None:
        super().__init__(**options)
        self.max_answer_bytes = max_answer_bytes
        hooks: dict[str, list[Any]] = self.event_hooks  # type: ignore[attr-defined]
        # A hook sees the answers with redirects too, which the library reads by itself.
        self.event_hooks = {**hooks, "response": [self._limit, *hooks["response"]]}

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Sends a request. The library's ReadTimeout is raised where the whole answer takes longer
        than the read timeout, its DecodingError where it is too large."""
        request.headers["accept-encoding"] = "identity"
        total_s = request.extensions.get("timeout", {}).get("read")
        now_s = asyncio.get_running_loop().time()
        request.extensions["deadline"] = None if total_s is None else now_s + total_s
        async with self._by_deadline(request):
            response = await super().send(request, stream=True, **options)  # type: ignore[misc]
        if not stream:
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response

    async def _limit(self, response: Any) -> None:
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise self.http.DecodingError(
                f"the answer is compressed ({encoding}), which was not asked for",
                request=response.request,
            )
        chunks = self._limited_chunks(response, response.stream)
        response.stream = _as_stream(self.http.AsyncByteStream, chunks, response.stream.aclose)

    async def _limited_chunks(self, response: Any, stream: Any) -> AsyncIterator[bytes]:
        is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        num_bytes, before, chunks = 0, b"", aiter(stream)
        while True:
            async with self._by_deadline(response.request, applies=not is_events):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            num_bytes += len(chunk)
            if is_events and (rest := _after_last_event(before + chunk)) is not None:
                num_bytes = rest
            if num_bytes > self.max_answer_bytes:
                raise self.http.DecodingError(
                    f"the answer has more than {self.max_answer_bytes} bytes",
                    request=response.request,
                )
            before = chunk[-3:]
            yield chunk

    @asynccontextmanager
    async def _by_deadline(self, request: Any, applies: bool = True) -> AsyncIterator[None]:
        deadline = request.extensions.get("deadline") if applies else None
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            raise self.http.ReadTimeout(
                "the answer was not complete in time", request=request
            ) from None


class LimitedAsyncClient(LimitedAnswers, httpx.AsyncClient):
    """Calls over HTTP as `httpx.AsyncClient` does; its answers are limited."""

    http = httpx


def openai_http_client(**options: Any) -> Any:
    """Returns a client with OpenAI's own settings whose answers are limited."""
    import httpx2
    from openai import DefaultAsyncHttpxClient

    class LimitedOpenAIClient(LimitedAnswers, DefaultAsyncHttpxClient):
        http = httpx2

    return LimitedOpenAIClient(**options)


@contextmanager
def blocking() -> Iterator[Callable[..., Any]]:
    """Yields a function that calls an async function in an event loop of its own, in a thread of
    its own, and returns its result."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:

        def wait(call: Callable[..., Awaitable[Result]], *args: Any, **options: Any) -> Result:
            return portal.call(partial(call, *args, **options))

        yield wait


def _as_stream(base: type, chunks: AsyncIterator[bytes], close: Callable[[], Any]) -> Any:
    """Returns a stream of the library's class, which its responses require."""

    class Stream(base):
        def __aiter__(self) -> AsyncIterator[bytes]:
            return chunks

        async def aclose(self) -> None:
            await close()

    return Stream()


def _after_last_event(text: bytes) -> int | None:
    """Returns the number of bytes after the last blank line, which ends an event; None if there is
    none."""
    ends = [text.rfind(end) + len(end) for end in (b"\n\n", b"\r\n\r\n", b"\r\r") if end in text]
    return len(text) - max(ends) if ends else None
