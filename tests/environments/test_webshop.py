"""The shop's pages, its search, its goals, and WebShop's own files."""

import json
import math
import random

import pytest

from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError
from ajet.environments.webshop import WebShop
from ajet.environments.webshop.catalogue import Catalogue
from ajet.environments.webshop.matching import SearchIndex, terms_of
from ajet.environments.webshop.products import Product


def shown(shop, action):
    observation, reward, terminated, truncated, info = shop.step(action)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["metrics"]["action_is_valid"]
    return observation


def test_a_walk_through_the_pages(files):
    shop = WebShop(**files, observation_mode="text", show_actions=False)
    first, info = shop.reset(seed=0)
    told = shop.goal.instruction
    assert first == f"WebShop [SEP] Instruction: [SEP] {told} [SEP] Search"
    assert info == {"state_key": "None|1|||"}
    head = f"Instruction: [SEP] {told} [SEP] Back to Search"
    page = shown(shop, "search[Lamp]")
    assert page.startswith(f"{head} [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] B000000000")
    assert page.count("Lamp Number") == 10
    page = shown(shop, "click[Next >]")
    assert page.startswith(f"{head} [SEP] Page 2 (Total results: 12) [SEP] < Prev [SEP] B000000010")
    assert page.count("Lamp Number") == 2 and "Next >" not in page
    assert "Page 1" in shown(shop, "click[< prev]")
    item = shown(shop, "click[b000000001]")
    assert item == (
        f"{head} [SEP] < Prev [SEP] color [SEP] red | blue [SEP] white [SEP] size [SEP] small [SEP]"
        " large [SEP] Lamp Number 1 [SEP] Price: $10.0 to $20.0 [SEP] Rating: N.A. [SEP] "
        "Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    assert shown(shop, "click[Features]") == f"{head} [SEP] < Prev [SEP] It shines [SEP] It is new"
    shown(shop, "click[< Prev]")
    assert shown(shop, "click[description]") == f"{head} [SEP] < Prev [SEP] All about lamp 1"
    shown(shop, "click[< Prev]")
    assert shown(shop, "click[white]") == item
    assert "Page 1" in shown(shop, "click[< Prev]")
    assert shown(shop, "click[Back to Search]") == first


def test_the_rich_form_marks_buttons_and_what_was_clicked(files):
    shop = WebShop(**files, observation_mode="text_rich")
    shop.reset(seed=0)
    shown(shop, "search[lamp]")
    item = shown(shop, "click[B000000001]")
    assert "[button] white [button_]" in item and "Chosen:" not in item
    item = shown(shop, "click[white]")
    assert "[clicked button] white [clicked button_]" in item
    assert "[button] red | blue [button_]" in item and "\nChosen: color: white\n" in item
    assert "[clicked button] B000000001 [clicked button_]" in shown(shop, "click[< Prev]")
    assert "Chosen" not in shown(shop, "click[B000000001]")  # leaving the page forgets them


def test_a_purchase_ends_the_episode_and_reports_the_parts_of_its_reward(files):
    shop = WebShop(**files)
    shop.reset(seed=0)
    shown(shop, "search[lamp]")
    shown(shop, "click[b000000001]")
    _, reward, terminated, _, info = shop.step("click[Buy Now]")
    assert terminated and 0 <= reward <= 1
    assert info["metrics"]["is_bought"] and info["metrics_agg_mode"]["type_score"] == "last"
    assert set(info["metrics"]) >= {"type_score", "attributes_met", "options_met", "price_is_met"}
    assert shop.step("click[buy now]")[1:3] == (0.0, True)


NO_ACTIONS = ["", "buy it", "search[]", "search[ the ]", "search[lamp", "think[hm]", "click[]"]
NO_ACTIONS += ["click[buy now]", "click[search]", "click[b000000001]", "click[next >]"]


@pytest.mark.parametrize("action", NO_ACTIONS)
def test_text_that_is_no_action_here_changes_nothing(files, action):
    shop = WebShop(**files)
    first, before = shop.reset(seed=0)
    observation, reward, terminated, _, info = shop.step(action)
    assert observation == f"Write search[words] or click[name of a button].\n{first}"
    assert (reward, terminated) == (0.0, False)
    assert info["metrics"]["action_is_valid"] is False
    assert info["state_key"] == before["state_key"]


def test_a_search_without_results_is_a_page(files):
    shop = WebShop(**files)
    shop.reset(seed=0)
    assert "Page 1 (Total results: 0)" in shown(shop, "search[zebra]")
    assert shop.oracle_action().startswith("search[")


def test_the_oracle_earns_the_whole_reward_on_every_goal():
    shop = WebShop()
    for goal in shop._catalogue.goals:
        shop.reset(seed=0)
        shop.goal, terminated = goal, False
        for _ in range(10):
            _, reward, terminated, _, info = shop.step(shop.oracle_action())
            if terminated:
                break
        assert (reward, info["metrics"]["success"]) == (1.0, True), goal


def test_the_oracle_finds_its_way_back():
    shop, rng = WebShop(), random.Random(0)
    for seed in range(40):
        shop.reset(seed=seed)
        for _ in range(rng.randrange(8)):
            action = shop.sample_action(rng)
            if action != "click[buy now]":
                assert shop.step(action)[4]["metrics"]["action_is_valid"]
        for _ in range(20):
            _, reward, terminated, _, _ = shop.step(shop.oracle_action())
            if terminated:
                break
        assert terminated and reward > 0.5  # a wrong option that is not asked for stays chosen


def test_buying_at_random_earns_little():
    shop, rng, rewards = WebShop(), random.Random(0), []
    for seed in range(100):
        shop.reset(seed=seed)
        for _ in range(15):
            _, reward, terminated, _, _ = shop.step(shop.sample_action(rng))
            if terminated:
                rewards.append(reward)
                break
    assert 0 < sum(rewards) / 100 < 0.4 and sum(reward >= 1 for reward in rewards) < 10


def test_the_splits_share_no_goal_and_the_seed_decides():
    catalogue = WebShop()._catalogue
    train, validation = (catalogue.split(name) for name in ("train", "validation"))
    assert len(catalogue.products) == 288 and len(train) + len(validation) == 575
    assert len(set(catalogue.goals)) == 575 and not set(train) & set(validation)
    shop = WebShop()
    for seed in range(50):
        shop.reset(seed=seed, options={"split": "validation"})
        assert shop.goal in validation
        again = WebShop()
        assert again.reset(seed=seed, options={"split": "validation"})[0] == shop.render()


def test_many_goals_are_split_as_in_the_paper():
    catalogue = Catalogue([], [])
    catalogue.goals = list(range(3000))
    assert catalogue.split("validation") == list(range(500))
    assert catalogue.split("train") == list(range(1500, 3000))


def test_bm25_is_the_formula():
    titles = ["red lamp", "red red scarf of wool", "blue table"]
    index = SearchIndex([product(title) for title in titles])
    documents = [terms_of(title) for title in titles]
    mean = sum(map(len, documents)) / 3

    def score(document, query):
        total = 0.0
        for term in terms_of(query):
            having = sum(term in each for each in documents)
            rarity = math.log(1 + (3 - having + 0.5) / (having + 0.5))
            count = document.count(term)
            scale = 0.9 * (1 - 0.4 + 0.4 * len(document) / mean)
            total += rarity * count / (count + scale)
        return total

    for query in ("red", "red lamps", "wool scarf red", "blue red"):
        scores = {title: score(d, query) for title, d in zip(titles, documents, strict=True)}
        expected = sorted((t for t in titles if scores[t]), key=lambda t: -scores[t])
        assert [each.title for each in index.best(query, 50)] == expected
    assert index.best("zebra", 50) == [] and len(index.best("red", 1)) == 1


def product(title):
    return Product(title, title, "q", "c", 1.0, "$1", (), {})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """WebShop's files in small: twelve lamps, two with instructions of people."""
    folder = tmp_path_factory.mktemp("webshop")
    rows = [row(number) for number in range(12)]
    rows += [row(3), row(0) | {"asin": "nan"}, row(0) | {"asin": "B0000000000"}]
    attributes = {each["asin"]: {"attributes": ["bright"]} for each in rows[:11]}
    attributes["B000000002"] |= {
        "instruction": "Find me a lamp",
        "instruction_attributes": ["bright"],
    }
    people = {
        "B000000001": [told(["bright"], ["white", "large"]), told(["bright"], ["white", "large"])],
        "B000000004": [told(["bright"], {"size": "small"}), told([], ["white"])],
        "B0GONE": [told(["bright"], [])],
    }
    contents = {"products": rows, "attributes": attributes, "goals": people}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    return {name: str(folder / name) for name in contents}


def row(number):
    options = [{"value": "Red/Blue", "image": "x"}, {"value": " White "}]
    return {
        "asin": f"B{number:09}",
        "name": f"Lamp Number {number}",
        "query": " Desk Lamp",
        "product_category": "Home › Lighting",
        "category": "garden",
        "pricing": "$10.00$20.00" if number % 2 else "$1,234.50" if number else "",
        "small_description": ["It shines", "It is new"],
        "full_description": f"All about lamp {number}",
        "customization_options": {
            "Color": options,
            "Size": [{"value": "small"}, {"value": "large"}],
            "None": None,
        },
        "images": ["x"],
    }


def told(attributes, options):
    words = "I want a lamp."
    return {
        "instruction": words,
        "instruction_attributes": attributes,
        "instruction_options": options,
    }


def test_the_real_files_are_read(files):
    catalogue = WebShop(**files)._catalogue
    assert len(catalogue.products) == 12
    dear, ranged = catalogue.products["B000000002"], catalogue.products["B000000001"]
    assert (dear.price, dear.price_tag) == (1234.5, "$1234.5")
    assert 10 <= ranged.price <= 20 and ranged.price_tag == "$10.0 to $20.0"
    assert catalogue.products["B000000000"].price == 100.0
    assert ranged.options == {"color": ("red | blue", "white"), "size": ("small", "large")}
    assert ranged.query == "desk lamp" and catalogue.products["B000000011"].attributes == ()
    goals = {goal.asin: goal for goal in catalogue.goals}
    assert len(catalogue.goals) == len(goals) == 2  # twins once, no attributes never
    assert goals["B000000001"].options == ("white", "large")
    goal = goals["B000000001"]
    assert goal.price_upper in (30.0, 40.0, 50.0)
    assert goal.instruction == f"I want a lamp, and price lower than {goal.price_upper:.2f} dollars"
    assert goals["B000000004"].options == ("small",)
    assert goals["B000000004"].instruction == "I want a lamp"  # dearer than all bounds


def test_without_peoples_goals_there_is_one_for_each_choice_of_options(files):
    own = {name: files[name] for name in ("products", "attributes")}
    goals = WebShop(**own)._catalogue.goals
    assert sorted(goal.options for goal in goals) == [
        ("red | blue", "large"),
        ("red | blue", "small"),
        ("white", "large"),
        ("white", "small"),
    ]
    assert "Find me a lamp with color: white, and size: small" in {g.instruction for g in goals}


def test_the_number_of_products_can_be_limited(files):
    assert len(WebShop(**files, num_products=5)._catalogue.products) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"products": "nowhere.json"}, "env_config.products: nowhere.json: No such file"),
        ({"attributes": None}, "env_config.products needs attributes"),
        ({"products": None}, "attributes and goals need env_config.products"),
        ({"observation_mode": "html"}, "observation_mode: 'html': text or text_rich"),
        ({"num_products": 1}, "no goal for a product of"),
    ],
)
def test_a_mistake_is_one_line(files, change, message):
    with pytest.raises(ConfigError, match=message):
        WebShop(**(files | change))


def test_files_in_another_form_are_refused(files, tmp_path):
    for name, text, message in (
        ("a", "{", "not JSON"),
        ("b", "{}", "its JSON is not a list"),
        ("c", '[{"asin": "B1"}]', "not in the form of items_shuffle.json"),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            WebShop(**(files | {"products": str(path)}))


def test_an_option_value_of_two_options_can_be_chosen_for_both(files):
    shop = WebShop(**files)
    shop.reset(seed=0)
    shown(shop, "search[lamp]")
    both = {"size": ("6", "7"), "count": ("6", "9")}
    shop._state = shop._state.__class__("lamp", (), 1, product_with(both))
    assert "Chosen: size: 6\n" in shown(shop, "click[6]")
    assert "Chosen: size: 6, count: 6\n" in shown(shop, "click[6]")


def product_with(options):
    return Product("B1", "Lamp", "q", "c", 1.0, "$1", (), options)


def test_the_registry_has_it():
    made = environment_maker("webshop", {"show_actions": False}, [], "x")()
    assert made.reset(seed=1)[0].startswith("WebShop [SEP] Instruction:")
