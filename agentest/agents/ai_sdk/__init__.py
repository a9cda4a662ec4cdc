"""Backends of the Vercel AI SDK: UI message streams, data streams, text streams."""
