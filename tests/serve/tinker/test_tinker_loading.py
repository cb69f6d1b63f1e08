"""The base of Tinker's server."""

import shutil

from ajet.core.config import load_config
from ajet.core.model.tokenizer import EMBEDDED_DIR
from ajet.serve.tinker.samplers import CONFIG, load_base

END_OF_TURN = "<|im_end|>"


def test_a_base_model_without_a_chat_template_is_served_until_its_end_token(tmp_path):
    folder = shutil.copytree(EMBEDDED_DIR / "math", tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    overrides = [f"ajet.model.path='{folder}'", "ajet.model.device=cpu"]
    _, template = load_base(load_config(CONFIG, overrides, backbone="debug", exp_dir=tmp_path))
    assert [template.token_text(token) for token in template.stop_token_ids] == [END_OF_TURN]
