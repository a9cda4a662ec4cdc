"""Run agent objects of frameworks in this process, with their tools answered by mocks."""
