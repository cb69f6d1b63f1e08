"""Converts the files of training and held-out rows to `ajet.task_reader.dataset`, which reads one
file of a split, or those of one folder whose names begin with it.
"""

from pathlib import Path

from ajet.convert.draft import Draft

READER = "ajet.task_reader"
DATASET = f"{READER}.dataset"
FILES = (".parquet", ".jsonl", ".json", ".csv", ".arrow")


def take_files(draft: Draft, train_key: str, held_out_key: str) -> None:
    """Converts the paths of the tasks; what ajet's reader cannot express is left out."""
    has_training = _place(draft, train_key, "training", "train")
    has_held_out = _place(draft, held_out_key, "validation", "test")
    if not has_training:
        draft.to_do(f"say where the tasks are: {READER}")
    if has_training or has_held_out:
        draft.result.values[f"{READER}.type"] = "dataset"
        draft.result.origins[f"{READER}.type"] = train_key if has_training else held_out_key
    if not has_held_out:
        draft.set(f"{DATASET}.validation_split", None, held_out_key)


def _place(draft: Draft, key: str, name: str, split: str) -> bool:
    """Sets the path in the key, and a folder's split. Returns False for no path, or several."""
    value = draft.take(key)
    if draft.unknown(key):
        draft.set(f"{DATASET}.{name}", value, key)
        return True
    files = [file for file in (value if isinstance(value, list) else [value]) if file]
    if not files:
        return False
    first = Path(files[0])
    # ajet's reader takes one file, or all files of a split in one folder.
    if len({(Path(file).parent, _split(file), Path(file).suffix) for file in files}) > 1:
        suffix = first.suffix if first.suffix.lower() in FILES else ".parquet"
        names = [f"{split}-{number}{suffix}" for number in range(len(files))]
        draft.refuse(
            key,
            f"a split is one file, or files of one folder: copy them into one as {names[0]} to "
            f"{names[-1]}, and name it at {DATASET}.{name}",
        )
        return False
    if len(files) > 1:
        draft.set(f"{DATASET}.{name}", str(first.parent), key)
        draft.set(f"{DATASET}.{name}_split", _split(files[0]), key)
        draft.to_do(
            f"see that {first.parent} has no more files whose names begin with "
            f"{_split(files[0])!r}: all of them are read, and {key} names {len(files)}"
        )
        return True
    draft.set(f"{DATASET}.{name}", files[0], key)
    if first.suffix.lower() not in FILES:  # a folder, or a repository of the Hub
        draft.to_do(
            f"see that the split {split} of {files[0]} is what {key} means ({DATASET}.{name}_split)"
        )
    return True


def _split(file: str) -> str:
    """Returns the split that our reader sees in a file name: ``train`` for
    ``train-00000-of-00002.parquet``."""
    return Path(file).name.split(".")[0].split("-")[0]
