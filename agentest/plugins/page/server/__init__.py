"""The web server of `agentest ui`: routes that call the other packages."""
