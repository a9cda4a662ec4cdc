"""The server of `agentest ui`: thin routes over what other rooms do."""
