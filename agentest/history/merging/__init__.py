"""One run made of several: their parts found, checked and put together."""
