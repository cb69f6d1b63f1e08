"""A teacher behind a server, which scores token ids: vLLM's /v1/completions with prompt_logprobs,
or SGLang's /generate. Both return the log-probability of each id of a prompt, at temperature 1,
with the id: no text is decoded. A wrong id or number ends the step, and so does a server that has
not answered after the last retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ajet.core.config import AjetConfig
from ajet.core.config.section import same_named
from ajet.core.errors import ConfigError, RunFailed
from ajet.core.errors.codes import Code
from ajet.core.inference.openai_endpoint import KEY_VARIABLES, NO_KEY, api_key
from ajet.core.net.http_client import LimitedAsyncClient, blocking
from ajet.core.ranks.ranks import ONE_RANK, Ranks
from ajet.core.text.plain_value import printable
from ajet.core.trajectory.sample import TrainingSample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TeacherApi = Literal["completions", "generate"]
TEACHER_KEY_VARIABLES = ("AJET_TEACHER_API_KEY", *KEY_VARIABLES)
BACKOFF_S = 0.5
RETRIED = (408, 409, 429)
MAX_ERROR_CHARACTERS = 300
IDS_PER_REQUEST = 2000
LOWEST, HIGHEST = -1e4, 1e-3
"""Bounds of a log-probability: vLLM has -9999 for an impossible token, and rounding may give a
little more than 0."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the teacher is, and how requests are sent."""

    base_url: str
    model: str
    api: TeacherApi = "completions"
    timeout_s: float = 300.0
    max_retries: int = 3
    max_parallel: int = 16
    backoff_s: float = BACKOFF_S

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        section = config.ajet.distillation
        connection: dict[str, Any] = {
            "base_url": section.base_url or "",
            "model": section.model or "",
        }
        return cls(**same_named(cls, section) | connection)

    @property
    def root(self) -> str:
        """The server's address without the `/v1` of OpenAI's paths."""
        return self.base_url.rstrip("/").removesuffix("/v1")


class TeacherServer:
    """Implements `Scorer` over HTTP. The key is read from the environment: AJET_TEACHER_API_KEY,
    AJET_ENDPOINT_API_KEY or OPENAI_API_KEY."""

    def __init__(self, address: ServerAddress, ranks: Ranks = ONE_RANK) -> None:
        self._at, self._ranks = address, ranks
        self._key = api_key(TEACHER_KEY_VARIABLES)

    def check(self, tokenizer: PreTrainedTokenizerBase, max_model_len: int) -> None:
        """Raises a ConfigError unless the server has the model, a context of more than
        `max_model_len` tokens, and the tokenizer's text for each of its ids."""
        try:
            with blocking() as wait:
                wait(self._check, tokenizer, max_model_len)
        except RunFailed as error:
            raise ConfigError(f"ajet.distillation: {error}", code=Code.CHAT_ADDRESS) from None

    def score(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Implements `Scorer.score`. Raises RunFailed on every rank if a request of one failed."""
        # Samples with a trained token are dealt out to the ranks, and collected in the same order.
        share = [sample for sample in samples if sample.num_trained]
        share = share[self._ranks.rank :: self._ranks.size]
        scores, failure = None, None
        try:
            with blocking() as wait:
                scores = wait(self._score_all, share)
        except RunFailed as error:
            failure = str(error)
        gathered = self._ranks.all_gather((scores, failure))
        if failures := [failure for _, failure in gathered if failure is not None]:
            raise RunFailed(failures[0], code=Code.CHAT_NO_ANSWER)
        shares = [iter(share) for share, _ in gathered]
        trained = (n for n, sample in enumerate(samples) if sample.num_trained)
        scores_by_sample = {n: next(shares[k % len(shares)]) for k, n in enumerate(trained)}
        return [
            scores_by_sample.get(n, np.zeros(len(s), np.float32)) for n, s in enumerate(samples)
        ]

    async def _score_all(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        slots = asyncio.Semaphore(self._at.max_parallel)

        async def score(sample: TrainingSample) -> NDArray[np.float32]:
            async with slots:
                return await self._score(client, sample)

        async with self._client() as client:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(score(sample)) for sample in samples]
            except ExceptionGroup as failed:  # the first failure has ended the others
                raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _score(
        self, client: LimitedAsyncClient, sample: TrainingSample
    ) -> NDArray[np.float32]:
        if sample.masks is not None:
            raise RunFailed(
                f"teacher {self._at.model} at {self._at.base_url}: it cannot score replies that "
                "were sampled under a grammar (response_format, strict tools): use "
                "ajet.distillation.path",
                code=Code.GRAMMAR,
            )
        # Tokens after the last trained one are not sent; SGLang is asked from the first one on.
        trained = np.flatnonzero(sample.loss_mask)
        first, end = int(trained[0]), int(trained[-1]) + 1
        ids = sample.token_ids[:end].tolist()
        body: dict[str, Any]
        if self._at.api == "completions":
            path, read = "/v1/completions", completions_logprobs
            # 0: the log-probabilities of the prompt's tokens, without alternatives.
            body = {"model": self._at.model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
        else:
            path, read = "/generate", generate_logprobs
            body = {
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": 1},
                "return_logprob": True,
                "logprob_start_len": first - 1,  # the token there has none
            }
        answer = await self._request(client, "POST", path, body)
        try:
            logprobs = read(answer, ids, first)
        except ValueError as error:
            raise self._failure(f"{path}: {error}") from None
        scores = np.zeros(len(sample), np.float32)
        scores[first:end] = logprobs
        return np.where(sample.loss_mask, scores, np.float32(0))

    async def _check(self, tokenizer: PreTrainedTokenizerBase, max_model_len: int) -> None:
        async with self._client() as client:
            self._check_model(await self._request(client, "GET", "/v1/models"), max_model_len)
            ids = sorted(tokenizer.get_vocab().values())
            for start in range(0, len(ids), IDS_PER_REQUEST):
                await self._check_texts(client, tokenizer, ids[start : start + IDS_PER_REQUEST])

    def _check_model(self, answer: Any, max_model_len: int) -> None:
        cards = answer.get("data") if isinstance(answer, dict) else None
        model_cards = [card for card in cards or () if isinstance(card, dict) and "id" in card]
        names = [printable(str(card["id"]))[:80] for card in model_cards]
        if self._at.model not in names:
            has = f"it has {', '.join(names)}" if names else "it names none"
            raise self._failure(f"no model of this name; {has}")
        context = model_cards[names.index(self._at.model)].get("max_model_len")
        if isinstance(context, int) and context <= max_model_len:
            raise self._failure(
                f"its context has {context} tokens, but a trained sequence with the one token that "
                f"the server adds has up to {max_model_len + 1} "
                "(ajet.rollout.max_model_len): start it with a longer one"
            )

    async def _check_texts(
        self, client: LimitedAsyncClient, tokenizer: PreTrainedTokenizerBase, ids: list[int]
    ) -> None:
        body = {"model": self._at.model, "tokens": ids, "skip_special_tokens": False}
        if self._at.api == "completions":
            del body["skip_special_tokens"]  # vLLM never skips them
        answer = await self._request(client, "POST", "/detokenize", body)
        fields = answer if isinstance(answer, dict) else {}
        text = fields.get("prompt", fields.get("text"))  # vLLM's name and SGLang's
        if text != tokenizer.decode(ids, skip_special_tokens=False):
            raise self._failure(
                f"its tokens {ids[0]} to {ids[-1]} are not the policy's, whose ids it would score: "
                "use a teacher with the same tokenizer"
            )

    def _client(self) -> LimitedAsyncClient:
        headers = {} if self._key == NO_KEY else {"Authorization": f"Bearer {self._key}"}
        timeout_s = self._at.timeout_s
        return LimitedAsyncClient(base_url=self._at.root, headers=headers, timeout=timeout_s)

    async def _request(
        self, client: LimitedAsyncClient, method: str, path: str, body: Any = None
    ) -> Any:
        """Returns the answer's JSON; retries after 408, 409, 429, 5xx, a broken connection and a
        timeout. Raises RunFailed."""
        import httpx

        reason = ""
        for attempt in range(self._at.max_retries + 1):
            if attempt:
                await asyncio.sleep(self._at.backoff_s * 2 ** (attempt - 1))
            try:
                response = await client.request(method, path, json=body)
            except httpx.DecodingError as error:
                raise self._failure(f"{path}: {error}") from None
            except httpx.TimeoutException:
                reason = f"no answer within {self._at.timeout_s:g} s"
            except httpx.HTTPError as error:
                reason = f"cannot be reached or broke off: {error or type(error).__name__}"
            else:
                reason = f"{response.status_code} {response.text}"
                if response.status_code == 200:
                    try:
                        return response.json()
                    except (ValueError, RecursionError):
                        raise self._failure(f"{path}: the answer is not JSON") from None
                if response.status_code < 500 and response.status_code not in RETRIED:
                    break
        else:
            reason += f" (tried {self._at.max_retries + 1} times)" if self._at.max_retries else ""
        raise self._failure(f"{path}: {reason}")

    def _failure(self, reason: str) -> RunFailed:
        line = " ".join(reason.split())
        if self._key != NO_KEY:
            line = line.replace(self._key, "***")
        line = printable(line)[:MAX_ERROR_CHARACTERS]
        return RunFailed(
            f"teacher {self._at.model} at {self._at.base_url}: {line}", code=Code.CHAT_NO_ANSWER
        )


def completions_logprobs(answer: Any, ids: Sequence[int], first: int) -> list[float]:
    """Returns the log-probabilities of ids[first:]. Raises a ValueError of one line."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    entries = choice.get("prompt_logprobs") if isinstance(choice, dict) else None
    if not isinstance(entries, list) or len(entries) != len(ids):
        raise _wrong_number(entries, len(ids))
    logprobs: list[float] = []
    for position in range(first, len(ids)):
        entry, name = entries[position], str(ids[position])
        details = entry.get(name) if isinstance(entry, dict) else None
        value = details.get("logprob") if isinstance(details, dict) else None
        logprobs.append(_logprob(value, position, ids[position]))
    return logprobs


def generate_logprobs(answer: Any, ids: Sequence[int], first: int) -> list[float]:
    """Returns the log-probabilities of ids[first:]. Raises a ValueError of one line."""
    info = answer.get("meta_info") if isinstance(answer, dict) else None
    entries = info.get("input_token_logprobs") if isinstance(info, dict) else None
    if not isinstance(entries, list) or len(entries) != len(ids) - first + 1:
        raise _wrong_number(entries, len(ids) - first + 1)
    logprobs: list[float] = []
    for position, entry in enumerate(entries[1:], first):
        value, name = entry[:2] if isinstance(entry, list) and len(entry) > 1 else (None, None)
        # SGLang writes 0 for the last id of its vocabulary.
        is_same = name in (ids[position], 0) and not isinstance(name, bool)
        logprobs.append(_logprob(value if is_same else None, position, ids[position]))
    return logprobs


def _wrong_number(entries: Any, number: int) -> ValueError:
    has = len(entries) if isinstance(entries, list) else "no"
    return ValueError(f"{has} log-probabilities for {number} prompt tokens")


def _logprob(value: Any, position: int, token_id: int) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not LOWEST <= value <= HIGHEST:
        description = printable(repr(value))[:40] if is_number else "none"
        raise ValueError(
            f"the log-probability of token {position} (id {token_id}) is {description}, not a "
            f"number from {LOWEST:g} to 0"
        )
    return float(value)
