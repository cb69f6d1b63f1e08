"""An online shop as an environment: the agent searches, chooses options and buys a product.

In: a goal and a catalogue. Out: pages as text, and the paper's reward (arXiv 2207.01206) for the
purchase.
"""

from ajet.environments.webshop.shop import WebShop

__all__ = ["WebShop"]
