"""The index of the cached keys and values: a radix trie over exact token ids.

root ── [system prompt + tools] ─┬─ [question 1] ─┬─ [reply a, tool result]
                                 │                └─ [reply b]
                                 └─ [question 2] ── ...
"""

import heapq
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ajet.core.model.attention.trie import common_length_of_ids

Ids = NDArray[np.int64]


class PrefixNode:
    """A run of tokens below `parent`, with one slot of the pool (kv_cache.py) for each. Two prompts
    share a node only if every id before it is equal too, so its keys and values are valid for both.
    `computed`: its slots have keys and values, of the weights of `version`."""

    __slots__ = (
        "children",
        "computed",
        "last_used",
        "num_turn_ends",
        "parent",
        "serial",
        "slots",
        "tokens",
        "version",
    )

    def __init__(
        self, tokens: Ids, slots: Ids, parent: "PrefixNode | None", last_used: int, serial: int
    ) -> None:
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.children: dict[int, PrefixNode] = {}
        self.computed = False
        self.version = 0
        self.last_used = last_used
        self.serial = serial  # in the order of creation; breaks ties in the order of eviction
        self.num_turn_ends = 0  # how many turns of live episodes end here


class PrefixCache:
    """Allocates slots 1 .. num_slots (slot 0 is the pool's zero) to token sequences. Eviction drops
    the least recently used leaves; age is counted in batches and not in seconds, so what is cached
    depends only on the requests."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.clear()

    def clear(self) -> None:
        """Forgets every sequence, because the weights have changed."""
        self._root = PrefixNode(np.empty(0, np.int64), np.empty(0, np.int64), None, 0, 0)
        self._root.computed = True
        # A stack of free slots: the first `num_free` entries are valid.
        self._free = np.arange(self.num_slots, 0, -1, dtype=np.int64)
        self.num_free = self.num_slots
        self._tails: dict[str, list[PrefixNode]] = {}  # by episode, where its turns end
        self._clock = 0
        self._serial = 0

    def forget(self, oldest: int) -> None:
        """Forgets keys and values of weights before version `oldest`, and what is below them: the
        known part of a path is its beginning."""
        for node in self._nodes():
            assert node.parent is not None
            is_new_enough = node.version >= oldest and node.parent.computed
            node.computed = node.computed and is_new_enough

    def tick(self) -> None:
        """Starts a new batch. Nodes inserted or used from now on are not evicted before the next
        call."""
        self._clock += 1

    def insert(self, ids: Ids) -> PrefixNode | None:
        """Returns the node where `ids` ends. Missing ids are added as one node that is not
        computed.

        Returns None, and adds nothing, if even eviction cannot make enough room. Later insertions
        may split nodes, so call `path` only when the path is needed.
        """
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                break
            same = common_length_of_ids(child.tokens, ids[at:])
            node = child if same == len(child.tokens) else self._split(child, same)
            node.last_used = self._clock
            at += same
        if at < len(ids):
            count = len(ids) - at
            if self.num_free < count:
                self._evict(count)
            if self.num_free < count:
                return None
            self.num_free -= count
            slots = self._free[self.num_free : self.num_free + count][::-1].copy()
            return self._add(node, ids[at:].copy(), slots)
        return node

    def mark_tail(self, episode_id: str, node: PrefixNode) -> None:
        """Notes that a turn of this episode ends at this node."""
        node.num_turn_ends += 1
        self._tails.setdefault(episode_id, []).append(node)

    def release(self, episode_ids: Iterable[str]) -> None:
        """Drops the leaves that only these episodes could use, which are over."""
        for episode_id in episode_ids:
            # Backwards: a later turn's node is below that of an earlier one, which may then be a
            # leaf.
            for node in reversed(self._tails.pop(episode_id, [])):
                node.num_turn_ends -= 1
                if not node.children and not node.num_turn_ends and node.parent is not None:
                    self.remove(node)

    def remove(self, node: PrefixNode) -> None:
        """Drops a leaf and frees its slots."""
        assert not node.children and node.parent is not None
        del node.parent.children[int(node.tokens[0])]
        node.parent = None
        self._free[self.num_free : self.num_free + len(node.slots)] = node.slots
        self.num_free += len(node.slots)

    def _add(self, parent: PrefixNode, tokens: Ids, slots: Ids) -> PrefixNode:
        self._serial += 1
        node = PrefixNode(tokens, slots, parent, self._clock, self._serial)
        parent.children[int(tokens[0])] = node
        return node

    def _split(self, node: PrefixNode, at: int) -> PrefixNode:
        """Splits `node` at token `at` and returns the upper half, which is a new node: the lower
        one stays the same object, so that ends of turns in `_tails` remain valid."""
        assert node.parent is not None
        upper = self._add(node.parent, node.tokens[:at], node.slots[:at])
        upper.computed, upper.version = node.computed, node.version
        upper.last_used = node.last_used
        node.tokens, node.slots, node.parent = node.tokens[at:], node.slots[at:], upper
        upper.children[int(node.tokens[0])] = node
        return upper

    def _evict(self, count: int) -> None:
        """Drops leaves, least recently used first, until `count` slots are free."""
        # And a tenth of all: otherwise every insertion into a full cache would walk the whole trie.
        target = max(count, self.num_slots // 10)
        leaves = (node for node in self._nodes() if not node.children)
        heap = [(n.last_used, n.serial, n) for n in leaves if n.last_used < self._clock]
        heapq.heapify(heap)
        while heap and self.num_free < target:
            node = heapq.heappop(heap)[2]
            parent = node.parent
            self.remove(node)
            assert parent is not None
            if parent.parent and not parent.children and parent.last_used < self._clock:
                # It has become a leaf, and is not the root.
                heapq.heappush(heap, (parent.last_used, parent.serial, parent))

    def _nodes(self) -> Iterator[PrefixNode]:
        """Yields all nodes but the root, each before those below it."""
        stack = list(self._root.children.values())
        while stack:
            yield (node := stack.pop())
            stack.extend(node.children.values())


def path(tail: PrefixNode) -> list[PrefixNode]:
    """Returns the nodes from below the root to `tail`."""
    nodes, node = [], tail
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


def path_slots(tail: PrefixNode) -> Ids:
    """Returns the slots of the path to `tail`, in the order of the tokens."""
    return np.concatenate([node.slots for node in path(tail)] or [np.empty(0, np.int64)])
