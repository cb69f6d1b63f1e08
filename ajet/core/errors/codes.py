"""The kinds of errors that the command line reports, each with a permanent code.

    error: x.yaml:7: ajet.rollout.temprature: no such key; did you mean 'temperature'? [AJ-CFG-004]

`ajet why AJ-CFG-004` prints an entry, and docs/errors.md is generated from all of them. A code
is never reused and never changes its meaning; a new kind takes the next number of its area.
"""

from enum import Enum

AREAS = {
    "USE": "The command line",
    "CFG": "The config and its overrides",
    "OWN": "Your own classes and functions",
    "DAT": "Tasks and data",
    "MOD": "The model and its tokenizer",
    "RUN": "Runs, checkpoints and what is recorded",
    "CLU": "GPUs, Ray and several machines",
    "SRV": "Inference servers",
    "NET": "Other models, services and ports",
    "ENV": "Environments",
    "TOO": "Tools of agents",
    "PKG": "Optional packages",
    "CNV": "Configs of other systems",
}


class Code(Enum):
    """A kind of error. `value` is its code, such as AJ-CFG-004."""

    _value_: str
    title: str
    meaning: str
    causes: str
    remedy: str

    def __new__(cls, code_and_title: str, meaning: str, causes: str, remedy: str) -> "Code":
        member = object.__new__(cls)
        member._value_, _, member.title = code_and_title.partition(": ")
        member.meaning, member.causes, member.remedy = meaning, causes, remedy
        return member

    def __str__(self) -> str:
        return self.value

    # --- the command line -------------------------------------------------------------------------

    NO_SUCH_COMMAND = (
        "AJ-USE-001: no such command",
        "ajet has no command with the name on the command line.",
        "the command is misspelt; a config is given without --conf",
        "`ajet --help` lists the commands. Pass a config as `--conf FILE.yaml`.",
    )
    NO_SUCH_OPTION = (
        "AJ-USE-002: no such option",
        "The command has no option with this name.",
        "the option is misspelt; it is an option of another command",
        "`ajet COMMAND --help` lists the command's options.",
    )
    ARGUMENT_MISSING = (
        "AJ-USE-003: a required argument is missing",
        "A required option or argument is missing, or an option has no value.",
        "--conf is missing; the last option on the command line has no value",
        "Add what the message names; `ajet COMMAND --help` shows the syntax.",
    )
    OPTION_VALUE = (
        "AJ-USE-004: invalid value for an option",
        "A value has the wrong form, is not an allowed choice, or conflicts with another option.",
        "a number was expected; a file or folder does not exist; two options exclude each other",
        "Correct the value; the message says what is expected.",
    )
    OVERRIDE_WITH_DASHES = (
        "AJ-USE-005: an override is written as an option",
        "A config key is written as --key=value. Config keys take no dashes.",
        "habits from other command lines",
        "Write the key without dashes, for example ajet.seed=1.",
    )
    OPTIONS_TOGETHER = (
        "AJ-USE-006: an incomplete or conflicting set of options",
        "An option needs another one that is missing, or two options exclude each other.",
        "only one option of a pair is given",
        "Add the missing option, or remove one of the two, as the message says.",
    )
    OUTPUT_EXISTS = (
        "AJ-USE-007: the output already exists",
        "The output file or folder exists. Nothing is overwritten without --overwrite.",
        "the command has run before",
        "Choose another output, remove the old one, or add --overwrite if the message offers it.",
    )
    OUTPUT_NOT_WRITTEN = (
        "AJ-USE-008: the output cannot be written",
        "A file or folder that the command creates could not be written.",
        "no permission to write to the folder; the disk is full",
        "Free some space or choose another place. The run itself is unchanged.",
    )
    CURRENT_FOLDER_GONE = (
        "AJ-USE-009: the current folder no longer exists",
        "The folder in which the command was started is gone, so no path can be resolved.",
        "the folder was removed or recreated while a terminal was in it",
        "Change to an existing folder with `cd`, even if the name exists again.",
    )
    PATH_UNREACHABLE = (
        "AJ-USE-010: a path cannot be accessed",
        "The system refuses to look up a path of the command line or the config.",
        "this user may not search one of its parent folders; the name is too long",
        "Use another path, or give this user search permission on the parent folders.",
    )
    SWEEP_FORM = (
        "AJ-USE-011: the values of a sweep cannot be used",
        "`ajet sweep` got no key with several values, or values that it cannot make runs of.",
        "every key has one value; an interval without --random; the grid is too large",
        "Write KEY=a,b or KEY=range(0,5); with --random N also KEY=interval(0.1,1).",
    )

    # --- the config -------------------------------------------------------------------------------

    CONFIG_NOT_FOUND = (
        "AJ-CFG-001: no such config",
        "The file passed with --conf does not exist, or its name does not end in .yaml.",
        "the path is relative to another folder; the name is misspelt",
        "Give an absolute path, or one relative to the current folder, which is named.",
    )
    YAML_INVALID = (
        "AJ-CFG-002: invalid YAML",
        "The file cannot be parsed as YAML. The message names the place.",
        "a tab instead of spaces; no space after a colon; wrong indentation; an unclosed quote",
        "Correct the line that is named, or the one above it.",
    )
    CONFIG_FORM = (
        "AJ-CFG-003: wrong structure in the config",
        "The file is YAML, but has another structure than a config in the place that is named.",
        "the section `ajet:` is missing; a section is written as a list",
        "Use the structure that the message names; tutorial/ has complete configs.",
    )
    UNKNOWN_KEY = (
        "AJ-CFG-004: no such key",
        "The config or an override has a key that nothing reads. It is refused, because a "
        "misspelt key would silently train with the default.",
        "the key is misspelt; it belongs to another section; it is a key of another system, "
        "which `ajet convert` translates",
        "Use the suggested key. `ajet inspect schema` writes a JSON Schema with all keys, for "
        "completion in editors.",
    )
    WRONG_VALUE = (
        "AJ-CFG-005: invalid value for a key",
        "The value has the wrong type, is out of range, or is not one of the choices.",
        "text instead of a number; a misspelt choice; a number with a unit",
        "Use a value that the message describes.",
    )
    KEY_MISSING = (
        "AJ-CFG-006: a required key is missing",
        "The key has no default, or another key requires it.",
        "the key is not in the config",
        "Add the key to the YAML, or pass it as an override.",
    )
    KEY_REFUSED = (
        "AJ-CFG-007: an unsupported key",
        "ajet does not implement what this key asks for, and does not ignore it either.",
        "a config of another system or version",
        "Remove the key, or set the value that the message names.",
    )
    KEYS_CONFLICT = (
        "AJ-CFG-008: two settings contradict each other",
        "Each value is valid alone, but not both together.",
        "only one of two related settings was changed; the old and the new name of a key are "
        "both set",
        "Change one of the two, as the message says.",
    )
    OVERRIDE_FORM = (
        "AJ-CFG-009: a malformed override",
        "An argument of the command line is not written as key=value.",
        "a missing equals sign or spaces around it; the shell removed a quote or a bracket",
        "Write key=value, quoted if the value has spaces or brackets: "
        "'ajet.trainer_common.logger=[console,tensorboard]'.",
    )
    DEFAULTS_NOT_FOUND = (
        "AJ-CFG-010: a config named in defaults is missing",
        "`defaults:` in the YAML names a config that none of the searched folders has.",
        "the name is misspelt; hydra.searchpath names a folder that does not exist",
        "Correct the name, or add its folder to hydra.searchpath.",
    )
    REDACTED_VALUE = (
        "AJ-CFG-011: a redacted value",
        "The value is ***, which ajet writes in place of a secret.",
        "the config of a run folder is used again",
        "Set the real value with an override or as ${oc.env:NAME}.",
    )
    REFERENCE_FAILS = (
        "AJ-CFG-012: an unresolved reference in the config",
        "A ${…} in the config cannot be replaced by a value.",
        "the environment variable is not set; the key that it names does not exist",
        "Set the variable, give a default as ${oc.env:NAME,default}, or write the value.",
    )
    PROJECT_DIR_MISSING = (
        "AJ-CFG-013: no such project folder",
        "The folder passed with --project-dir does not exist.",
        "the path is relative to another folder",
        "Pass the folder that has your workflow's files.",
    )
    SEVERAL_MISTAKES = (
        "AJ-CFG-014: several mistakes in the config",
        "The config has more than one mistake. Each is reported on a separate line.",
        "unknown keys (AJ-CFG-004); invalid values (AJ-CFG-005)",
        "Correct them one by one. A misspelt key may cause the mistakes below it.",
    )
    UNKNOWN_NAME = (
        "AJ-CFG-015: unknown name",
        "A value selects something by name, and nothing has that name.",
        "the name is misspelt; it belongs to another version",
        "Use one of the names in the message.",
    )
    CHECK_FAILED = (
        "AJ-CFG-016: the check found errors",
        "`ajet check` printed at least one line starting with `error:`. Training would stop there.",
        "see each line",
        "Correct the errors in order, and check again.",
    )
    UPDATE_SETTING = (
        "AJ-CFG-017: an algorithm setting is out of range",
        "A learning rate, a clip bound, a schedule or the like is outside of its range.",
        "a lower bound above the upper one; a schedule longer than the run",
        "Set a number in the range that the message names.",
    )
    FOLDER_NAME = (
        "AJ-CFG-018: a folder's name cannot be encoded",
        "The locale's encoding cannot represent the name of a folder.",
        "LANG or LC_ALL is C or POSIX",
        "Set LC_ALL=C.UTF-8, or use a folder with an ASCII name.",
    )
    ADAPTER_UNKNOWN = (
        "AJ-CFG-020: no adapter for a call or a task",
        "No adapter of the config has the name that an agent, a tag or a task's metadata gives.",
        "the agent has another name in the workflow; the data has a user who is not listed",
        "Add the name to ajet.trainer_common.lora.adapters, or change adapter_by.",
    )

    # --- the user's own code ----------------------------------------------------------------------

    OWN_FILE_NOT_FOUND = (
        "AJ-OWN-001: your file or module is not found",
        "The config names a Python file or module that does not exist.",
        "the path is relative to another folder; the name is misspelt",
        "Run from the project's root, or pass --project-dir. The searched folders are listed.",
    )
    OWN_FILE_FAILS = (
        "AJ-OWN-002: your file does not load",
        "Python raised an error while importing the file.",
        "a syntax error; a package that is not installed; code that runs on import",
        "Correct the line that is named. `python FILE.py` shows the whole traceback. Put code "
        'that should not run on import under if __name__ == "__main__".',
    )
    OWN_NAME_NOT_FOUND = (
        "AJ-OWN-003: no such class or function",
        "The file or module loads, but does not define the name after the arrow.",
        "the name is misspelt; the class was renamed",
        "Use a name that the message suggests.",
    )
    OWN_WRONG_KIND = (
        "AJ-OWN-004: the wrong type of object",
        "The name exists, but is a function instead of a class, a class with the wrong base, or an "
        "agent that cannot be given the trained model.",
        "the base class is missing; two keys are mixed up; the agent makes its model itself",
        "Do what the message says: derive the class from a base, or take the model as an argument.",
    )
    OWN_METHOD_MISSING = (
        "AJ-OWN-005: a method is missing",
        "The class does not define a method that ajet calls.",
        "the method's name is misspelt; the class is unfinished",
        "Define the method as the message shows it.",
    )
    OWN_SIGNATURE = (
        "AJ-OWN-006: a wrong signature",
        "A method or constructor does not take what ajet passes, or is async where it must not "
        "be, or the reverse.",
        "`self` is missing; __init__ has an extra argument without a default; async is missing",
        "Use the signature that the message shows.",
    )
    OWN_SPEC_FORM = (
        "AJ-OWN-007: not the address of a class",
        "A reference to your code is not written as file.py->Name or package.module->Name.",
        "a dot or a colon instead of the arrow; the shell interpreted the `>`",
        "Write file.py->Name, and quote it on the command line.",
    )
    OWN_CONSTRUCTOR_FAILS = (
        "AJ-OWN-008: your object cannot be created",
        "The constructor of your class raised an error.",
        "a key or a file that __init__ reads is missing",
        "Correct the error; the message names the file and the line.",
    )
    AGENT_NOT_REGISTERED = (
        "AJ-OWN-009: no agent with this name",
        "The config or a task names an agent that is not registered.",
        'the file with @register("name") is not loaded; the name is misspelt',
        "Name the class itself as file.py->Class, or use the registered name.",
    )
    NAME_TAKEN = (
        "AJ-OWN-010: the name is already in use",
        "Two things have the same name, or yours has the name of one of ajet's.",
        "a file is loaded under two names",
        "Choose another name.",
    )
    OWN_RESULT = (
        "AJ-OWN-011: your function returned the wrong thing",
        "It returned the wrong type, the wrong number of values, or non-finite numbers.",
        "a missing return; one value for each group instead of each episode",
        "Return what the message describes.",
    )
    TRAINABLE_TARGETS = (
        "AJ-OWN-012: no agent of the workflow is trained",
        "The workflow's trainable_targets names none of its agents, so nothing would be trained.",
        "an agent's name is misspelt",
        "Use names that the message lists, or remove trainable_targets to train all agents.",
    )
    NO_TOKEN_IDS = (
        "AJ-OWN-013: a chat endpoint has no token ids",
        "The workflow needs token ids, but a chat endpoint only returns text.",
        "ajet eval --endpoint with a workflow that was made for training",
        "Use model_tuner.chat() or an agent framework in the workflow, or evaluate a checkpoint.",
    )
    JOB_SETTING = (
        "AJ-OWN-014: the job cannot be started",
        "A program that uses AgentJetJob asks for something that is not available.",
        "a setting of another backbone; tune() is called while a file is imported",
        "Set what the message names in the job's config.",
    )
    RAISED_BY_OWN_CODE = (
        "AJ-OWN-015: your code raised this error",
        "Your code raised one of ajet's error classes.",
        "see the message",
        "The message comes from your code.",
    )
    REWARD_MISSING = (
        "AJ-OWN-016: no reward",
        "Training needs rewards, but the workflow returns none and there is no judge.",
        "WorkflowOutput is created without reward=; the judge's key is misspelt or null",
        "Return WorkflowOutput(reward=…), or set a judge in ajet.task_judge.judge_protocol.",
    )
    OWN_CODE_FAILS = (
        "AJ-OWN-017: your code failed in an episode",
        "`ajet debug` ends at the first exception of the workflow, a tool or the judge.",
        "a key or an argument that is missing; a reply of the model that has another form",
        "Correct the line that is named; the traceback is on stderr. A model replies in any form, "
        "so return a reward of 0 where a reply cannot be read.",
    )

    # --- tasks and data ---------------------------------------------------------------------------

    DATA_NOT_FOUND = (
        "AJ-DAT-001: no such data",
        "The file or folder with the tasks does not exist.",
        "the path is relative to another folder; the name is misspelt; the data is not "
        "downloaded yet",
        "Paths are relative to the current folder or that of the YAML.",
    )
    ROW_NOT_JSON = (
        "AJ-DAT-002: a line is not valid JSON",
        "A line of the data cannot be read as JSON in UTF-8. The message names it.",
        "a comma after the last value; single quotes; one object over several lines; a "
        "truncated file",
        "Write one complete JSON object per line.",
    )
    ROW_FORM = (
        "AJ-DAT-003: a malformed row",
        "A row of the data lacks a field, or a field has the wrong type.",
        "another field name; another format of chat messages; an unquoted comma in CSV; empty "
        "text; an image",
        "Rename the field, or set ajet.task_reader.query_field; the message lists the row's "
        "fields.",
    )
    NO_TASK = (
        "AJ-DAT-004: no tasks",
        "The data exists, but has no tasks in this split.",
        "an empty file; a filter that removes every task",
        "Provide data with at least one task.",
    )
    SPLIT_NOT_FOUND = (
        "AJ-DAT-005: no such split",
        "The data has no split with this name.",
        "the split is called test and not validation; the data is a single file",
        "Use a split that the message lists, or set the split's key to null.",
    )
    DATA_FORMAT = (
        "AJ-DAT-006: unsupported file type",
        "Tasks and documents cannot be read from this type of file.",
        "a spreadsheet; a compressed file; a folder without a data file",
        "Convert the file to JSON lines, JSON, CSV, Parquet or Arrow.",
    )
    DATA_UNREADABLE = (
        "AJ-DAT-007: the data cannot be read",
        "The file exists, but cannot be opened or is damaged.",
        "the file's permissions; an incomplete download; a wrong file extension",
        "Check that another program can open the file, or download it again.",
    )
    TASK_ID_TWICE = (
        "AJ-DAT-008: duplicate task ids",
        "Records and results refer to tasks by id, so ids must be unique.",
        "concatenated files that number their rows the same way",
        "Give each row a unique id, or remove the field.",
    )
    HUB_UNREACHABLE = (
        "AJ-DAT-009: the data set is neither local nor reachable",
        "No local folder has this name, and the Hugging Face Hub did not provide it.",
        "no network; the name is misspelt; the data set requires a login",
        "Write it with `ajet data prepare` where there is a network, and use that folder.",
    )
    NO_VALIDATION_TASK = (
        "AJ-DAT-010: no validation tasks",
        "The command measures on held-out tasks, and the config has none.",
        "the validation file is not set",
        "Set the data as the message says, or pass --split training.",
    )
    TASKS_NOT_MADE = (
        "AJ-DAT-011: no task could be created",
        "No task could be made from the source (traces, documents, a service).",
        "filters that remove everything; a model that did not answer in the requested format",
        "The message counts the reasons; loosen that filter or use another source.",
    )
    ROW_TOO_LONG = (
        "AJ-DAT-012: a row is too long",
        "A row of supervised data has more tokens than the config allows.",
        "a long document in one row",
        "Raise the limit, remove the row, or set ajet.supervised.too_long (or that of "
        "ajet.preference) to leave_out.",
    )
    ROW_NOT_TRAINABLE = (
        "AJ-DAT-013: a row has nothing to train on",
        "A row's replies cannot be turned into trained tokens.",
        "no assistant message with a weight; a chat template that writes a reply in another way",
        "End with an assistant's message, or use another ajet.model.chat_template.",
    )
    RESULT_FILE = (
        "AJ-DAT-014: not a result of ajet eval",
        "The file does not hold results, or holds those of other tasks.",
        "another JSON file; a result of another split",
        "Write one with `ajet eval … --out FILE`.",
    )
    TASK_SETTING = (
        "AJ-DAT-015: an invalid setting in a task",
        "A setting in a task (extra_info, agent_cfg_path, metadata) is wrong.",
        "a path relative to another folder; text instead of an object",
        "Correct the row that is named.",
    )
    SUITE_DATA = (
        "AJ-DAT-016: unexpected benchmark data",
        "The folder does not have the benchmark's files, or a row differs from the published form.",
        "another version of the package or of the data",
        "Install the package that the message names, or give the folder with its data.",
    )
    SUITE_IS_FOR_MEASURING = (
        "AJ-DAT-017: a benchmark is not for training",
        "Public benchmarks measure; training on their tasks would invalidate the result.",
        "task_reader.type: suite in a training config",
        "Train on your own data, and measure with `ajet eval --suite`.",
    )

    IMAGE = (
        "AJ-DAT-018: an image is refused",
        "An image of a prompt or a row is not taken, for the reason that the message gives.",
        "too many bytes or pixels, or too many images; a damaged file; another format; an address "
        "on the web, or a file that a message names",
        "Give PNG, JPEG, WEBP, GIF or BMP as a data URL, or raise the limit in ajet.model.images.",
    )

    # --- the model --------------------------------------------------------------------------------

    MODEL_NOT_FOUND = (
        "AJ-MOD-001: no such model",
        "ajet.model.path is not a folder, a .gguf file, a model of this package, or a model on "
        "the Hub.",
        "the path is misspelt; the name of a model behind an API; no network",
        "Use a folder with config.json, weights and tokenizer, or a model that is listed.",
    )
    NO_TOKENIZER = (
        "AJ-MOD-002: the model has no tokenizer",
        "The folder has weights, but no tokenizer that loads.",
        "only the weights were copied",
        "Save it next to the weights with tokenizer.save_pretrained(FOLDER).",
    )
    NO_CHAT_TEMPLATE = (
        "AJ-MOD-003: the model has no chat template",
        "Messages cannot be rendered without a chat template.",
        "a base model",
        "Use an instruct model, or set ajet.model.chat_template.",
    )
    TEMPLATE_NOT_FOUND = (
        "AJ-MOD-004: the chat template file cannot be read",
        "The file in ajet.model.chat_template does not exist, or is not text.",
        "the path is relative to another folder",
        "Set it to a jinja file.",
    )
    TEMPLATE_FAILS = (
        "AJ-MOD-005: the chat template refuses the messages",
        "The model's chat template cannot render these messages.",
        "a system message; roles that do not alternate; content that is not text",
        "Change the messages as the template requires, or use another template.",
    )
    MODEL_NOT_LOADED = (
        "AJ-MOD-006: the model does not load",
        "The model's files exist, but the config, the weights or the tokenizer cannot be loaded.",
        "a truncated file; an architecture or a type of GGUF that is not supported",
        "Download the file again, or install the version that the message asks for.",
    )
    DEVICE = (
        "AJ-MOD-007: no such device or number format",
        "ajet.model.device or ajet.model.dtype is unknown or not available on this machine.",
        "cuda on a machine where torch finds no GPU",
        "Use auto, or one of those that the message lists.",
    )
    DIVERGED = (
        "AJ-MOD-008: the weights have diverged",
        "The model's logits are not finite.",
        "the learning rate is too high; non-finite weights in ajet.model.path",
        "Lower ajet.trainer_common.optim.lr, or resume from an earlier checkpoint.",
    )
    ENGINE_FAILED = (
        "AJ-MOD-009: the inference engine failed",
        "The engine that samples raised an error, or no replica is left.",
        "out of GPU memory; the process was killed",
        "The message has the last error; see also logs/ of the run folder.",
    )
    OTHER_TOKENIZER = (
        "AJ-MOD-010: the models have different tokenizers",
        "One model would read token ids of another, but their tokenizers differ.",
        "a teacher, a critic or a fork of another model family",
        "Use a model with the same tokenizer.",
    )
    MODEL_UNSUPPORTED = (
        "AJ-MOD-011: unsupported for this architecture",
        "A setting needs something that this architecture does not have.",
        "a batch layout without a flat forward; adapters on modules that it lacks; a multimodal"
        " checkpoint without a language model for its text (docs/models.md)",
        "Use the setting that the message names, or another model.",
    )
    TOKENS_NOT_KNOWN = (
        "AJ-MOD-012: the sampled tokens are not known",
        "The server omitted tokens or numbers, so the record would differ from what was sampled.",
        "a stop token outside of generation_config.json; top_p or top_k that is not reported",
        "Change the setting that the message names.",
    )
    GRAMMAR = (
        "AJ-MOD-013: the grammar of a reply fails",
        "A reply was to follow a grammar (response_format, a strict tool), which allows no further"
        " token, is too complex, or is not the one that the reply was sampled under.",
        "a schema that nothing meets; an inference server with another grammar backend",
        "Simplify the schema; on a server, use the backend that ajet starts it with.",
    )
    GGUF_REFUSED = (
        "AJ-MOD-014: the model cannot be written as GGUF",
        "`ajet export --gguf` writes only models that llama.cpp computes in the same way.",
        "another family than Llama, Qwen2 or Qwen3; scaled rotary positions; another tokenizer",
        "Export a folder with --out, and convert it with llama.cpp's own script.",
    )

    # --- runs -------------------------------------------------------------------------------------

    RUN_NOT_FOUND = (
        "AJ-RUN-001: not a run folder",
        "The path is not a run folder, or its files are missing.",
        "its parent folder is given; the name is misspelt; a run that never started",
        "Give the folder that the run printed, usually launcher_record/NAME.",
    )
    RUN_FOLDER_UNUSABLE = (
        "AJ-RUN-002: the run folder cannot be used",
        "The run folder cannot be created, locked or renamed.",
        "no write permission; a file has the folder's name; a network disk without locks",
        "Choose another place with --exp-dir.",
    )
    RUN_IN_USE = (
        "AJ-RUN-003: another process uses the run folder",
        "Two runs cannot write to the same folder.",
        "the run is still running in another terminal; two runs have the same experiment_name",
        "Wait, stop it (Ctrl-C, or `kill` with its process id), or choose another "
        "ajet.experiment_name.",
    )
    RUN_CHANGED = (
        "AJ-RUN-004: an unfinished run has changed",
        "The folder has an unfinished run, and the config, the code or the data has changed since.",
        "a setting was changed between two starts",
        "Continue with the changes (--accept-changes), or start over (--no-resume).",
    )
    RUN_COMPLETE = (
        "AJ-RUN-005: the run is complete",
        "All steps of the run are done. The exit code is 0.",
        "the same command was started again",
        "Raise ajet.trainer_common.total_training_steps, or start over with --no-resume.",
    )
    CHECKPOINT_NOT_FOUND = (
        "AJ-RUN-006: no checkpoint found",
        "The folder has no checkpoint, or none of that step.",
        "none was saved yet (trainer_common.save_freq); max_checkpoints_to_keep removed it",
        "Give a run folder, or its checkpoints/step_N.",
    )
    CHECKPOINT_UNUSABLE = (
        "AJ-RUN-007: a checkpoint is damaged",
        "A checkpoint's files differ from what was written.",
        "an incomplete copy; a failing disk",
        "Move it away; the run continues from the previous one.",
    )
    CHECKPOINT_NOT_SAVED = (
        "AJ-RUN-008: a checkpoint could not be saved",
        "Writing the checkpoint failed. Earlier ones are intact.",
        "the disk is full; the disk failed",
        "Free some space and run the same command: it continues from the last checkpoint.",
    )
    CHECKPOINT_DIFFERS = (
        "AJ-RUN-009: a checkpoint of another model or other data",
        "The config had another model, other data or another algorithm when it was written.",
        "ajet.model.path was changed; one experiment_name for two experiments",
        "Restore that config, or use another experiment_name or --no-resume.",
    )
    RECORD_UNREADABLE = (
        "AJ-RUN-010: a file of the run folder cannot be read",
        "A file that the run wrote is incomplete, damaged or not readable.",
        "an incomplete copy; no permission; the file was edited",
        "Restore a copy of it, or follow the message.",
    )
    RECORD_UNWRITABLE = (
        "AJ-RUN-011: a file of the run folder cannot be written",
        "The run cannot record its results, so it stops.",
        "the disk is full; the disk became read-only",
        "Free some space and run the same command: it continues from the last one saved.",
    )
    RECORD_VERSION = (
        "AJ-RUN-012: a record of another version",
        "The file was written by another version of ajet, in another format.",
        "ajet was updated between two uses of a folder",
        "Use the ajet version that wrote it, or another run folder.",
    )
    EPISODE_NOT_FOUND = (
        "AJ-RUN-013: no such episode",
        "No episode of the run has this id, or several start with it.",
        "a part of the id is missing; the episode was not recorded",
        "Give more of the id; `ajet view` shows all episodes.",
    )
    TOO_MANY_FAILURES = (
        "AJ-RUN-014: too many episodes failed",
        "More of a step's episodes failed than ajet.rollout.max_failure_rate allows.",
        "the workflow raises an error; a service that it needs is down",
        "The message has the first error; `ajet debug` shows errors in full.",
    )
    SAMPLER_GAP = (
        "AJ-RUN-015: the sampler differs from the trainer's policy",
        "The log-probabilities of engine and trainer differ by more than "
        "trainer_common.sampler_gap.max_kl.",
        "another number format in the engine; top_p or top_k; weights that are too old",
        "Use the same number format on both sides (ajet.model.dtype), leave top_p and top_k at "
        "their defaults, lower trinity.max_staleness, or raise max_kl above what a healthy run "
        "shows; `ajet why sampler_gap` says more.",
    )
    PROCESS_LOST = (
        "AJ-RUN-016: a process of the run was lost",
        "A process of the run ended, and restarting it did not help.",
        "out of memory; a machine that went down",
        "See logs/ of the run folder; the same command continues from the last checkpoint.",
    )
    FORK_IMPOSSIBLE = (
        "AJ-RUN-017: the episode cannot be replayed to this turn",
        "The replay differed from the record, or the turn does not exist.",
        "a workflow or an environment that is not deterministic; the workflow was changed",
        "Fork at an earlier turn, or use the code in the run folder.",
    )
    NOTHING_TO_STOP = (
        "AJ-RUN-018: nothing with this name is running",
        "No process on this machine is running that run or episode.",
        "it has already ended; it runs on another machine",
        "The display and logs/run.log list what is running.",
    )
    RUN_NOT_REBUILT = (
        "AJ-RUN-019: the run cannot be set up from its folder",
        "The project moved, a secret is not stored, or tasks changed.",
        "the project's folder was renamed; a key was given on the command line",
        "Pass the config with --conf, and the missing values.",
    )
    NO_GOOD_EPISODE = (
        "AJ-RUN-020: no episode has a high enough reward",
        "No recorded training episode reaches the minimum reward.",
        "the run has not learned yet; the minimum is above the judge's range",
        "Lower --min-reward.",
    )
    BUFFER_UNUSABLE = (
        "AJ-RUN-021: the buffer's database cannot be used",
        "The database that holds groups for the trainer cannot be opened, read or written.",
        "the service is not running; another version wrote it; a wrong name or password",
        "Fix what the message names, or start with an empty database.",
    )
    RUBRICS_CHANGED = (
        "AJ-RUN-022: rubrics with other settings",
        "The rubrics in the run folder were made by another grader or from other examples.",
        "the config was changed",
        "Move them away to make new ones, or choose another experiment_name.",
    )
    SWEEP_FAILED = (
        "AJ-RUN-023: runs of a sweep failed",
        "Some runs of the sweep ended with an error; the others are complete.",
        "a setting that the machine has no memory for; too many failed episodes",
        "Read the errors above. The same command trains only the runs that are not complete.",
    )

    # --- GPUs, Ray, machines ----------------------------------------------------------------------

    RAY_ADDRESS = (
        "AJ-CLU-001: the Ray address is missing or invalid",
        "An address, a port or a token of a Ray cluster is missing or malformed.",
        "RAY_ADDRESS is a dashboard's address; MASTER_ADDR is not set",
        "Set the variable as the message shows; --with-ray starts Ray on this machine.",
    )
    RAY_UNREACHABLE = (
        "AJ-CLU-002: Ray does not answer or does not start",
        "Ray does not answer at this address, or could not be joined or started.",
        "it is not running; a port is closed; another version of Ray or Python",
        "Start it, open the port, or use --with-ray or --backbone debug on one machine.",
    )
    TOO_FEW_GPUS = (
        "AJ-CLU-003: the run does not fit the machines",
        "There are fewer nodes, GPUs or engines than the config asks for.",
        "a number from another machine; one part takes all GPUs",
        "Lower the number that is named; `ajet plan` shows the placement.",
    )
    GPU_IN_USE = (
        "AJ-CLU-004: a GPU is in use",
        "Another process holds memory on a GPU that the run would use.",
        "a run that has not ended",
        "Wait, choose others with CUDA_VISIBLE_DEVICES, or pass --skip-check-avail-gpu.",
    )
    PARALLEL_SIZE = (
        "AJ-CLU-005: an invalid parallel size",
        "It does not divide another number (GPUs per node, heads), or is not supported here.",
        "a setting from a larger machine",
        "Choose a divisor, or 1.",
    )
    DOES_NOT_FIT = (
        "AJ-CLU-006: the plan does not fit",
        "`ajet plan` estimates more memory than there is, or finds no placement.",
        "the model is too large for the GPUs; sequences are too long",
        "The lines above name the part and suggest changes.",
    )
    PROJECT_NOT_ON_NODE = (
        "AJ-CLU-007: a machine lacks the project or the model",
        "All machines of a run need the same files in the same folders.",
        "the folder is local to one machine; package versions differ",
        "Copy the files, or use a shared disk.",
    )
    RANKS_NOT_JOINED = (
        "AJ-CLU-008: the trainer's ranks did not connect",
        "A rank of the trainer could not join the others, or failed.",
        "a port is closed; a wrong network interface (GLOO_SOCKET_IFNAME)",
        "Open the port between the machines, or set the interface.",
    )
    WEIGHTS_WAY = (
        "AJ-CLU-009: unsupported weight sync method",
        "The configured sync method does not work with this placement.",
        "shared memory between several machines",
        "Set the value that the message names; on backbone verl, auto takes the first that works.",
    )
    WEIGHTS_NOT_ARRIVED = (
        "AJ-CLU-010: weight sync failed",
        "An engine did not receive the trainer's weights as they were sent.",
        "a full disk; a process that ended; different model files; a run folder that is not shared",
        "The message names the part; the same command continues from the last checkpoint.",
    )
    MACHINE_TOO_SMALL = (
        "AJ-CLU-011: the machine is too small",
        "There is too little memory or disk space for the model and the run's files.",
        "the model is too large for this machine; the disk is nearly full",
        "Use a smaller model, keep fewer checkpoints, or follow the message.",
    )
    NODE_UNREACHABLE = (
        "AJ-CLU-012: a node of the cluster does not answer",
        "One machine cannot reach another that Ray lists, or a process on it.",
        "a firewall; Ray uses an address that the other machines cannot reach",
        "Open all TCP ports between the machines, or pass --node-ip-address to `ray start`.",
    )
    RUN_FOLDER_NOT_SHARED = (
        "AJ-CLU-013: a machine cannot see the run folder",
        "A part of the run needs the run folder on a machine where it does not exist.",
        "the folder is local to one machine; it is mounted at another path",
        "Share the folder at the same path, or choose a setting that does not need it.",
    )

    # --- inference servers ------------------------------------------------------------------------

    SERVER_NOT_INSTALLED = (
        "AJ-SRV-001: the inference server is not installed",
        "ajet.rollout.name asks for vLLM or SGLang, and no usable installation is found.",
        "it is not installed; it is built for another device; it belongs to another Python",
        "`ajet servers` shows what is installed, `ajet servers install NAME` installs one.",
    )
    SERVER_NOT_STARTED = (
        "AJ-SRV-002: the inference server did not start",
        "The server's process ended, or was not healthy in time.",
        "too little GPU memory; a setting that this server does not support; its port is in use",
        "The message has the server's last output; logs/ of the run folder has all of it.",
    )
    SERVER_REFUSES = (
        "AJ-SRV-003: the inference server refused a request",
        "An inference server answered a request or a command with an error.",
        "a request beyond the server's limit; a version with another interface",
        "Change what its answer names; `ajet servers` says whether this version is supported.",
    )
    SERVER_SETTING = (
        "AJ-SRV-004: an invalid server setting",
        "A setting of ajet.rollout.server does not work with the server or the run.",
        "an option that ajet sets itself; the Python of a server without its name",
        "Change the key that is named.",
    )
    SERVER_INSTALL_FAILED = (
        "AJ-SRV-005: installing a server failed",
        "`ajet servers install` could not install the server.",
        "no network; another server is in that folder",
        "Fix what the installer reports, and run the command again.",
    )
    EPISODE_SERVER = (
        "AJ-SRV-006: a server of episodes did not answer as asked",
        "`ajet watch` did not reach `ajet serve`, or was refused.",
        "the server is not started; another address or port; another key",
        "Give the address that `ajet serve` prints, and its key as AJET_SERVE_API_KEY.",
    )

    # --- other models, services, ports ------------------------------------------------------------

    CHAT_ADDRESS = (
        "AJ-NET-001: a model's address or key is missing",
        "The address or the key of a model behind an API is missing or malformed.",
        "OPENAI_API_KEY or OPENAI_BASE_URL is not set; an address without http://",
        "Set the key that the message names.",
    )
    CHAT_NO_ANSWER = (
        "AJ-NET-002: no answer from another model",
        "A model behind an API could not be reached, refused, or did not answer in time.",
        "a wrong address; a wrong key; a rate limit",
        "The message has its answer; try the address with curl.",
    )
    GRADE_UNREADABLE = (
        "AJ-NET-003: a grader's reply cannot be parsed",
        "The grading model did not answer in the requested format.",
        "the model is too small to follow the format",
        "Use another model, or raise max_corrections.",
    )
    SERVICE_ANSWER = (
        "AJ-NET-004: an unexpected answer from a service",
        "A service that provides tasks or vectors answered with an error or in another format.",
        "the address of another service; a missing token",
        "Correct the address or the token; the message has the address and the answer.",
    )
    TRACES_NOT_TAKEN = (
        "AJ-NET-005: traces could not be sent",
        "MLflow or an OpenTelemetry receiver did not accept spans.",
        "no receiver is running there",
        "Start one, or set another address.",
    )
    LOGGER_NOT_STARTED = (
        "AJ-NET-006: a logger does not start",
        "A logger in ajet.trainer_common.logger raised an error when it started.",
        "no login; no network; a setting in an environment variable",
        "The message has the reason; remove the logger to train without it.",
    )
    PORT_IN_USE = (
        "AJ-NET-007: cannot listen on a port",
        "The page, the debugger, the gateway or metrics cannot listen on this port.",
        "another process uses the port; a number below 1024; an address of another machine",
        "Choose another port, or 0 for any free one.",
    )
    CACHE_UNUSABLE = (
        "AJ-NET-008: the reply cache cannot be used",
        "The file with cached replies of other models is damaged or in use.",
        "an incomplete copy; another run that writes to it",
        "Move it away to request the replies again, or wait for the other run.",
    )
    HUB_REFUSED = (
        "AJ-NET-009: the Hub does not take the model",
        "`ajet export --push` could not create the repository or upload to it.",
        "nobody is logged in; the token may only read; the name is taken; no network",
        "Do what the message says. The exported folder of --out, if any, is complete.",
    )

    # --- environments -----------------------------------------------------------------------------

    NO_SUCH_ENVIRONMENT = (
        "AJ-ENV-001: no such environment",
        "The environment is not one of ajet's, of an installed package's, or of yours.",
        "the name is misspelt; custom_envs does not list it",
        "Use a name that the message lists, or your class as file.py->Class.",
    )
    ENVIRONMENT_SETTING = (
        "AJ-ENV-002: an invalid environment setting",
        "The environment does not accept a value in env_config or custom_envs.",
        "a misspelt setting; a limit above that of the run",
        "Correct the setting that is named.",
    )
    NOT_AN_ENVIRONMENT = (
        "AJ-ENV-003: your class is not an environment",
        "The class lacks reset(seed) or step(action), or takes other arguments.",
        "a method is misspelt; reset has no seed",
        "Write both methods as in docs/guides/game.md.",
    )
    NO_INSTANCE = (
        "AJ-ENV-004: no instance fits the settings",
        "The environment generates instances, and none satisfies its settings.",
        "a map that is too small; probabilities that are too high",
        "Loosen the setting that is named.",
    )
    ENVIRONMENT_TEXT = (
        "AJ-ENV-005: an invalid environment text",
        "A prompt's placeholder or the pattern that finds the action is wrong.",
        "unescaped braces; a pattern with two groups",
        "Use the placeholders that the message lists, and double literal braces.",
    )
    ENVIRONMENT_FAILS = (
        "AJ-ENV-006: an environment cannot be created",
        "Creating the environment raised an error.",
        "the package has no environment with that id; its data is missing",
        "The message has the reason; `ajet inspect env` tries an environment alone.",
    )
    ENVIRONMENT_SERVICE = (
        "AJ-ENV-007: the environment service cannot be used",
        "The service could not be reached, lists no tasks, or lists one twice.",
        "the service is not running; a wrong env_url",
        "Start it, and correct ajet.task_reader.env_service.",
    )

    # --- tools ------------------------------------------------------------------------------------

    TOOL_LISTING = (
        "AJ-TOO-001: a malformed list of tools or loops",
        "A file that lists tools, interactions or agent loops cannot be parsed.",
        "a misspelt path; an unknown key",
        "Write the entry as the message shows.",
    )
    TOOL_TWICE = (
        "AJ-TOO-002: two tools have one name",
        "A model calls tools by name, so names must be unique.",
        "one tool is listed in two files",
        "Rename one of them.",
    )
    TOOL_SCHEMA = (
        "AJ-TOO-003: an invalid tool schema",
        "The parameters are not a JSON schema of an object, or a reference does not resolve.",
        "a missing name; a $ref to itself",
        "Write the schema as the message says.",
    )
    TOOL_SERVER = (
        "AJ-TOO-004: a tool server does not answer or lacks a tool",
        "An MCP server cannot be started or reached, or does not have the tool.",
        "a wrong command or url; a misspelt tool",
        "Use a tool that the message lists, or correct the address.",
    )
    TOOL_CLASS = (
        "AJ-TOO-005: an unusable tool class",
        "A tool's class or an agent's tools need something that is not available.",
        "a tool written for another loop; an agent without tools",
        "Change the class as the message says.",
    )
    PROGRAM_MISSING = (
        "AJ-TOO-006: a program for an agent or its sandbox is missing",
        "A command-line agent, its sandbox, or the sandbox's image is not on this machine.",
        "it is not installed; it is not on ajet's PATH",
        "Install the program, set its path in ajet.harness.program, or choose another sandbox.",
    )

    # --- judges -----------------------------------------------------------------------------------

    JUDGE_SETTING = (
        "AJ-CFG-019: a judge setting is missing or wrong",
        "The judge needs a model, a prompt or tasks that the config does not provide.",
        "no judge model is set; a prompt without its placeholder",
        "Set the key that is named.",
    )

    # --- packages and other systems ---------------------------------------------------------------

    PACKAGE_MISSING = (
        "AJ-PKG-001: an optional package is not installed",
        "The config or the command needs a package that is an extra of ajet.",
        "ajet is installed without the extra; another Python environment is active",
        "Run the pip command in the message in the environment that runs ajet.",
    )
    PACKAGE_VERSION = (
        "AJ-PKG-002: a package of another version",
        "The installed version of a package lacks something that is needed.",
        "an old version",
        "Install the version that is named.",
    )
    NOT_CONVERTIBLE = (
        "AJ-CNV-001: not a config of another system",
        "`ajet convert` reads configs and start scripts of other systems; this is neither.",
        "another type of file; a script that starts something else; a wrong path",
        "Pass the YAML, or the shell script that starts the training.",
    )
    CONVERT_VALUE = (
        "AJ-CNV-002: a value cannot be converted",
        "A key of the other system's config has a value of the wrong type.",
        "a variable that the shell would fill in",
        "Write the value out, and convert again.",
    )


def codes_by_area() -> dict[str, list[Code]]:
    """Returns the codes of each area by the area's title, in order."""
    codes = sorted(Code, key=lambda code: code.value)
    return {
        title: [code for code in codes if code.value.startswith(f"AJ-{area}-")]
        for area, title in AREAS.items()
    }
