"""Lists the kinds of mistakes that the command line reports, each with its stable code.

    error: x.yaml:7: ajet.rollout.temprature: no such key; did you mean 'temperature'? [AJ-CFG-004]

`ajet explain AJ-CFG-004` prints a row of this list, and docs/errors.md is made of it. A code never
changes its meaning and is never used again; a new kind takes the next number of its area. Which
kind an error is, its `raise` says (errors.py). Not covered: warnings of a run (docs/warnings.md),
and what an episode of the user's ended with.
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
    """A kind of mistake: its code, a title, what it means, its usual causes and what to do."""

    _value_: str
    title: str
    meaning: str
    causes: tuple[str, ...]
    remedy: str

    def __new__(
        cls, code: str, title: str, meaning: str, causes: tuple[str, ...], remedy: str
    ) -> "Code":
        member = object.__new__(cls)
        member._value_ = code
        member.title = title
        member.meaning = meaning
        member.causes = causes
        member.remedy = remedy
        return member

    def __str__(self) -> str:
        return self.value

    # --- the command line ------------------------------------------------------------------------

    NO_SUCH_COMMAND = (
        "AJ-USE-001",
        "no such command",
        "A word of the command line is in the place of a command, and ajet has no command of that "
        "name.",
        ("the command is misspelt", "a config is given without --conf"),
        "Take the command that is suggested, or one that `ajet --help` lists. A config is given "
        "as `--conf FILE.yaml`.",
    )
    NO_SUCH_OPTION = (
        "AJ-USE-002",
        "no such option",
        "The command has no option of that name.",
        ("the option is misspelt", "it is an option of another command"),
        "`ajet COMMAND --help` lists the command's options.",
    )
    ARGUMENT_MISSING = (
        "AJ-USE-003",
        "an argument is missing",
        "The command needs an option or an argument that the command line does not give, or an "
        "option is there without its value.",
        ("--conf is left out", "the last option of the line has no value after it"),
        "Give what the line names; `ajet COMMAND --help` shows how it is written.",
    )
    OPTION_VALUE = (
        "AJ-USE-004",
        "an option's value cannot be used",
        "An option or an argument has a value of the wrong form, one that is not among its "
        "choices, or one that does not go with the other options.",
        (
            "a number was expected",
            "a file or a folder is not there",
            "two options exclude each other",
        ),
        "Correct the value; the line says what is expected.",
    )
    OVERRIDE_WITH_DASHES = (
        "AJ-USE-005",
        "an override is written as an option",
        "A key of the config is given as --key=value. Keys of the config have no dashes.",
        ("habits of other command lines",),
        "Write the key without dashes, such as ajet.seed=1, as the line shows.",
    )
    OPTIONS_TOGETHER = (
        "AJ-USE-006",
        "options that need or exclude each other",
        "The command line has an option without the one that it belongs to, or two that exclude "
        "each other.",
        ("only one of a pair is given",),
        "Give the pair, or leave one out, as the line says.",
    )
    OUTPUT_EXISTS = (
        "AJ-USE-007",
        "the output is there already",
        "A command would write a file or a folder that exists. Nothing is written over unless "
        "--overwrite is given, which the commands that write files have.",
        ("the command ran before",),
        "Name another output, add --overwrite where the line says so, or remove the old one first.",
    )
    OUTPUT_NOT_WRITTEN = (
        "AJ-USE-008",
        "the output cannot be written",
        "A file or a folder that a command makes could not be written.",
        ("the folder may not be written to", "the disk is full"),
        "Make room or choose another place; nothing of the run itself is changed.",
    )
    CURRENT_FOLDER_GONE = (
        "AJ-USE-009",
        "the current folder is gone",
        "The folder in which the command was started does not exist any more, so no path in its "
        "command line or its config can be looked up.",
        ("the folder was removed, or made anew, while a terminal stood in it",),
        "Go to a folder that exists (`cd`), also where one of the same name was made since.",
    )
    PATH_UNREACHABLE = (
        "AJ-USE-010",
        "the system does not look a path up",
        "A path of the command line or of the config cannot be looked up at all, so nobody knows "
        "whether something is there.",
        ("a folder above it may not be searched by this user", "the name is too long"),
        "Give another path, or this user the right to search the folders above it.",
    )

    # --- the config ------------------------------------------------------------------------------

    CONFIG_NOT_FOUND = (
        "AJ-CFG-001",
        "no such config",
        "The file of --conf does not exist, or its name does not end in .yaml.",
        ("the command runs in another folder than the path is written for", "a misspelt name"),
        "Give the path from the current folder, which the line names, or an absolute one.",
    )
    YAML_INVALID = (
        "AJ-CFG-002",
        "not valid YAML",
        "The file cannot be read as YAML. The line names its place.",
        (
            "a tab where spaces are needed",
            "a colon without a space after it",
            "a key that is not indented as its neighbours are",
            "a quote that is not closed",
        ),
        "Mend the line that is named, or the one above it: YAML reports where it noticed.",
    )
    CONFIG_FORM = (
        "AJ-CFG-003",
        "the config has another form",
        "The file is YAML, but a part of it is not in the form of a config: a section, a list or "
        "a mapping is expected in that place.",
        ("the section `ajet:` is missing", "a section is written as a list"),
        "Write the part in the form that the line names; tutorial/ has whole configs.",
    )
    UNKNOWN_KEY = (
        "AJ-CFG-004",
        "no such key",
        "The config or an override has a key that ajet does not know. Keys that nothing reads "
        "are refused, so that a misspelt one does not train with the default.",
        (
            "the key is misspelt",
            "it is in another section",
            "it is a key of another system, which `ajet convert` translates",
        ),
        "Take the key that is suggested. `ajet schema` writes a JSON Schema with which an editor "
        "completes keys.",
    )
    WRONG_VALUE = (
        "AJ-CFG-005",
        "a value that the key does not take",
        "A key has a value of the wrong type, out of its range, or none of its choices.",
        ("text where a number is expected", "a choice is misspelt", "a number with a unit"),
        "Write a value as the line describes it.",
    )
    KEY_MISSING = (
        "AJ-CFG-006",
        "a required key is missing",
        "The config needs a key that has no default, or another key needs it.",
        ("the key is left out",),
        "Add the key to the YAML, or give it as an override.",
    )
    KEY_REFUSED = (
        "AJ-CFG-007",
        "a key that is refused",
        "The key is known, and what it asks for is not built, or has no counterpart here. It "
        "is not ignored, because the run would be another one than the config says.",
        ("a config of another system or version",),
        "Leave the key out, or set the value that the line names.",
    )
    KEYS_CONFLICT = (
        "AJ-CFG-008",
        "two settings exclude each other",
        "Each value is right by itself, and together they cannot be: one limit is above another, "
        "or two names of one key have two values.",
        ("one of two settings that go together was changed", "the old and the new name of a key"),
        "Change one of the two, as the line says.",
    )
    OVERRIDE_FORM = (
        "AJ-CFG-009",
        "an override without key=value",
        "An argument of the command line is taken for an override, and is not written as one.",
        (
            "the equals sign is missing",
            "spaces around the equals sign",
            "the shell took a quote or a bracket away",
        ),
        "Write key=value, in quotes where the value has spaces or brackets: "
        "'ajet.trainer_common.logger=[console,tensorboard]'.",
    )
    DEFAULTS_NOT_FOUND = (
        "AJ-CFG-010",
        "a config named in defaults is not there",
        "`defaults:` of the YAML names a config that is in none of the folders that are searched.",
        ("a misspelt name", "hydra.searchpath names a folder that is not there"),
        "Correct the name, or add its folder to hydra.searchpath.",
    )
    REDACTED_VALUE = (
        "AJ-CFG-011",
        "a value is *** in the place of a secret",
        "A run folder's config, and what ajet prints, have *** where a secret was. It is not the "
        "value.",
        ("the config of a run folder is used again",),
        "Give the value itself, as an override or as ${oc.env:NAME}.",
    )
    REFERENCE_FAILS = (
        "AJ-CFG-012",
        "a reference in the config has no value",
        "A ${…} of the config cannot be replaced by a value.",
        ("the environment variable is not set", "the key that it names does not exist"),
        "Set the variable, give a default as ${oc.env:NAME,default}, or write the value.",
    )
    PROJECT_DIR_MISSING = (
        "AJ-CFG-013",
        "no such project folder",
        "The folder of --project-dir does not exist.",
        ("the path is relative to another folder",),
        "Give the folder in which your workflow's files are.",
    )
    SEVERAL_MISTAKES = (
        "AJ-CFG-014",
        "several mistakes in the config",
        "The config has more than one mistake; each has its own line.",
        ("unknown keys (AJ-CFG-004)", "values that a key does not take (AJ-CFG-005)"),
        "Correct line by line. Mistakes of one section may come from one misspelt key above it.",
    )
    UNKNOWN_NAME = (
        "AJ-CFG-015",
        "nothing of that name",
        "A value chooses one of several things by name, and there is none of that name.",
        ("the name is misspelt", "it belongs to another version"),
        "Take one of the names that the line lists.",
    )
    CHECK_FAILED = (
        "AJ-CFG-016",
        "the check found errors",
        "`ajet check` printed at least one line that begins with `error:`; training would stop at "
        "it.",
        ("each line says its own",),
        "Correct them in their order, and check again.",
    )
    UPDATE_SETTING = (
        "AJ-CFG-017",
        "a setting of the algorithm is out of its range",
        "A number of the update (a learning rate, a clip bound, a schedule) is outside of what its "
        "formula allows.",
        ("a bound is below the other one", "a schedule is longer than the run"),
        "Set a number in the range that the line names.",
    )
    FOLDER_NAME = (
        "AJ-CFG-018",
        "a folder's name cannot be written",
        "The locale's encoding has no letters for a folder's name.",
        ("LANG or LC_ALL is C or POSIX",),
        "Set LC_ALL=C.UTF-8, or use a folder with plain letters.",
    )
    ADAPTER_UNKNOWN = (
        "AJ-CFG-020",
        "a call or a task has no adapter",
        "The config trains several adapters apart, and none has the name that an agent, a tag or a "
        "task's metadata gives.",
        ("an agent has another name in the workflow", "the data has a user who is not listed"),
        "Add the name to ajet.trainer_common.lora.adapters, or change adapter_by.",
    )

    # --- the user's own code ---------------------------------------------------------------------

    OWN_FILE_NOT_FOUND = (
        "AJ-OWN-001",
        "no such file or module of yours",
        "The config names a Python file or module that is not found.",
        (
            "the path is relative to another folder",
            "a misspelt name",
            "the project's folder is not where the command runs",
        ),
        "Paths are looked for in the folders that the line lists. Run from the project's root, or "
        "pass --project-dir.",
    )
    OWN_FILE_FAILS = (
        "AJ-OWN-002",
        "your file does not load",
        "Python raised an error while it loaded the file: a syntax error, an import that fails, "
        "or a statement at the top of the file.",
        ("a syntax error", "a package that is not installed", "code that runs on import"),
        "Correct the line that is named. `python FILE.py` shows the whole traceback. Statements "
        'that are no definitions belong under if __name__ == "__main__".',
    )
    OWN_NAME_NOT_FOUND = (
        "AJ-OWN-003",
        "no class or function of that name",
        "The file or module loads, and has nothing of the name after the arrow.",
        ("the name is misspelt", "the class was renamed"),
        "Take a name that the line suggests.",
    )
    OWN_WRONG_KIND = (
        "AJ-OWN-004",
        "not the kind of class that is needed",
        "The name is found, and is not what the key takes: a function where a class is needed, or "
        "a class that is not derived from the base that the line names.",
        ("the base class is forgotten", "two keys are mixed up"),
        "Derive the class from the base that is named (from ajet import Workflow, BaseJudge, …).",
    )
    OWN_METHOD_MISSING = (
        "AJ-OWN-005",
        "a method is missing",
        "The class does not define the method by which ajet calls it.",
        ("the method's name is misspelt", "the class is only begun"),
        "Define the method as the line writes it.",
    )
    OWN_SIGNATURE = (
        "AJ-OWN-006",
        "a method or a constructor takes other arguments",
        "ajet calls the method, or makes the object, with arguments that your definition does not "
        "take; or the method is async where it must not be, or the other way round.",
        (
            "`self` is forgotten",
            "an argument without a default is added to __init__",
            "async is left out",
        ),
        "Write the definition as the line gives it.",
    )
    OWN_SPEC_FORM = (
        "AJ-OWN-007",
        "not a name of a class",
        "A value that names your code is not written as file.py->Name or package.module->Name.",
        ("a dot or a colon in the place of the arrow", "quotes in which the shell ate the `>`"),
        "Write file.py->Name, on the command line in quotes.",
    )
    OWN_CONSTRUCTOR_FAILS = (
        "AJ-OWN-008",
        "your object cannot be made",
        "Making an object of your class raised an error.",
        ("a key or a file that __init__ reads is missing",),
        "Correct what the line says; it names the file and the line.",
    )
    AGENT_NOT_REGISTERED = (
        "AJ-OWN-009",
        "no agent of that name",
        "The config or a task names an agent, and nothing is registered by that name.",
        ('the file with @register("name") is not loaded', "the name is misspelt"),
        "Name the class itself as file.py->Class, or the agent by its registered name.",
    )
    NAME_TAKEN = (
        "AJ-OWN-010",
        "a name is taken",
        "A name is given to two things, or to yours while ajet has one of that name.",
        ("a file is loaded under two names",),
        "Choose another name.",
    )
    OWN_RESULT = (
        "AJ-OWN-011",
        "your function returned something else",
        "A loss, an estimator, a sampler or a reader of yours returned another type, another "
        "number of values, or numbers that are not finite.",
        ("a return is forgotten", "one value for each group, not for each episode"),
        "Return what the line describes.",
    )
    TRAINABLE_TARGETS = (
        "AJ-OWN-012",
        "no agent of the workflow is trained",
        "trainable_targets of the workflow names none of the agents that it has, so that nothing "
        "would be trained.",
        ("an agent's name is misspelt",),
        "Take names that the line lists, or leave trainable_targets out: all are trained then.",
    )
    NO_TOKEN_IDS = (
        "AJ-OWN-013",
        "a chat endpoint shows no token ids",
        "The workflow works on token ids, and the model is behind a chat endpoint, which shows "
        "text alone.",
        ("ajet eval --endpoint with a workflow that was made for training",),
        "Use model_tuner.chat() or an agent framework in the workflow, or evaluate a checkpoint.",
    )
    JOB_SETTING = (
        "AJ-OWN-014",
        "a job cannot be started so",
        "A program that starts a run by AgentJetJob asks for something that is not there.",
        ("a setting of another backbone", "tune() is called while a file is loaded"),
        "Set what the line names in the job's config.",
    )
    RAISED_BY_OWN_CODE = (
        "AJ-OWN-015",
        "your code raised this error",
        "Code of yours raised one of ajet's error classes.",
        ("see the message",),
        "The message is your code's own.",
    )

    # --- tasks and data --------------------------------------------------------------------------

    DATA_NOT_FOUND = (
        "AJ-DAT-001",
        "no such data",
        "The file or the folder with the tasks does not exist.",
        (
            "the path is relative to another folder",
            "a misspelt name",
            "the data is not downloaded yet",
        ),
        "Paths are looked for in the folders that the line lists: where the command runs, and "
        "in the folder of the YAML.",
    )
    ROW_NOT_JSON = (
        "AJ-DAT-002",
        "a line is not valid JSON",
        "A line of the data cannot be read as JSON in UTF-8. The line is named.",
        (
            "a comma after the last value",
            "single quotes",
            "one object over several lines",
            "a file that broke off",
        ),
        "Write one whole JSON object on each line.",
    )
    ROW_FORM = (
        "AJ-DAT-003",
        "a row has another form",
        "A row of the data lacks a field, or a field is of another type than is needed.",
        (
            "the question is in a field of another name",
            "chat messages in another format",
            "a CSV's text has a comma and no quotes around it",
            "an empty question or reply, or an image in a message",
        ),
        "Rename the field, or name it in ajet.task_reader.query_field; the line says which fields "
        "the row has.",
    )
    NO_TASK = (
        "AJ-DAT-004",
        "no tasks",
        "The data exists but has no task of this split.",
        ("an empty file", "a filter that takes every task out"),
        "Give data with at least one task.",
    )
    SPLIT_NOT_FOUND = (
        "AJ-DAT-005",
        "no such split",
        "The data has no split of that name.",
        ("the split is called test and not validation", "one file has one split"),
        "Name a split that the line lists, or set the split's key to null.",
    )
    DATA_FORMAT = (
        "AJ-DAT-006",
        "a kind of file that is not read",
        "Files of this kind are not read as tasks or documents.",
        ("a spreadsheet", "a compressed file", "a folder without a data file"),
        "Convert the file to JSON lines, JSON, CSV, Parquet or Arrow.",
    )
    DATA_UNREADABLE = (
        "AJ-DAT-007",
        "the data cannot be read",
        "The file is there, and cannot be opened or is damaged.",
        (
            "the file's permissions",
            "a download that broke off",
            "a file of another kind under this name",
        ),
        "Open it with a tool of its kind, or get it again.",
    )
    TASK_ID_TWICE = (
        "AJ-DAT-008",
        "two tasks have one id",
        "Task ids name tasks in records and results, so that each must be another.",
        ("the data is concatenated from files that count alike",),
        "Give each row its own id, or leave the field out.",
    )
    HUB_UNREACHABLE = (
        "AJ-DAT-009",
        "the data set is not here and not reachable",
        "The name is not a local folder, and the Hugging Face Hub did not return it.",
        ("no network", "a misspelt name", "a data set that needs a login"),
        "Download it where there is a network, write it with `ajet prepare-data`, and give the "
        "folder.",
    )
    NO_VALIDATION_TASK = (
        "AJ-DAT-010",
        "no validation tasks",
        "The command measures on held-out tasks, and the config names none.",
        ("the validation file is left out",),
        "Name the data as the line says, or pass --split training.",
    )
    TASKS_NOT_MADE = (
        "AJ-DAT-011",
        "no task could be made",
        "The source of tasks (traces, documents, a service) gave nothing of which a task can be "
        "made.",
        ("filters that take all out", "a model that did not answer in the form asked for"),
        "The line counts why; loosen that filter or give another source.",
    )
    ROW_TOO_LONG = (
        "AJ-DAT-012",
        "a row is longer than a limit",
        "A row of supervised data has more tokens than a limit of the config.",
        ("a long document in one row",),
        "Raise the limit that is named, take the row out, or set "
        "ajet.supervised.too_long=leave_out.",
    )
    ROW_NOT_TRAINABLE = (
        "AJ-DAT-013",
        "nothing of a row can be trained on",
        "A row's replies cannot be turned into trained tokens.",
        (
            "no message of an assistant with a weight",
            "the chat template writes a reply otherwise than it prompts for one",
        ),
        "Give messages that end with an assistant's, the reply's token_ids, or another "
        "ajet.model.chat_template.",
    )
    RESULT_FILE = (
        "AJ-DAT-014",
        "not a result of ajet eval",
        "A file that is to hold results of tasks does not, or holds those of other tasks.",
        ("another JSON file", "a result of another split"),
        "Write one with `ajet eval … --out FILE`.",
    )
    TASK_SETTING = (
        "AJ-DAT-015",
        "a setting in a task cannot be used",
        "A task carries its own settings (extra_info, agent_cfg_path, metadata), and one of "
        "them is wrong.",
        ("a file that is named relative to another folder", "text where an object is expected"),
        "Correct the row that is named.",
    )
    SUITE_DATA = (
        "AJ-DAT-016",
        "a benchmark's data is not as published",
        "The folder does not hold the benchmark's files, or a row of them has another form.",
        ("another version of the package or of the data",),
        "Install the package that the line names, or give the folder of its data.",
    )
    SUITE_IS_FOR_MEASURING = (
        "AJ-DAT-017",
        "a benchmark is not trained on",
        "Tasks of public benchmarks measure; training on them would make the result void.",
        ("task_reader.type: suite in a training config",),
        "Train on data of your own, and measure with `ajet eval --suite`.",
    )

    # --- the model -------------------------------------------------------------------------------

    MODEL_NOT_FOUND = (
        "AJ-MOD-001",
        "no such model",
        "ajet.model.path leads to no model: no folder, no .gguf file, no model of this package, "
        "and nothing that the Hub gave.",
        ("a misspelt path", "a name of a model behind an API", "no network"),
        "Give a folder with config.json, weights and tokenizer, or one of the models that the "
        "line lists.",
    )
    NO_TOKENIZER = (
        "AJ-MOD-002",
        "the model has no tokenizer",
        "The folder has weights, and no tokenizer that loads.",
        ("only the weights were copied",),
        "Save it to the folder of the weights with tokenizer.save_pretrained(FOLDER).",
    )
    NO_CHAT_TEMPLATE = (
        "AJ-MOD-003",
        "the model has no chat template",
        "Without a chat template no messages can be given to the model.",
        ("a base model",),
        "Take an instruct model, put chat_template.jinja into the folder, or set "
        "ajet.model.chat_template.",
    )
    TEMPLATE_NOT_FOUND = (
        "AJ-MOD-004",
        "the chat template's file cannot be read",
        "The file of ajet.model.chat_template does not exist or is not text.",
        ("the path is relative to another folder",),
        "Give a jinja file.",
    )
    TEMPLATE_FAILS = (
        "AJ-MOD-005",
        "the chat template refuses the messages",
        "The model's chat template cannot write these messages.",
        (
            "a system message that the template does not take",
            "roles that do not alternate",
            "content that is not text",
        ),
        "Change the messages as the template asks, or use another template.",
    )
    MODEL_NOT_LOADED = (
        "AJ-MOD-006",
        "the model does not load",
        "The model's files are there, and config, weights or tokenizer cannot be loaded.",
        (
            "a file that broke off",
            "an architecture that this transformers does not know",
            "GGUF of a kind that is not read",
        ),
        "The line has the loader's reason; get the file again or install the version it asks for.",
    )
    DEVICE = (
        "AJ-MOD-007",
        "no such device or number format",
        "ajet.model.device or ajet.model.dtype asks for what is unknown or not on this machine.",
        ("cuda on a machine without a GPU that torch finds",),
        "Use auto, or one of those that the line lists.",
    )
    DIVERGED = (
        "AJ-MOD-008",
        "the weights have diverged",
        "The model's logits are not finite.",
        ("a learning rate that is too high", "weights of ajet.model.path that are not finite"),
        "Lower ajet.trainer_common.optim.lr, or resume from an earlier checkpoint.",
    )
    ENGINE_FAILED = (
        "AJ-MOD-009",
        "the inference engine failed",
        "The engine that samples raised an error, or no copy of it is left.",
        ("the GPU's memory is full", "the process was killed"),
        "The line has the last error; logs/ of the run folder says more.",
    )
    OTHER_TOKENIZER = (
        "AJ-MOD-010",
        "two models have other tokens",
        "Token ids of one model are to be read by another one, and their tokenizers differ.",
        ("a teacher, a critic or a fork of another model family",),
        "Take a model with the same tokenizer.",
    )
    MODEL_UNSUPPORTED = (
        "AJ-MOD-011",
        "not for this kind of model",
        "A setting needs something that this architecture does not have.",
        (
            "a batch layout without a flat forward",
            "adapters on modules that it does not have",
            "memory estimates of a family that is not listed",
            "a multimodal checkpoint without a language model for its text (docs/models.md)",
        ),
        "Take the setting that the line names, or another model.",
    )
    TOKENS_NOT_KNOWN = (
        "AJ-MOD-012",
        "the request's answer cannot be recorded",
        "A server stopped at a token, or left numbers out, so that the episode's tokens would not "
        "be those that were sampled.",
        (
            "a stop token that generation_config.json does not name",
            "top_p or top_k that the server does not report",
        ),
        "Change the setting that the line names.",
    )

    # --- runs ------------------------------------------------------------------------------------

    RUN_NOT_FOUND = (
        "AJ-RUN-001",
        "not the folder of a run",
        "The path does not lead to a run folder, or its files are not there.",
        ("the folder above it is given", "a misspelt name", "a run that never began"),
        "Give the folder that the run printed, launcher_record/NAME as a rule.",
    )
    RUN_FOLDER_UNUSABLE = (
        "AJ-RUN-002",
        "the run folder cannot be used",
        "The run folder cannot be made, locked or renamed.",
        (
            "no permission to write there",
            "a file is in the place of a folder",
            "a network disk without locks",
        ),
        "Choose another place with --exp-dir.",
    )
    RUN_IN_USE = (
        "AJ-RUN-003",
        "another process has the run folder",
        "Two runs may not write into one folder.",
        ("the run still runs in another terminal", "an experiment_name that is used twice"),
        "Wait for it, stop it (Ctrl-C where it runs, or `kill` with the process id of the line), "
        "or choose another ajet.experiment_name.",
    )
    RUN_CHANGED = (
        "AJ-RUN-004",
        "an unfinished run would continue as a different one",
        "The folder holds a run that is not finished, and the config, the code or the data has "
        "changed since.",
        ("a setting was changed between two starts",),
        "Go on with the changes (--accept-changes), or begin anew (--no-resume).",
    )
    RUN_COMPLETE = (
        "AJ-RUN-005",
        "the run is complete",
        "All steps of the run are done; nothing is left to do. The exit code is 0.",
        ("the same command was started again",),
        "Raise ajet.trainer_common.total_training_steps for more, or begin anew with --no-resume.",
    )
    CHECKPOINT_NOT_FOUND = (
        "AJ-RUN-006",
        "no checkpoint there",
        "The folder holds no checkpoint, or none of that step.",
        (
            "the run saved none yet (trainer_common.save_freq)",
            "max_checkpoints_to_keep removed it",
            "the folder above it is given",
        ),
        "Give a run folder, or its checkpoints/step_N.",
    )
    CHECKPOINT_UNUSABLE = (
        "AJ-RUN-007",
        "a checkpoint is damaged",
        "A checkpoint's files are not those that were written.",
        ("a copy that broke off", "a failing disk"),
        "Move it away; the run continues from the one before it.",
    )
    CHECKPOINT_NOT_SAVED = (
        "AJ-RUN-008",
        "a checkpoint could not be saved",
        "Writing the checkpoint failed. Earlier ones are whole.",
        ("the disk is full", "the disk failed"),
        "Make room: the same command then continues from the last checkpoint. With another "
        "--exp-dir the run begins anew.",
    )
    CHECKPOINT_DIFFERS = (
        "AJ-RUN-009",
        "a checkpoint of another model or other data",
        "The checkpoint was written with another model, other data or another algorithm than the "
        "config now has.",
        ("ajet.model.path was changed", "one experiment_name for two experiments"),
        "Use what it was written with, another experiment_name, or --no-resume.",
    )
    RECORD_UNREADABLE = (
        "AJ-RUN-010",
        "a file of the run folder cannot be read",
        "A file that the run wrote is missing a part, is damaged or may not be read.",
        ("a copy that broke off", "no permission", "the file was edited"),
        "Restore a copy of it, or do as the line says.",
    )
    RECORD_UNWRITABLE = (
        "AJ-RUN-011",
        "a file of the run folder cannot be written",
        "The run cannot record what it does, and stops before it does more.",
        ("the disk is full", "the disk became read-only"),
        "Make room or repair the disk; the same command continues from the last checkpoint.",
    )
    RECORD_VERSION = (
        "AJ-RUN-012",
        "a record of another version",
        "The file was written by another version of ajet, in another format.",
        ("ajet was updated between two uses of a folder",),
        "Use the ajet that wrote it, or another run folder.",
    )
    EPISODE_NOT_FOUND = (
        "AJ-RUN-013",
        "no such episode",
        "The run has no episode of that name, or several that begin so, or none that fits.",
        ("a part of the id is missing", "the episode was not recorded"),
        "Write more of the id; `ajet view` shows all.",
    )
    TOO_MANY_FAILURES = (
        "AJ-RUN-014",
        "too many episodes failed",
        "More of a step's episodes failed than ajet.rollout.max_failure_rate allows, so the run "
        "stopped before it learns from the rest.",
        ("the workflow raises an error", "a service that it needs is away"),
        "The line has the first error. `ajet debug` runs one episode after another and shows it "
        "in full.",
    )
    SAMPLER_GAP = (
        "AJ-RUN-015",
        "the sampler is not the trainer's policy",
        "The log-probabilities of the engine and of the trainer are further apart than "
        "trainer_common.sampler_gap.max_kl, and the config says to stop.",
        ("another number format in the engine", "top_p or top_k", "weights that are too old"),
        "Take the same number format on both sides (ajet.model.dtype), leave top_p and top_k at "
        "their defaults, lower trinity.max_staleness, or raise max_kl above what a healthy run "
        "shows; `ajet explain sampler_gap` says more.",
    )
    PROCESS_LOST = (
        "AJ-RUN-016",
        "a process of the run was lost",
        "A process of the run ended, and starting it again did not help.",
        ("out of memory", "a machine that went away"),
        "See logs/ of the run folder; the same command continues from the last checkpoint.",
    )
    FORK_IMPOSSIBLE = (
        "AJ-RUN-017",
        "an episode cannot be played again up to there",
        "Replaying gave something other than what was recorded, or the turn does not exist.",
        ("the workflow or the environment is not deterministic", "the workflow was changed"),
        "Fork at an earlier turn, or with the code of the run folder.",
    )
    NOTHING_TO_STOP = (
        "AJ-RUN-018",
        "nothing of that name runs",
        "No process on this machine runs that run, or that episode.",
        ("it ended already", "it runs on another machine"),
        "The display and logs/run.log name what runs.",
    )
    RUN_NOT_REBUILT = (
        "AJ-RUN-019",
        "the run cannot be set up again from its folder",
        "The folder's record does not suffice: the project moved, a secret is not kept, or tasks "
        "changed.",
        ("the project's folder was renamed", "a key was given on the command line"),
        "Give the config with --conf, and the values that are missing.",
    )
    NO_GOOD_EPISODE = (
        "AJ-RUN-020",
        "no episode earned that much",
        "No recorded episode of training has a reward of at least the bound.",
        ("the run has not learned yet", "the bound is above the judge's range"),
        "Lower --min-reward.",
    )
    BUFFER_UNUSABLE = (
        "AJ-RUN-021",
        "the buffer's database cannot be used",
        "The database with groups on their way to the trainer cannot be opened, read or written.",
        ("the service is not running", "another version wrote it", "a wrong name or password"),
        "Mend what the line names, or begin with an empty one.",
    )

    # --- GPUs, Ray, machines ---------------------------------------------------------------------

    RAY_ADDRESS = (
        "AJ-CLU-001",
        "it is not said which Ray is meant",
        "An address, a port or a token of a Ray cluster is missing or has another form.",
        ("RAY_ADDRESS is a dashboard's address", "MASTER_ADDR is not set"),
        "Set the variable as the line shows; --with-ray starts a Ray on this machine.",
    )
    RAY_UNREACHABLE = (
        "AJ-CLU-002",
        "Ray does not answer or does not start",
        "No Ray answers at the address, it cannot be joined, or one could not be started.",
        ("it is not running", "a port is closed", "another version of Ray or Python"),
        "Start it, open the port, or use --with-ray or --backbone debug on one machine.",
    )
    TOO_FEW_GPUS = (
        "AJ-CLU-003",
        "the run does not fit the machines",
        "The config asks for more nodes, GPUs or engines than there are, or leaves one part none.",
        ("a number of another machine", "one part takes all GPUs"),
        "Lower the number that is named; `ajet plan` shows the placement.",
    )
    GPU_IN_USE = (
        "AJ-CLU-004",
        "a GPU is in use",
        "Another process holds memory of a GPU that the run would take.",
        ("a run that has not ended",),
        "Wait, choose others with CUDA_VISIBLE_DEVICES, or pass --skip-check-avail-gpu.",
    )
    PARALLEL_SIZE = (
        "AJ-CLU-005",
        "a parallel size does not divide",
        "A number of ranks or GPUs must divide another number (GPUs of a node, heads of the "
        "model) and does not, or cannot be used by this engine or layout.",
        ("a setting of a larger machine",),
        "Choose a divisor, or 1.",
    )
    DOES_NOT_FIT = (
        "AJ-CLU-006",
        "the plan does not fit",
        "`ajet plan` estimates more memory than there is, or finds no placement.",
        ("a model that is too large for the GPUs", "sequences that are too long"),
        "The lines above say which part; see the changes that the plan suggests.",
    )
    PROJECT_NOT_ON_NODE = (
        "AJ-CLU-007",
        "a machine does not have the project or the model",
        "All machines of a run need the same files in the same folders.",
        ("the folder is local to one machine", "versions of packages differ"),
        "Copy the files, or use a shared disk.",
    )
    RANKS_NOT_JOINED = (
        "AJ-CLU-008",
        "the trainer's ranks did not find each other",
        "A rank of the trainer could not join the others, or failed.",
        ("a port is closed", "a wrong network interface (GLOO_SOCKET_IFNAME)"),
        "Open the port between the machines, or set the interface.",
    )
    WEIGHTS_WAY = (
        "AJ-CLU-009",
        "weights cannot travel that way here",
        "The way of weights to the engines that the config names does not work with this "
        "placement.",
        ("shared memory between several machines",),
        "Set the value that the line names; on backbone verl, auto takes the first that can be.",
    )
    WEIGHTS_NOT_ARRIVED = (
        "AJ-CLU-010",
        "weights did not arrive whole",
        "An engine did not take the trainer's weights as they were sent.",
        (
            "a disk that is full",
            "a process that ended",
            "engine and trainer with other files of the model",
            "a run folder that trainer and explorer do not share",
        ),
        "The line names the part; the same command continues from the last checkpoint.",
    )

    NODE_UNREACHABLE = (
        "AJ-CLU-012",
        "a node of the cluster does not answer",
        "A machine that Ray knows, or a process on it, cannot be reached from another one.",
        ("a firewall between the machines", "Ray has taken an address that the others do not see"),
        "Open all TCP ports between the machines, or give `ray start` --node-ip-address.",
    )
    RUN_FOLDER_NOT_SHARED = (
        "AJ-CLU-013",
        "a machine does not see the run folder",
        "A part of the run on another machine reads or writes the run folder, which is not there.",
        ("the folder is local to one machine", "it is mounted at another path"),
        "Share the folder at the same path, or choose a setting that does without.",
    )
    MACHINE_TOO_SMALL = (
        "AJ-CLU-011",
        "the machine has too little",
        "Memory or disk does not suffice for the model and what a run keeps of it.",
        ("a model that is too large for this machine", "a disk that is nearly full"),
        "Take a smaller model, keep fewer checkpoints, or do as the line says.",
    )

    # --- inference servers -----------------------------------------------------------------------

    SERVER_NOT_INSTALLED = (
        "AJ-SRV-001",
        "the inference server is not installed",
        "ajet.rollout.name asks for vLLM or SGLang, and no usable one is found.",
        ("it is not installed", "it is built for another device", "another Python has it"),
        "`ajet servers` shows what is found, `ajet servers install NAME` installs one.",
    )
    SERVER_NOT_STARTED = (
        "AJ-SRV-002",
        "the inference server did not start",
        "The server's process ended, or was not healthy in time.",
        (
            "the GPU's memory is too small",
            "a setting that this server does not have",
            "its port is taken",
        ),
        "The line has the server's last words; logs/ of the run folder has all.",
    )
    SERVER_REFUSES = (
        "AJ-SRV-003",
        "the inference server refused",
        "An inference server answered a request or a command with an error.",
        ("a request longer than the server's limit", "a version with another interface"),
        "The line has its answer. Lower the limit or change the setting that it names; `ajet "
        "servers` says whether ajet supports this version.",
    )
    SERVER_SETTING = (
        "AJ-SRV-004",
        "a server's setting does not go",
        "A setting of ajet.rollout.server does not go with the server or the run.",
        ("an option that ajet sets itself", "the Python of a server without its name"),
        "Change the key that is named.",
    )
    SERVER_INSTALL_FAILED = (
        "AJ-SRV-005",
        "installing a server failed",
        "`ajet servers install` could not install the server.",
        ("no network", "another server is in that folder"),
        "Mend what the installer says at the end of the line, and run the command again.",
    )

    # --- other models, services, ports -----------------------------------------------------------

    CHAT_ADDRESS = (
        "AJ-NET-001",
        "the address or the key of a model is missing",
        "A judge, a teacher or an agent asks a model over HTTP, and its address or its key is not "
        "known or has another form.",
        ("OPENAI_API_KEY or OPENAI_BASE_URL is not set", "an address without http://"),
        "Set the key that the line names.",
    )
    CHAT_NO_ANSWER = (
        "AJ-NET-002",
        "another model gave no answer",
        "A model over HTTP, not the one in training, could not be reached, refused, or did not "
        "answer in time.",
        ("a wrong address", "a wrong key", "a limit of requests"),
        "The line has its answer; try the address with curl.",
    )
    GRADE_UNREADABLE = (
        "AJ-NET-003",
        "a grader's reply cannot be read",
        "The judging model answered, and not in the form that it was asked for.",
        ("a model that is too small to keep to a form",),
        "Take another model, or raise max_corrections.",
    )
    SERVICE_ANSWER = (
        "AJ-NET-004",
        "a service gave another answer",
        "A service that tasks or vectors come from answered with an error or in another form.",
        ("the address of another service", "a token is missing"),
        "Correct the address or the token; the line has the address and the answer.",
    )
    TRACES_NOT_TAKEN = (
        "AJ-NET-005",
        "the receiver takes no traces",
        "MLflow or an OpenTelemetry receiver did not take spans.",
        ("no receiver runs there",),
        "Start one, or name another.",
    )
    LOGGER_NOT_STARTED = (
        "AJ-NET-006",
        "a logger does not start",
        "A logger of ajet.trainer_common.logger raised an error when it began.",
        ("no login", "no network", "a setting in an environment variable"),
        "The line has its reason; leave the logger out to train without it.",
    )
    PORT_IN_USE = (
        "AJ-NET-007",
        "a port cannot be listened on",
        "A server of ajet's own (the page, the debugger, the gateway, metrics) cannot listen on "
        "its port.",
        ("another process has the port", "a number below 1024", "an address of another machine"),
        "Choose another port, or 0 for any free one.",
    )
    CACHE_UNUSABLE = (
        "AJ-NET-008",
        "the cache of replies cannot be used",
        "The file that keeps replies of other models is damaged or in use.",
        ("a copy that broke off", "another run that writes into it"),
        "Move it away, and replies are asked for again; or wait for the other run.",
    )

    # --- environments ----------------------------------------------------------------------------

    NO_SUCH_ENVIRONMENT = (
        "AJ-ENV-001",
        "no such environment",
        "The config names an environment that is none of ajet's, of a package's, or of yours.",
        ("a misspelt name", "none is listed in custom_envs"),
        "Take a name that the line lists, or your own class as file.py->Class.",
    )
    ENVIRONMENT_SETTING = (
        "AJ-ENV-002",
        "a setting of an environment cannot be used",
        "A key of env_config or of custom_envs has a value that the environment does not take.",
        ("a misspelt setting", "a limit above that of the run"),
        "Correct the setting that is named.",
    )
    NOT_AN_ENVIRONMENT = (
        "AJ-ENV-003",
        "your class is not an environment",
        "The class lacks reset(seed) or step(action), or takes other arguments.",
        ("a method is misspelt", "reset without seed"),
        "Write both methods as docs/guides/game.md does; `from ajet import Environment` is a base "
        "class.",
    )
    NO_INSTANCE = (
        "AJ-ENV-004",
        "no instance can be made with these settings",
        "The environment draws its instances, and none fits its settings.",
        ("a map that is too small", "chances that are too high"),
        "Loosen the setting that is named.",
    )
    ENVIRONMENT_TEXT = (
        "AJ-ENV-005",
        "a text of an environment cannot be used",
        "A prompt's placeholder or the pattern that finds the action is wrong.",
        ("braces that are meant as text", "a pattern with two groups"),
        "Write placeholders as the line lists them, and literal braces twice.",
    )
    ENVIRONMENT_FAILS = (
        "AJ-ENV-006",
        "an environment cannot be made",
        "Making the environment raised an error.",
        ("the package has no environment of that id", "its data is not there"),
        "The line has the reason; `ajet env-check` tries an environment by itself.",
    )
    ENVIRONMENT_SERVICE = (
        "AJ-ENV-007",
        "the environment's service cannot be used",
        "The service of environments was not reached, or lists no task, or lists one twice.",
        ("the service is not running", "a wrong env_url"),
        "Start it, and correct ajet.task_reader.env_service.",
    )

    # --- tools -----------------------------------------------------------------------------------

    TOOL_LISTING = (
        "AJ-TOO-001",
        "a list of tools or loops has another form",
        "A file that lists tools, interactions or agent loops cannot be read as one.",
        ("a misspelt path", "a key that is not known there"),
        "Write the entry as the line shows.",
    )
    TOOL_TWICE = (
        "AJ-TOO-002",
        "two tools have one name",
        "A model calls tools by their names, so that each must be another.",
        ("one tool is listed in two files",),
        "Rename one of them.",
    )
    TOOL_SCHEMA = (
        "AJ-TOO-003",
        "a tool's schema cannot be used",
        "The parameters of a tool are no JSON schema of an object, or refer to what is not there.",
        ("a name is missing", "$ref to itself"),
        "Write the schema as the line says.",
    )
    TOOL_SERVER = (
        "AJ-TOO-004",
        "a server of tools does not answer or lacks a tool",
        "An MCP server cannot be started or reached, or does not have a tool that is named.",
        ("a wrong command or url", "a misspelt tool"),
        "Take a tool that the line lists, or correct the address.",
    )
    TOOL_CLASS = (
        "AJ-TOO-005",
        "a class of tools cannot be used",
        "A tool's class or an agent's tools ask for something that is not here.",
        ("a tool written for another loop", "an agent without tools"),
        "Change the class as the line says.",
    )

    PROGRAM_MISSING = (
        "AJ-TOO-006",
        "a program that an agent or its sandbox needs is missing",
        "A command-line agent, the sandbox that it is to run in, or the sandbox's image is not on "
        "this machine. Nothing is run without the sandbox that the config names.",
        ("it is not installed", "it is not on the PATH of the process that runs ajet"),
        "Install the program, give its path in ajet.harness.program, or name another sandbox.",
    )

    REWARD_MISSING = (
        "AJ-OWN-016",
        "nobody gives a reward",
        "Training needs a reward of each episode: neither does the workflow return one, nor is "
        "there a judge.",
        ("WorkflowOutput is made without reward=", "the judge's key is misspelt or null"),
        "Return WorkflowOutput(reward=…), or name a judge in ajet.task_judge.judge_protocol.",
    )

    # --- judges ----------------------------------------------------------------------------------

    JUDGE_SETTING = (
        "AJ-CFG-019",
        "a setting of the judge is missing or wrong",
        "The judge needs a model, a prompt or tasks that the config does not give.",
        ("a judging model is not named", "a prompt without its placeholder"),
        "Set the key that is named.",
    )
    RUBRICS_CHANGED = (
        "AJ-RUN-022",
        "rubrics were made with other settings",
        "The run folder has rubrics that another grader or other examples made.",
        ("the config was changed",),
        "Move them away to make new ones, or choose another experiment_name.",
    )

    # --- packages and other systems --------------------------------------------------------------

    PACKAGE_MISSING = (
        "AJ-PKG-001",
        "an optional package is not installed",
        "The config or the command needs a package that a plain installation does not have.",
        ("ajet is installed without the extra", "another Python environment is active"),
        "Run the pip command of the line in the environment that runs ajet.",
    )
    PACKAGE_VERSION = (
        "AJ-PKG-002",
        "a package of another version",
        "A package is installed, and its version does not have what is needed.",
        ("an old version",),
        "Install the version that is named.",
    )
    NOT_CONVERTIBLE = (
        "AJ-CNV-001",
        "not a config of another system",
        "`ajet convert` reads configs and start scripts of other systems, and this file is none.",
        ("a file of another kind", "a script that starts something else", "a wrong path"),
        "Give the YAML, or the shell script that starts the training.",
    )
    CONVERT_VALUE = (
        "AJ-CNV-002",
        "a value cannot be converted",
        "A key of the other system's config has a value of another type than it takes there.",
        ("a variable that the shell would fill in",),
        "Write the value out, and convert again.",
    )


def codes_by_area() -> dict[str, list[Code]]:
    """Returns the codes of each area, by the area's title, in the order of `AREAS` and of their
    numbers."""
    codes = sorted(Code, key=lambda code: code.value)
    return {
        title: [code for code in codes if code.value.startswith(f"AJ-{area}-")]
        for area, title in AREAS.items()
    }
