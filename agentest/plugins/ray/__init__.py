"""Run workers on a Ray cluster."""
