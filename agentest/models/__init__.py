"""The one small port to language models; adapters behind it (`openai_http`, `litellm_adapter`)."""
