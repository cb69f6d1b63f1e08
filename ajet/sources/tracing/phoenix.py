"""Reads spans and their annotations (scores and labels) from a Phoenix server, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from loguru import logger

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.sources.tracing.spans import Span, add_annotation, spans_in

KEY_VARIABLE = "PHOENIX_API_KEY"
TIMEOUT_S = 60.0
RETRIES = 3  # for connections that cannot be made
PAGE = 500
IDS_AT_ONCE = 100


def read_phoenix(base_url: str, project: str | None) -> list[Span]:
    """Returns every span of the project, or of all projects, with its annotations."""
    import httpx

    from ajet.core.net.http_client import LimitedAsyncClient, blocking

    key = os.environ.get(KEY_VARIABLE)
    with blocking() as wait:
        http = LimitedAsyncClient(
            base_url=base_url.rstrip("/"),
            timeout=TIMEOUT_S,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            transport=httpx.AsyncHTTPTransport(retries=RETRIES),
        )
        try:
            server = PhoenixServer(http, wait)
            projects = [project] if project else server.projects()
            return [span for name in projects for span in server.spans(name)]
        finally:
            wait(http.aclose)


class PhoenixServer:
    """Requests projects, spans and annotations. Every failure is a one-line `DataError`."""

    def __init__(self, http: Any, wait: Callable[..., Any]) -> None:
        """Takes an asynchronous client, and a function that waits for its calls."""
        self._http, self._wait = http, wait

    def projects(self) -> list[str]:
        """Returns the names of the projects, sorted because the server's order may change."""
        return sorted(str(item["name"]) for item in self._pages("/v1/projects") if item.get("name"))

    def spans(self, project: str) -> list[Span]:
        path = f"/v1/projects/{quote(project, safe='')}"
        spans = [span for item in self._pages(f"{path}/spans") for span in spans_in(item)]
        by_id = {span.span_id: span for span in spans}
        ids = list(by_id)
        for start in range(0, len(ids), IDS_AT_ONCE):
            batch = ids[start : start + IDS_AT_ONCE]
            for note in self._pages(f"{path}/span_annotations", span_ids=batch, may_lack=True):
                if (span := by_id.get(str(note.get("span_id")))) is not None:
                    add_annotation(span, note)
        return spans

    def _pages(
        self, path: str, *, may_lack: bool = False, **params: Any
    ) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            query = {"limit": PAGE, **params} | ({"cursor": cursor} if cursor else {})
            reply = self._get(path, query, may_lack)
            yield from (item for item in reply.get("data", []) if isinstance(item, dict))
            cursor = reply.get("next_cursor")
            if not cursor:
                return
            if str(cursor) in seen:
                raise DataError(
                    f"{self._where(path)}: the page {cursor!r} leads back to itself",
                    code=Code.SERVICE_ANSWER,
                )
            seen.add(str(cursor))

    def _where(self, path: str) -> str:
        return f"{self._http.base_url}{path.lstrip('/')}"

    def _get(self, path: str, query: dict[str, Any], may_lack: bool) -> dict[str, Any]:
        import httpx

        location = self._where(path)
        try:
            response = self._wait(self._http.get, path, params=query)
            # Older releases of Phoenix have no annotations.
            if may_lack and response.status_code == 404:
                logger.warning("{}: HTTP 404: this Phoenix has no annotations", location)
                return {}
            response.raise_for_status()
            reply = response.json()
        except httpx.HTTPStatusError as error:
            detail = " ".join(error.response.text.split())[:200]
            hint = f"; is {KEY_VARIABLE} set?" if error.response.status_code in (401, 403) else ""
            raise DataError(
                f"{location}: HTTP {error.response.status_code} {detail}{hint}",
                code=Code.SERVICE_ANSWER,
            ) from error
        except (httpx.HTTPError, ValueError) as error:
            raise DataError(
                f"{location}: {type(error).__name__}: {error}", code=Code.SERVICE_ANSWER
            ) from error
        if not isinstance(reply, dict) or not isinstance(reply.get("data"), list):
            raise DataError(
                f"{location}: the answer has no list `data`; is this a Phoenix server?",
                code=Code.SERVICE_ANSWER,
            )
        return reply
