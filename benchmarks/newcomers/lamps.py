"""A puzzle of lamps in a row: a switch turns its lamp and its neighbours. All must be off."""

import random
import re


class Lamps:
    def __init__(self, size=4, most_moves=6):
        self.size = size
        self.most_moves = most_moves
        self.lamps = [False] * size
        self.moves = 0

    def reset(self, seed=None, options=None):
        rng = random.Random(seed)
        self.lamps = [False] * self.size
        while not any(self.lamps):
            for place in range(self.size):
                if rng.random() < 0.5:
                    self._turn(place)
        self.moves = 0
        return self._text(), {}

    def step(self, action):
        self.moves += 1
        found = re.search(r"\d+", action)
        place = int(found[0]) - 1 if found else -1
        if not 0 <= place < self.size:
            return f"There is no such switch. {self._text()}", -0.1, self._is_lost(), False, {}
        self._turn(place)
        if not any(self.lamps):
            return "All lamps are off.", 1.0, True, False, {}
        return self._text(), 0.0, self._is_lost(), False, {}

    def _turn(self, place):
        for lamp in (place - 1, place, place + 1):
            if 0 <= lamp < self.size:
                self.lamps[lamp] = not self.lamps[lamp]

    def _is_lost(self):
        return self.moves >= self.most_moves

    def _text(self):
        row = " ".join("on" if lamp else "off" for lamp in self.lamps)
        left = self.most_moves - self.moves
        return f"Lamps: {row}. Which switch, 1 to {self.size}? {left} moves left."


if __name__ == "__main__":
    game = Lamps()
    text, _ = game.reset()
    over = False
    while not over:
        text, reward, over, _, _ = game.step(input(text + " "))
    print(text)
