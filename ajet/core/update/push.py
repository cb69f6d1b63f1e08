"""Puts a model's folder into a repository of the Hugging Face Hub, with the Hub's own client. The
login is that of the Hub's library (`hf auth login`, or HF_TOKEN).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # from whichever HTTP client it uses
)

from ajet.core.errors import AjetError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import first_line

MAIN = "main"
REMEDIES = {
    401: "the login is not valid (any more): hf auth login",
    403: "the account may not write there: name a repository of your own or of an organization "
    "that lets you, and log in with a token that may write",
    404: "no such repository, or the account may not see it",
    409: "exists already; --revision main adds a commit to it, --revision NAME a branch",
}


class PushError(AjetError):
    """Raised when the Hub does not take a model."""

    usual_code = Code.HUB_REFUSED


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository of models. Without a `revision` it must be new; with one, the revision gets the
    commit, and is made if it is not there."""

    name: str
    revision: str | None = None
    is_public: bool = False

    def check(self) -> None:
        """Raises PushError where nobody is logged in, or the repository exists and no revision was
        named."""
        if get_token() is None:
            raise PushError(f"--push {self.name}: not logged in to the Hub: hf auth login")
        with self._errors():
            HfApi().whoami()
            if self.revision is None and HfApi().repo_exists(self.name):
                raise PushError(f"--push {self.name}: {REMEDIES[409]}")

    def push(self, folder: Path, message: str) -> str:
        """Uploads the folder as one commit; returns the repository's address."""
        api = HfApi()
        with self._errors():
            # With a revision the repository may be there, and keeps the visibility that it has.
            api.create_repo(
                self.name, private=not self.is_public, exist_ok=self.revision is not None
            )
            if self.revision not in (None, MAIN):
                api.create_branch(self.name, branch=self.revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=self.name,
                folder_path=folder,
                revision=self.revision,
                commit_message=message,
            )
        return str(commit.repo_url)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (HFValidationError, RuntimeError) as error:  # the latter for a file that it lost
            raise PushError(f"--push {self.name}: {first_line(str(error))}") from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            problem = REMEDIES.get(status, first_line(str(error)))
            raise PushError(f"--push {self.name}: {problem} (HTTP {status})") from error
        except (HTTPError, OSError) as error:
            raise PushError(
                f"--push {self.name}: the Hub does not answer: {first_line(str(error))}"
            ) from error
