"""Run history: a folder for each stored run, and the functions that find and read runs."""
