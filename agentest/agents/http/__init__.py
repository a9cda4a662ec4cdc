"""Agents over HTTP with a form of their own: requests by templates, answers by paths."""
