"""HTTP clients that limit the size and the duration of answers.

    LimitedAsyncClient(timeout=timeout_s)      instead of httpx.AsyncClient
    openai_http_client()                       for AsyncOpenAI(http_client=…), which is on httpx2
    with blocking() as wait: wait(client.get, path, params=…)       outside of an event loop

The read timeout covers the whole answer, not only the time between two bytes. An event stream may
last for ever, but each of its events is limited. Importing this module imports httpx.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar, TypeVar

import httpx

MAX_ANSWER_BYTES = 64 << 20
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
Result = TypeVar("Result")


class LimitedAnswers:
    """A mixin that limits the answers of an AsyncClient of httpx or httpx2."""

    http: ClassVar[Any]
    """The library of the AsyncClient."""

    def __init__(self, *, max_answer_bytes: int = MAX_ANSWER_BYTES, **options: Any) -> None:
        super().__init__(**options)
        self.max_answer_bytes = max_answer_bytes
        hooks: dict[str, list[Any]] = self.event_hooks  # type: ignore[attr-defined]
        # In a hook, because the library itself reads the bodies of redirects.
        self.event_hooks = {**hooks, "response": [self._limit, *hooks["response"]]}

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Sends a request. Raises the library's ReadTimeout if the whole answer takes longer than
        the read timeout, and its DecodingError if the answer is too large."""
        # A small compressed answer could unpack to a huge one.
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
        """Yields the chunks of a body or an event stream, within the limits."""
        is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        num_bytes, before, chunks = 0, b"", aiter(stream)
        while True:
            async with self._by_deadline(response.request, applies=not is_events):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            num_bytes += len(chunk)
            if is_events:  # an event ends with a blank line: count from the last one
                text = before + chunk
                ends = [text.rfind(end) + len(end) for end in EVENT_ENDS if end in text]
                num_bytes = len(text) - max(ends) if ends else num_bytes
            if num_bytes > self.max_answer_bytes:
                raise self.http.DecodingError(
                    f"the answer has more than {self.max_answer_bytes} bytes",
                    request=response.request,
                )
            before = chunk[-3:]  # a blank line may be split over two chunks
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
    """`httpx.AsyncClient` with limited answers."""

    http = httpx


def openai_http_client(**options: Any) -> Any:
    """Returns OpenAI's default client with limited answers."""
    import httpx2
    from openai import DefaultAsyncHttpxClient

    class LimitedOpenAIClient(LimitedAnswers, DefaultAsyncHttpxClient):
        http = httpx2

    return LimitedOpenAIClient(**options)


@contextmanager
def blocking() -> Iterator[Callable[..., Any]]:
    """Yields a function that runs an async function in another thread's event loop and returns the
    result."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:

        def wait(call: Callable[..., Awaitable[Result]], *args: Any, **options: Any) -> Result:
            return portal.call(partial(call, *args, **options))

        yield wait


def _as_stream(base: type, chunks: AsyncIterator[bytes], close: Callable[[], Any]) -> Any:
    """Returns a stream of `base`, the class that the library's responses require."""

    class Stream(base):
        def __aiter__(self) -> AsyncIterator[bytes]:
            return chunks

        async def aclose(self) -> None:
            await close()

    return Stream()
