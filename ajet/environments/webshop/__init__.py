"""An online shop as an environment: the agent searches, chooses options and buys a product, for the
reward of arXiv 2207.01206."""

from ajet.environments.webshop.shop import WebShop

__all__ = ["WebShop"]
