"""A small interface to language models, with adapters behind it (`openai_adapter`, `litellm_adapter`)."""
