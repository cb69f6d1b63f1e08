"""A prompt with images has the ids of the model's processor, and keeps them as it grows."""

from types import SimpleNamespace

import numpy as np
import pytest

from ajet.core.errors import ModelError
from ajet.core.images import store
from ajet.core.images.image import Image, ImageLimits
from ajet.core.images.image_ids import keys_in_order, with_placeholders
from ajet.core.images.store import ImageStore
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion
from ajet.core.inference.session import TokenSession
from ajet.core.model.load import load_model
from ajet.core.model.vision import SEEING
from tests.fakes import scripted_recorder
from tests.vision_models import picture, save_vision_model


@pytest.fixture(scope="module", params=sorted(SEEING))
def loaded(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save_vision_model(request.param, folder)
    return load_model(str(folder), device="cpu", images=ImageStore())


@pytest.fixture
def template(loaded):
    return ChatTemplate(loaded.tokenizer, images=loaded.vision.processor)


def image(seed, *size):
    return {"type": "image", "image": picture(seed, *size)}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}


def taken(template, *messages):
    return template.images.store.taken(messages)


def test_the_ids_are_those_of_the_processor(loaded, template):
    messages = taken(
        template,
        {"role": "system", "content": "You see."},
        user(text("One\n"), image(0, 16, 24), text("\nand two"), image(1, 24, 24)),
    )
    ids = template.prompt_ids(messages)
    keys = [int(part["image"], 16) for part in messages[1]["content"] if part["type"] == "image"]
    assert keys_in_order(ids) == keys and len(set(keys)) == 2
    pictures = [template.images.store.get(key).picture() for key in keys]
    processor = loaded.vision.processor._processor
    made = processor(text=[template.render(messages)], images=[pictures], add_special_tokens=False)
    assert with_placeholders(ids, template.images.image_token_id) == list(made["input_ids"][0])


def test_a_placeholder_that_a_user_writes_is_text(template):
    holder = template.images.placeholder
    messages = taken(template, user(text(f"no {holder} here"), image(0), text("\ufdd20f\ufdd2")))
    ids = template.prompt_ids(messages)
    assert len(keys_in_order(ids)) == 1
    assert template.images.image_token_id not in ids
    assert f"no {holder} here" in template.render(messages)


def test_the_ids_of_a_growing_conversation_begin_with_the_recorded_ones(template):
    session = TokenSession(template, check_drift=True)
    messages = taken(template, user(text("Look: "), image(0)))
    prompt = session.prompt_for(messages, None)
    ids = template.encode("I see.<|im_end|>")
    completion = Completion(tuple(prompt.ids), tuple(ids), (0.0,) * len(ids), "stop", 0)
    reply = {"role": "assistant", "content": "I see."}
    session.record(messages, None, reply, completion)
    more = [*messages, reply, *taken(template, user(image(1), text("And now?")))]
    again = session.prompt_for(more, None)
    assert again.continues and again.drift is None and again.drift_checked
    assert again.ids[: len(prompt.ids) + len(ids)] == [*prompt.ids, *ids]
    assert len(keys_in_order(again.ids)) == 2
    # Another picture in the place of the first one is another conversation.
    other = [*taken(template, user(text("Look: "), image(2))), *more[1:]]
    assert not session.prompt_for(other, None).continues


async def test_an_agents_message_may_name_an_address_if_the_run_allows_it(
    loaded, template, monkeypatch
):
    shown = Image.from_picture(picture(3), ImageLimits())
    asked = []

    async def fetch_image(address, limits):
        asked.append(address)
        return shown

    monkeypatch.setattr(store, "fetch_image", fetch_image)
    monkeypatch.setattr(template.images.store, "limits", ImageLimits(addresses=True))
    address = "https://a.example/a.png"
    question = user(text("What?"), {"type": "image_url", "image_url": {"url": address}})
    tokenizer = SimpleNamespace(
        decode=template.text_of,
        encode=loaded.tokenizer.encode,
        eos_token_id=loaded.tokenizer.eos_token_id,
    )
    episode = scripted_recorder(template, "A lake.", tokenizer)
    first = await episode.chat([question])
    second = await episode.chat([question, first.reply, user(text("And now?"))])
    assert asked == [address]
    assert keys_in_order(second.completion.prompt_ids) == [shown.key]
    assert second.completion.prompt_ids[: len(first.completion.prompt_ids)] == (
        first.completion.prompt_ids
    )


def test_ids_are_shown_with_the_name_of_each_image(template):
    messages = taken(template, user(image(0), text("a"), image(0)))
    key = messages[0]["content"][0]["image"]
    shown = template.text_of(template.prompt_ids(messages))
    assert shown.count(f"<image {key}>") == 2
    first = next(i for i in template.prompt_ids(messages) if i >= 2**62)
    assert template.decode_one(first) == template.token_text(first) == f"<image {key}>"
    assert template.decode_one(first + 1) == ""


def test_a_template_without_a_place_for_images_is_one_line(loaded):
    template = ChatTemplate(loaded.tokenizer, images=loaded.vision.processor)
    source = loaded.tokenizer.chat_template
    loaded.tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}<|im_end|>{% endfor %}"
    )
    try:
        with pytest.raises(ModelError, match="wrote 0 of 1 images"):
            template.prompt_ids(taken(template, user(image(0))))
    finally:
        loaded.tokenizer.chat_template = source


def test_a_model_that_reads_text_names_the_key(loaded):
    template = ChatTemplate(loaded.tokenizer)
    with pytest.raises(ModelError, match=r"set ajet\.model\.images\.enabled if it sees images"):
        template.prompt_ids([user(text("a"), {"type": "image", "image": "0" * 12})])
    assert isinstance(template.prompt_ids([user(text("a"), text("b"))]), list)
    assert np.all(np.array(template.prompt_ids([user(text("a"))])) < 2**31)
