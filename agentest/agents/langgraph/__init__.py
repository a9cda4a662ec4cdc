"""Graphs behind a LangGraph server: threads, runs, interrupts."""
