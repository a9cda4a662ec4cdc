"""Stand between an agent and its model: see, mock and replay the tool calls that the model asks for."""
