"""Removes secrets from what ajet writes: configs, command lines, log lines, errors.

    redact("401 for sk-ajet-0123…ef")                   ->  "401 for sk-ajet-…"
    redact("postgresql://me:pw@db/runs?password=pw")    ->  "postgresql://***@db/runs?password=***"
    redact("Authorization: Bearer abc123")              ->  "Authorization: ***"
    FreeForm().redacted({"size": 4, "seller": "x7"})    ->  {"size": 4, "seller": "***"}

`redact` removes everything that looks like a secret, and the secrets that this process knows: those
of `remember_secrets` and of the environment. `FreeForm` redacts values whose keys ajet does not
define. It hides every text unless its key is harmless or ``ajet.not_secret`` names it
(docs/adr/0027-secrets.md). What the user's code prints and what the model reads and writes is
recorded unchanged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

PREFIX = "sk-ajet-"
REDACTED = "***"
MIN_KNOWN_LENGTH = 8
"""Shorter secrets are not searched for in texts: they would match ordinary words."""

# --- names of keys -------------------------------------------------------------------------------

_PASSWORD_WORDS = {"password", "passwords", "passwd", "pwd", "passphrase", "passcode", "pin"}
_PASSWORD_WORDS |= {"secret", "secrets", "credential", "credentials", "creds"}
_SECRET_WORDS = _PASSWORD_WORDS | {"token", "apikey", "accesskey", "secretkey", "privatekey"}
_SECRET_WORDS |= {"auth", "authorization", "authentication", "oauth", "bearer", "jwt", "signature"}
_SECRET_WORDS |= {"cookie", "cookies", "dsn", "pat", "webhook"}
_MEASURES = {"len", "length", "count", "limit", "budget"}
"""After `token`, these mean a number of tokens: ``max_token_len_per_gpu``."""
_SECRET_ENDINGS = ("password", "passwd", "secret", "token", "apikey")
_OPAQUE = ("header", "headers", "env", "environ", "env_vars", "environment_variables")
"""Sections in which every text is treated as a secret, whatever its key."""
_HARMLESS_WORDS = set(
    """
    mode type kind level difficulty style strategy effort role side order unit format version
    protocol backend device dtype language lang locale split method algorithm scope transport
    name model file files path dir folder directory field column class cls module workflow judge
    prompt instruction instructions template description question stop
    products attributes goals actions map desc symbols view
    url urls uri host endpoint address
    """.split()  # noqa: SIM905  # one name a line would be sixty lines
)
"""Last words of keys whose texts are kept. By line: variants; names of files, data and code;
prompts, which the record has anyway; settings of ajet's environments; addresses (logins go)."""
_NO_SECRET_VARIABLES = ("PWD", "OLDPWD", "GPG_KEY")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@lru_cache(maxsize=4096)
def _words(key: str) -> tuple[str, ...]:
    """Returns ``("aws", "access", "key")`` for ``aws_access_key``, ``awsAccessKey`` and
    ``AWS-ACCESS-KEY``."""
    return tuple(word.lower() for word in _WORD.findall(key))


@lru_cache(maxsize=4096)
def is_secret_key(key: str) -> bool:
    """Returns True if a key names a secret: ``api_key``, ``hf_token``, ``GITHUB_PAT``, ``Cookie``;
    not ``tokenizer`` or ``max_tokens``."""
    words = _words(key)
    if not words:
        return False
    words = tuple(
        word
        for word, following in zip(words, (*words[1:], ""), strict=True)
        if not (word == "token" and following in _MEASURES)
    )
    return (
        words[-1] in ("key", "keys")
        or not _SECRET_WORDS.isdisjoint(words)
        or words[-1].endswith(_SECRET_ENDINGS)
    )


def _is_password_key(key: str) -> bool:
    """Returns True if even a number under this key is a secret (a PIN)."""
    words = _words(key)
    return bool(words) and (words[-1] in _PASSWORD_WORDS or words[-1].endswith("password"))


def _is_harmless_key(key: str) -> bool:
    words = _words(key)
    return bool(words) and words[-1] in _HARMLESS_WORDS and not is_secret_key(key)


def _names_secret_variable(name: str) -> bool:
    """Returns True if the environment variable holds a secret, and not the path or the type of one
    (``SSH_AUTH_SOCK``, ``AWS_SHARED_CREDENTIALS_FILE``)."""
    words = _words(name)
    return (
        name not in _NO_SECRET_VARIABLES
        and is_secret_key(name)
        and words[-1] not in (*_HARMLESS_WORDS, "sock", "socket")
    )


# --- forms of secrets in a text ------------------------------------------------------------------

# A model or a tool may have written these texts, so every pattern must take linear time. Unbounded
# repetitions are possessive (*+, ++) and start where no other match can start.

_OWN_KEY = re.compile(f"{PREFIX}[0-9a-f]{{32}}")
_LOGIN = re.compile(r"(?<=://)[^/@\s]++(?=@)")
_BEFORE_AT = re.compile(r"(?<![^@\s])[^@\s]++(?=@)")
_DATABASE_LOGIN = re.compile(r"(?<=://)(?<!http://)(?<!https://)[^/:]*+:.+")
"""Searched in the text before an ``@``. Unlike those in HTTP addresses, passwords of databases may
contain a slash."""
_NAMED = (
    r"[\w.-]*(?:password|passwd|pwd|passphrase|secret|credential|authorization|cookie|"
    r"api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|auth[_-]?key|secret[_-]?key|token|"
    r"[_-]pat)"
)
_OPTION = re.compile(
    rf"(?<=[?&;])(?=[\w.-]*+=)((?>{_NAMED}[\w.-]*+=)|(?:key|sig|code|auth)=)[^&;\s'\"]+", re.I
)
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]+-----|\Z)", re.S
)
_KEY_FORMS = re.compile(
    r"\b(?:sk-(?!ajet-)[\w-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|gl(?:pat|rt|dt|cbt)-[\w-]{16,}|"
    r"hf_[A-Za-z0-9]{20,}|xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|"
    r"AIza[\w-]{30,}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|[rs]k_(?:live|test)_\w{16,}|whsec_\w{16,}|"
    r"npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|gsk_\w{20,}|xai-[\w-]{20,}|dapi[0-9a-f]{32}|r8_\w{30,}|"
    r"hv[sbr]\.[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|SK[0-9a-f]{32}|key-[0-9a-f]{32}|"
    r"(?:nvapi|pplx|csk|tvly|tgp_v1|dckr_pat)[-_][\w-]{20,}|(?:fw|e2b|ntn|lin_api)_[A-Za-z0-9]{20,}|"
    r"lsv2_(?:pt|sk)_\w{20,}|do[opr]_v1_[0-9a-f]{32,})|"
    r"(?<![\w-])(?=[\w-]++\.eyJ[\w-]{8})[\w-]*?\beyJ[\w-]{8,}+\.eyJ[\w-]{8,}+(?:\.[\w-]*+)?"
)
"""Keys with a recognizable prefix: OpenAI and lookalikes, GitHub, GitLab, Hugging Face, Slack, AWS,
Google, Stripe, npm, PyPI, Groq, xAI, Databricks, Replicate, Vault, SendGrid, Twilio, Mailgun;
NVIDIA, Perplexity, Cerebras, Tavily, Together, Docker, Fireworks, E2B, Notion, Linear, LangSmith,
DigitalOcean; JSON web tokens."""
_CURL_USER = re.compile(r"(?<!\S)((?:-u|--user)[ =]?[\"']?[^\s:\"'=]+:)[^\s\"']+")
_BEARER = re.compile(
    r"\b(Bearer(?=\s+\S{8})|(?:bearer|[Tt]oken|[Bb]asic)(?=\s+\S*\d)(?=\s+\S*[A-Za-z]))"
    r"\s+[\w.~+/=-]{6,}"
)
_AUTHORIZATION = re.compile(
    r"(authorization[\"']?\s*[:=]\s*[\"']?)(?!\*)"
    r"(?:(?:bearer|basic|token|digest|apikey)\s+[^\s\"',}]+|(?=\S{0,200}\d)[^\s\"',}]{6,})",
    re.I,
)
_QUOTED = re.compile(
    rf"((?:[\"']{_NAMED}[\"']\s*:|[\"']--?{_NAMED}[\"']\s*,)\s*)([\"'])(?:(?!\2).)+\2", re.I
)
"""``'api_key': 'S'`` of a dict, ``"--api-key", "S"`` of a list."""
_ASSIGNED = re.compile(
    rf"(?<![?&;\w.-])({_NAMED}=)(?!\*\*\*|null\b|None\b|true\b|false\b)(\"[^\"]*\"|'[^']*'|[^\s,;&'\")]+)",
    re.I,
)
_FLAG = re.compile(rf"(?<!\S)(--?{_NAMED}[ =])(?!-)[^\s'\"]+", re.I)
_STATED = re.compile(rf"(?<![\w.-])({_NAMED}: )(?=\S*\d)(?=\S*[a-z])(?=\S{{6}})[^\s,;'\"]+", re.I)
"""``password: S`` in a sentence, with letters and digits: not ``api_key: no such key``."""
_ADDRESS = re.compile(r"://[^?#]*+")
_RANDOM_SEGMENT = re.compile(r"/((?=[^/]*\d)(?=[^/]*[A-Za-z])[\w:~-]{20,})")
"""A part of an address's path that may be a secret, as in webhooks."""


def redact(text: str) -> str:
    """Returns the text of a log line, an error or a command line without secrets."""
    text = _OWN_KEY.sub(f"{PREFIX}…", text) if PREFIX in text else text
    variables = {
        value
        for name, value in os.environ.items()
        if len(value) >= MIN_KNOWN_LENGTH and _names_secret_variable(name)
    }
    # The longest first: one secret may contain another.
    for secret in sorted(_known | variables, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return without_secret_forms(text)


def without_secret_forms(text: str) -> str:
    """Returns the text without anything that looks like a secret."""
    text = without_keys_and_logins(text)
    text = _AUTHORIZATION.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _QUOTED.sub(rf"\1\2{REDACTED}\2", text)
    for form in (_ASSIGNED, _FLAG, _STATED, *([_CURL_USER] if "curl" in text else [])):
        text = form.sub(rf"\1{REDACTED}", text)
    return text


def without_keys_and_logins(text: str) -> str:
    """Returns the text without keys of well-known services and without logins in addresses. A
    sentence about passwords is unchanged."""
    if PREFIX in text:
        text = _OWN_KEY.sub(f"{PREFIX}…", text)
    if "://" in text:
        text = _LOGIN.sub(REDACTED, text)
        text = _BEFORE_AT.sub(lambda before: _DATABASE_LOGIN.sub(REDACTED, before[0]), text)
        text = _OPTION.sub(rf"\1{REDACTED}", text)
    return _KEY_FORMS.sub(REDACTED, _PRIVATE_KEY.sub(REDACTED, text))


# --- secrets that this process knows -------------------------------------------------------------

_known: set[str] = set()


def remember_secrets(secrets: Iterable[str]) -> None:
    """Adds secrets for `redact` to remove, also in their escaped forms. Short ones are ignored."""
    for secret in secrets:
        for line in (secret, *secret.splitlines()):
            if line.startswith("-----"):  # BEGIN and END of a private key
                continue
            forms = (line.strip(), repr(line)[1:-1], json.dumps(line)[1:-1], quote(line, safe=""))
            _known.update(form for form in forms if len(form) >= MIN_KNOWN_LENGTH)


# --- free-form values ----------------------------------------------------------------------------


def is_kept(path: str, not_secret: Iterable[str]) -> bool:
    """Returns True if a pattern in `not_secret` matches the path; ``*`` stands for one name."""
    patterns = (re.escape(kept).replace(r"\*", "[^.]*") for kept in not_secret)
    return any(re.fullmatch(pattern, path) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the keys above a value say about it."""

    is_secret: bool = False
    is_password: bool = False  # numbers are secrets too
    is_kept: bool = False  # below a path of `not_secret`: only keys that name a secret hide it
    is_named: bool = False  # `not_secret` names exactly this path: nothing hides it
    is_harmless: bool = False


class FreeForm:
    """Redacts values whose keys ajet does not define, and collects what it replaced.

    `not_secret` are dotted paths of values to keep, with ``*`` for any one name. What is below such
    a path is kept too, unless a key names a secret. `references` maps paths to texts such as
    ``${oc.env:NAME}``, which are written in place of the secret.
    """

    def __init__(
        self, not_secret: Sequence[str] = (), references: Mapping[str, str] | None = None
    ) -> None:
        self._not_secret = not_secret
        self._references = references or {}
        self.secrets: set[str] = set()
        """The replaced texts that should be searched for elsewhere; no ordinary words."""

    def redacted(self, value: Any, *path: str) -> Any:
        """Returns the value at this path of the config with secrets replaced."""
        return self._value(value, path, self._at(path, _Context()))

    def allowed(self, value: Any, *path: str) -> Any:
        """Returns the value, hiding only what is a secret by its key or its form."""
        return self._value(value, path, self._at(path, _Context(is_kept=True)))

    def _at(self, path: Sequence[str], context: _Context) -> _Context:
        for length in range(1, len(path) + 1):
            context = self._below(context, path[:length])
        return context

    def secret(self, value: Any, *path: str) -> Any:
        """Returns the value of a key that ajet defines as a secret."""
        return self._value(value, path, _Context(is_secret=True))

    def harmless(self, value: Any, *path: str) -> Any:
        """Returns the value of a key that ajet defines as harmless, without the keys and logins
        that it may contain."""
        if isinstance(value, list):
            return [self.harmless(inner, *path, str(n)) for n, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        return self._shown(value, without_keys_and_logins(value), path)

    def _below(self, above: _Context, path: Sequence[str]) -> _Context:
        key = path[-1]
        if is_kept(".".join(path), self._not_secret):
            return _Context(is_named=True, is_kept=True)
        if key.isdigit():  # an element of a list has the context of the list
            return above
        return _Context(
            is_secret=above.is_secret or is_secret_key(key) or key.lower() in _OPAQUE,
            is_password=above.is_password or _is_password_key(key),
            is_kept=above.is_kept,
            is_harmless=_is_harmless_key(key),
        )

    def _value(self, value: Any, path: Sequence[str], context: _Context) -> Any:
        if isinstance(value, Mapping):
            return {
                without_keys_and_logins(key) if isinstance(key, str) else key: self._value(
                    inner, (*path, str(key)), self._below(context, (*path, str(key)))
                )
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return self._list(value, path, context)
        if value is None or value == "" or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            is_shown = context.is_named or not context.is_password
            return value if is_shown else self._replaced(str(value), path, context)
        return self._text(str(value), path, context)

    def _list(self, values: Sequence[Any], path: Sequence[str], context: _Context) -> list[Any]:
        redacted = []
        flag = ""
        for index, value in enumerate(values):
            inner = self._below(context, (*path, str(index)))
            if is_secret_key(flag) and not inner.is_named:  # ["--api-key", "S"]
                inner = _Context(is_secret=True)
            redacted.append(self._value(value, (*path, str(index)), inner))
            is_flag = isinstance(value, str) and value.startswith("-") and "=" not in value
            flag = value if is_flag else ""  # its argument is the next element
        return redacted

    def _text(self, text: str, path: Sequence[str], context: _Context) -> str:
        if context.is_named:
            return text
        if context.is_secret or not (context.is_kept or context.is_harmless):
            return self._replaced(text, path, context)
        if _random_segments(text):
            return self._replaced(text, path, context)
        return self._shown(text, without_secret_forms(text), path)

    def _shown(self, text: str, redacted: str, path: Sequence[str]) -> str:
        if redacted == text:
            return text
        self._remember_parts(text)
        return self._references.get(".".join(path), redacted)

    def _replaced(self, text: str, path: Sequence[str], context: _Context) -> str:
        # Other texts may be ordinary words or paths, which must stay readable elsewhere.
        is_random = re.fullmatch(r"(?=.*[A-Za-z])(?=.*\d)[^\s/]+", text) is not None
        if context.is_secret or context.is_password or is_random or _PRIVATE_KEY.search(text):
            self.secrets.add(text)
        self._remember_parts(text)
        return self._references.get(".".join(path), REDACTED)

    def _remember_parts(self, text: str) -> None:
        """Collects the secrets in a text: keys, logins, passwords, bearer tokens."""
        self.secrets.update((*_KEY_FORMS.findall(text), *_random_segments(text)))
        self.secrets.update(re.findall(r"\b(?:[Bb]earer|[Bb]asic|[Tt]oken)\s+(\S+)", text))
        logins = _LOGIN.findall(text)
        for before in _BEFORE_AT.findall(text):
            logins += _DATABASE_LOGIN.findall(before)
        for login in logins:
            password = login.partition(":")[2] or login
            self.secrets.update((login, password, unquote(password)))
        for option in _OPTION.finditer(text):
            self.secrets.add(option[0].partition("=")[2])
        for assigned in _ASSIGNED.finditer(text):
            self.secrets.add(assigned[2].strip("'\""))


def _random_segments(text: str) -> list[str]:
    """Returns the segments of paths in addresses that may be secrets."""
    addresses = _ADDRESS.findall(text)
    return [segment for address in addresses for segment in _RANDOM_SEGMENT.findall(address)]
