"""Converts the files of training and held-out rows to settings of ajet's readers.

    data/train.parquet, data/test.parquet     huggingface_dat_repo: data, splits train and test
    a/train-0.parquet, a/train-1.parquet      huggingface_dat_repo: a, split train
    a/train.jsonl, b/test.jsonl               jsonl_dataset_file, which may lie anywhere
    a/train.parquet, b/test.parquet           the first alone, and the user is told
    a/train.parquet, b/train.parquet          left out, and the user is told what folder to make
    sets/Math-17k                             huggingface_dat_repo: a folder, or a name of the Hub

Not covered: whether the files are there.
"""

from pathlib import Path

from ajet.convert.draft import Draft

READER = "ajet.task_reader"
REPO = f"{READER}.huggingface_dat_repo"
LINES = f"{READER}.jsonl_dataset_file"
FILES = (".parquet", ".jsonl", ".json", ".csv", ".arrow")


def take_files(draft: Draft, train_key: str, held_out_key: str) -> None:
    """Converts the paths of the tasks; what ajet's readers cannot express is left out."""
    if train_key in draft.read.unresolved:
        draft.set(f"{REPO}.dataset_path", draft.take(train_key), train_key)
        if draft.has_key(held_out_key):
            reason = f"the files of {train_key}, beside which it is read, are not known"
            draft.leave_out(held_out_key, reason, algorithm=True)
        return
    train, held_out = _files(draft, train_key, "train"), _files(draft, held_out_key, "test")
    if not train:
        if held_out:
            draft.leave_out(held_out_key, "there are no training files beside it", algorithm=True)
        draft.to_do("say where the tasks are: ajet.task_reader")
    elif Path(train[0]).suffix == ".jsonl" and len(train) == 1 >= len(held_out):
        draft.set(f"{READER}.type", "jsonl_dataset_file", train_key)
        draft.set(f"{LINES}.training.file_path", train[0], train_key)
        if held_out:
            draft.set(f"{LINES}.validation.file_path", held_out[0], held_out_key)
    else:
        draft.set(f"{READER}.type", "huggingface_dat_repo", train_key)
        _repository(draft, train_key, train, held_out_key, held_out)


def _files(draft: Draft, key: str, split: str) -> list[str]:
    """Returns the files that the key names, if they are one split in one folder; several others are
    left out."""
    value = draft.take(key)
    files = [file for file in (value if isinstance(value, list) else [value]) if file]
    if len({(_folder(file), _split(file), Path(file).suffix) for file in files}) > 1:
        suffix = "" if _is_folder(files[0]) else Path(files[0]).suffix
        names = [f"{split}-{number}{suffix or '.parquet'}" for number in range(len(files))]
        draft.leave_out(
            key,
            f"a split is one file, or files of one folder: copy them into one as {names[0]} to "
            f"{names[-1]}, and name it at {REPO}.dataset_path",
            algorithm=True,
        )
        return []
    if len(files) > 1:
        draft.to_do(
            f"see that {Path(files[0]).parent} has no more files whose names begin with "
            f"{_split(files[0])!r}: all of them are read, and {key} names {len(files)}"
        )
    return files


def _repository(
    draft: Draft, train_key: str, train: list[str], held_out_key: str, held_out: list[str]
) -> None:
    folder = _folder(train[0])
    is_elsewhere = bool(held_out) and _folder(held_out[0]) != folder
    if is_elsewhere:
        draft.to_do(
            f"put {', '.join(train)} and {', '.join(held_out)} into one folder, and name it at "
            f"{REPO}.dataset_path: there is no validation until then"
        )
    if _is_folder(train[0]):
        draft.set(f"{REPO}.dataset_path", train[0], train_key)
        draft.to_do(
            f"see that the split train of {train[0]} is what {train_key} means "
            f"({REPO}.training_split)"
        )
    elif is_elsewhere and len(train) == 1:
        draft.set(f"{REPO}.dataset_path", train[0], train_key)
    else:
        draft.set(f"{REPO}.dataset_path", folder, train_key)
        draft.set(f"{REPO}.training_split", _split(train[0]), train_key)
    if is_elsewhere or not held_out:
        draft.set(f"{REPO}.validation_split", None, held_out_key)
    elif not _is_folder(held_out[0]):
        draft.set(f"{REPO}.validation_split", _split(held_out[0]), held_out_key)


def _is_folder(file: str) -> bool:
    """Returns True for a name without a file's suffix: a folder, or a repository of the Hub."""
    return Path(file).suffix.lower() not in FILES


def _folder(file: str) -> str:
    return file if _is_folder(file) else str(Path(file).parent)


def _split(file: str) -> str:
    """Returns the split that our reader sees in a file name: ``train`` for
    ``train-00000-of-00002.parquet``."""
    return Path(file).name.split(".")[0].split("-")[0]
