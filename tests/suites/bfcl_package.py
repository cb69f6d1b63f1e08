"""A package in the form of bfcl-eval, small enough to be read: two questions and a strict checker.

Its table of handlers cannot be imported, as in an environment without the package's requirements.
"""

import json
import textwrap

AREA = {
    "name": "geometry.area",
    "description": "The area of a rectangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "a": {"type": "integer", "description": "One side."},
            "b": {"type": "float", "description": "The other."},
            "tags": {"type": "tuple", "items": {"type": "any"}, "description": "Labels."},
        },
        "required": ["a", "b"],
    },
}
CHECKER = """
from bfcl_eval.constants.enums import Language
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING


def ast_checker(functions, calls, possible, language, category, model_name):
    assert language is Language.PYTHON
    flag = MODEL_CONFIG_MAPPING[model_name].underscore_to_dot
    for call, answer in zip(calls, possible, strict=False):
        [(name, wanted)] = answer.items()
        given = call.get(name.replace(".", "_") if flag else name)
        if given is None:
            return {"valid": False, "error": [], "error_type": "wrong_func_name"}
        if any(given[key].real not in wanted[key] for key in wanted):
            return {"valid": False, "error": [], "error_type": "value_error"}
    return {"valid": len(calls) == len(possible), "error": [], "error_type": "wrong_count"}
"""
PROMPTS = """
OUTPUT_FORMAT_MAPPING = {"python": "[f(a=1)]"}
PARAM_TYPE_MAPPING = {"python": ""}
PROMPT_STYLE_TEMPLATES = {"classic": {
    "persona": "PERSONA. ", "task": "TASK.", "multiturn_behavior": "TURNS.",
    "tool_call_no_tag": "FORMAT {output_format}{param_types}.",
    "available_tools": "LIST {format}: {functions}"}}
PROMPT_TEMPLATE_MAPPING = {
    "plaintext": "{persona}{task} {tool_call_format} {multiturn_behavior} {available_tools}"}
"""
TYPES = """
GORILLA_TO_OPENAPI = {"dict": "object", "float": "number", "integer": "integer",
    "tuple": "array", "any": "string", "string": "string"}
"""
ENUMS = "import enum\n\n\nclass Language(enum.Enum):\n    PYTHON = 'python'\n"


BACKEND = """
MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Light": "light.json"}
CLASS_FILE_PATH_MAPPING = {"Light": "bfcl_eval.eval_checker.multi_turn_eval.light"}
STATELESS_CLASSES = []
"""
LIGHT = """
class Light:
    def _load_scenario(self, scenario, long_context=False):
        self.level = scenario["level"]
        self._calls = 0

    def dim(self, name, level):
        self._calls += 1
        self.level = level
        return {"level": level}

    def read(self):
        return str(self.level)

    def note(self, text, to=[]):
        to.append(text)
        return __import__("json").dumps(to)

    def power(self, base, exponent):
        return base**exponent

    def remove(self):
        raise SystemExit
"""
MULTI_TURN_CHECKER = """
def state_checker(model, reference):
    right = model["Light"].level == reference["Light"].level
    return {"valid": right, "error_type": "multi_turn:instance_state_mismatch"}


def response_checker(results, wanted, turn):
    right = all(each in results for each in wanted)
    return {"valid": right, "error_type": "multi_turn:execution_response_mismatch"}
"""
DIM = {
    "name": "dim",
    "description": "Sets the level.",
    "parameters": {
        "type": "dict",
        "properties": {"name": {"type": "string"}, "level": {"type": "integer"}},
        "required": ["name", "level"],
    },
}


def write_multi_turn_data(folder):
    """One task of three turns: dim the light, do nothing, read it."""
    turns = ["Dim to 2.", "Thanks.", "What is it now?"]
    question = [[{"role": "user", "content": text}] for text in turns]
    truth = [["dim('desk', level=2)"], [], ["read()"]]
    row = {"id": "multi_turn_base_0", "question": question}
    row |= {"involved_classes": ["Light"], "initial_config": {"Light": {"level": 9}}}
    for name in ("possible_answer", "multi_turn_func_doc"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _write_lines(folder / "BFCL_v4_multi_turn_base.json", [row])
    answer = {"id": row["id"], "ground_truth": truth}
    _write_lines(folder / "possible_answer/BFCL_v4_multi_turn_base.json", [answer])
    read = {"name": "read", "description": "Reads it.", "parameters": {"type": "dict"}}
    _write_lines(folder / "multi_turn_func_doc/light.json", [DIM, {**read, "response": {}}])


def write_bfcl_data(folder, category="simple_python", num=2):
    """The files of one category: questions for the area of n times 2, for n = 0, 1, …"""
    (folder / "possible_answer").mkdir(parents=True, exist_ok=True)
    questions, answers = [], []
    for n in range(num):
        question = [[{"role": "user", "content": f"The area of {n} times 2?"}]]
        name = f"{category}_{n}"
        questions.append({"id": name, "question": question, "function": [AREA]})
        answers.append({"id": name, "ground_truth": [{"geometry.area": {"a": [n], "b": [2.0]}}]})
    _write_lines(folder / f"BFCL_v4_{category}.json", questions)
    _write_lines(folder / f"possible_answer/BFCL_v4_{category}.json", answers)


def write_bfcl(folder):
    """Writes the package into `folder`, which is to be on sys.path."""
    files = {
        "__init__.py": "",
        "constants/__init__.py": "",
        "constants/enums.py": ENUMS,
        "constants/type_mappings.py": TYPES,
        "constants/default_prompts.py": PROMPTS,
        "constants/model_config.py": "import a_client_that_is_not_installed\n",
        "eval_checker/__init__.py": "",
        "eval_checker/ast_eval/__init__.py": "",
        "eval_checker/ast_eval/ast_checker.py": CHECKER,
        "constants/executable_backend_config.py": BACKEND,
        "eval_checker/multi_turn_eval/__init__.py": "",
        "eval_checker/multi_turn_eval/light.py": LIGHT,
        "eval_checker/multi_turn_eval/multi_turn_checker.py": MULTI_TURN_CHECKER,
    }
    for name, text in files.items():
        file = folder / "bfcl_eval" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    for category in ("simple_python", "irrelevance", "live_irrelevance", "parallel_multiple"):
        write_bfcl_data(folder / "bfcl_eval" / "data", category)


def _write_lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
