"""The tree of errors.

    AjetError                 caught at the command line's edge: one line, exit 1
    ├── ConfigError           the YAML or an override: a key, a type, a path, a class
    ├── DataError             the dataset: missing, empty, a row without its field
    ├── ModelError            the model folder: no tokenizer, no chat template, unknown architecture
    ├── CheckpointError       no usable checkpoint, a run folder in use, a full disk
    ├── ChatError             somebody else's model (a judge's, say) gave no answer
    ├── RunChanged            an unfinished run would continue as another experiment
    ├── RunComplete           no step remains; the command line ends with exit code 0
    ├── RunFailed             the run stops itself: too many failed episodes, lost processes, a
    │                         sampler that is no longer the trainer's policy
    └── TraceError            a receiver of traces does not accept them

A message says what, where and what to do. Callers catch these classes; `code` names the kind of
mistake (codes.py), and the kinds that are raised most often have a class below these. An episode's
failure is not in this tree: it is an `EpisodeStatus`.
"""

from collections.abc import Sequence
from typing import ClassVar

from ajet.core.errors.codes import Code


class AjetError(Exception):
    """Base class of errors that the user can correct; the message is one line. `usual_code` is for
    classes whose errors are all of one kind; others are raised with a `code`. `where` is the place
    that the message begins with (``x.yaml:7: ajet.sed``), if it is known apart from it; `parts` are
    the single errors of a message about several."""

    usual_code: ClassVar[Code] = Code.RAISED_BY_OWN_CODE

    def __init__(
        self,
        message: str,
        *,
        code: Code | None = None,
        where: str | None = None,
        parts: "Sequence[AjetError]" = (),
    ) -> None:
        super().__init__(message)
        self.code = code or self.usual_code
        self.where, self.parts = where, parts

    def with_code(self) -> str:
        """Returns the message as the command line shows it: the code ends its first line."""
        first, *more = str(self).split("\n")
        return "\n".join([f"{first} [{self.code}]", *more])


class ConfigError(AjetError):
    """Raised when the config is wrong: a key, a type, a path or a class it names."""


class KeyMissing(ConfigError):
    """Raised when a key that the run needs is not set."""

    usual_code = Code.KEY_MISSING


class KeysConflict(ConfigError):
    """Raised when two keys, or a key and an option, exclude each other."""

    usual_code = Code.KEYS_CONFLICT


class OptionError(ConfigError):
    """Raised when the value of a command's option is wrong."""

    usual_code = Code.OPTION_VALUE


class SettingError(ConfigError):
    """Raised when an environment does not take a setting, or its value."""

    usual_code = Code.ENVIRONMENT_SETTING


class NoSuchEnvironment(ConfigError):
    """Raised when an environment, or a task of it, does not exist."""

    usual_code = Code.NO_SUCH_ENVIRONMENT


class UnknownName(ConfigError):
    """Raised when the config names something that is not registered."""

    usual_code = Code.UNKNOWN_NAME


class WrongKind(ConfigError):
    """Raised when an object of the user's code is not of the class that is needed."""

    usual_code = Code.OWN_WRONG_KIND


class PackageMissing(ConfigError):
    """Raised when a package is needed that is not installed."""

    usual_code = Code.PACKAGE_MISSING


class TooFewGpus(ConfigError):
    """Raised when the run is planned for more GPUs than there are."""

    usual_code = Code.TOO_FEW_GPUS


class DataError(AjetError):
    """Raised when the dataset is missing or empty, or a row lacks a field."""


class DataNotFound(DataError):
    """Raised when a data file, folder or split does not exist."""

    usual_code = Code.DATA_NOT_FOUND


class EpisodeNotFound(DataError):
    """Raised when a run has no such episode, call or token."""

    usual_code = Code.EPISODE_NOT_FOUND


class RowError(DataError):
    """Raised when a row does not have a form that its reader takes."""

    usual_code = Code.ROW_FORM


class ModelError(AjetError):
    """Raised when the model cannot be loaded or used."""


class UnsupportedModel(ModelError):
    """Raised when a model cannot be trained or sampled in this way."""

    usual_code = Code.MODEL_UNSUPPORTED


class CheckpointError(AjetError):
    """Raised when a checkpoint or the run folder cannot be read or written."""


class RecordError(CheckpointError):
    """Raised when a file of a run's record cannot be read."""

    usual_code = Code.RECORD_UNREADABLE


class ChatError(AjetError):
    """Raised when a model behind an HTTP API, not the one in training, gave no answer."""


class RunChanged(AjetError):
    """Raised when an unfinished run would continue with another workflow, judge, data or config."""

    usual_code = Code.RUN_CHANGED


class RunComplete(AjetError):
    """Raised when a run that is restarted is already finished."""

    usual_code = Code.RUN_COMPLETE


class TraceError(AjetError):
    """Raised when a receiver of traces does not accept them."""

    usual_code = Code.TRACES_NOT_TAKEN


class RunFailed(AjetError):
    """Raised when the run stops itself, after saving its last complete step."""


class EnvironmentFault(Exception):
    """Raised by a workflow or a tool when the environment failed and not the agent."""


class BlockingCall(RuntimeError):
    """Raised when code on the event loop waits without `await`, which would block all other
    episodes. It may do so in a thread."""
