"""What the console makes of texts. Control characters are in rollout/test_hostile_values.py."""

import io

from ajet.core.terminal import Console


def test_a_part_of_an_address_is_no_emoji():
    file = io.StringIO()
    Console(file=file).print("joined the Ray of [fd00:a::1]:6379", markup=False)
    assert file.getvalue() == "joined the Ray of [fd00:a::1]:6379\n"
