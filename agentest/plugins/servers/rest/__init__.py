"""Mocks behind an HTTP API that an OpenAPI document describes."""
