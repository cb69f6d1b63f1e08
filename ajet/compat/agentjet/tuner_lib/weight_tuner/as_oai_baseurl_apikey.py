"""Provides AgentJet's `ajet.tuner_lib.weight_tuner.as_oai_baseurl_apikey`."""

from ajet.core.workflow.gateway.gateway import Address as OpenaiBaseUrlAndApiKey

__all__ = ["OpenaiBaseUrlAndApiKey"]
